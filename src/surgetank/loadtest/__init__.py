"""Load on a real endpoint, open loop, and what came of it.

Rule: latency counts from the moment a request was due, never from when a late sender got to it.
"""
