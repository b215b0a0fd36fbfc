"""Runs that join several shells: the demo."""
