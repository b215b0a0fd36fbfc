"""The continuous batcher of `engine.literal`, exact, as machine code that skips what repeats."""
