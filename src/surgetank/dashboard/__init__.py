"""The live page: a process of its own that asks a gateway once a second and shows the last minutes.

Rule: it only reads the gateway's admin listener, and never touches the data plane. What the page
gets is built field by field from what is known here, so nothing else can slip through.
"""

from surgetank.dashboard.process import Dashboard, start

__all__ = ["Dashboard", "start"]
