"""Answers to questions for models: /v1/models, and /v1/models/NAME.

Rule: only paths that no proxy before us would read otherwise; a name may be percent-encoded or not,
and may hold slashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from surgetank.gateway import replies
from surgetank.policy.request import Outcome
from surgetank.wire.openai import model_body, models_body

_MODELS: Final = "/v1/models"
_MODEL: Final = "/v1/models/"  # and a name
_NO_NAME: Final = frozenset({"", ".", ".."})  # parts of a path that others resolve


def is_of_models(path: str) -> bool:
    """Whether a path asks for models."""
    if not path.startswith(_MODEL):
        return path == _MODELS
    return _NO_NAME.isdisjoint(path.removeprefix(_MODEL).split("/"))


def models_answer(path: str, names: Sequence[str], created: int) -> tuple[int, bytes, bytes]:
    """Return status, headers and body for such a path; `created` in Unix seconds."""
    if path == _MODELS:
        return 200, replies.JSON_TYPE, models_body(names, created)
    name = unquote(path.removeprefix(_MODEL))
    if name in names:
        return 200, replies.JSON_TYPE, model_body(name, created)
    return replies.refusal(Outcome.UNKNOWN_MODEL, "no such model", param="model")
