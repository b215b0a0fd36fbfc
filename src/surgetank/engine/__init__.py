"""How a replica behaves: step time, KV blocks, batching; pure."""
