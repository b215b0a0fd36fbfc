"""Surgetank keeps an LLM fleet standing when traffic comes in bursts."""

__version__ = "0.1.0"
