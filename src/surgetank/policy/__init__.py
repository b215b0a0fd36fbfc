"""Every decision, as plain state machines: no clock, no I/O, randomness handed in.

Live gateway, simulator and replay drive the same classes; only the standard library is used.
"""
