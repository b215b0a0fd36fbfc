"""Planning a fleet from a log: base, elastic and standby replicas, limits, each with its reason.

Rule: nothing is printed that was not simulated; a plan is minimal on what it was planned from.
"""
