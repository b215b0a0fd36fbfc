"""The errors a user can cause: one clear line each, saying what, where, and what would be right."""

from __future__ import annotations


class SurgetankError(Exception):
    """Base of every error whose message is meant for the user; a command prints it and exits 2."""


class ConfigError(SurgetankError):
    """A setting is wrong or unknown."""


class InputError(SurgetankError):
    """A file or an argument cannot be used as given."""
