"""llama.cpp's own HTTP server as a child process, a tiny model for it, and how it shares its KV.

Rule: nothing heavy is imported here; the server lives in its own process, and the packages of the
`demo` extra are needed only by those who write a model or start that process.
"""
