"""Arrivals as data: traces, parsers of byte batches, generators, burstiness.

Rule: pure. No files, no sockets, no clock; randomness is a numpy Generator that is handed in.
"""
