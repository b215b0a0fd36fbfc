"""A fleet in virtual time around the policies that run live.

Rule: no decision is made here; FlowControl, ScalePolicy and Pool make them, as in the gateway.
"""
