"""The simulated replica as a server: an OpenAI-compatible engine in its own process."""
