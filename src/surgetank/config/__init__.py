"""The configuration file: a tree of the Specs that stand beside their users.

Rule: only the command line imports this; what a Spec is for gets the Spec, never the tree.
"""

from __future__ import annotations

from surgetank.config.example import example
from surgetank.config.fields import Field, about, comments_of, fields_of
from surgetank.config.schema import schema
from surgetank.config.tree import Config
from surgetank.config.validate import load, parse

__all__ = [
    "Config",
    "Field",
    "about",
    "comments_of",
    "example",
    "fields_of",
    "load",
    "parse",
    "schema",
]
