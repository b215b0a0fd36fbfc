"""Burst conformance: what users reported of gateways, as checks on any OpenAI-compatible one.

A gateway is put between scripted replicas, which tell what reached them, and clients that count
every byte of what came back. `table.CHECKS` is the whole list.
"""
