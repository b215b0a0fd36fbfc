"""How long prompts and answers will be, learnt from what engines report.

Rule: three figures for a prompt, each with its use: `expected` for cost, quotas and order, `worst`
for room where an engine cannot preempt, `least` before something is refused as too large.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from math import ceil
from typing import Any, Final

from surgetank.policy.request import Request

_MESSAGE_TOKENS: Final = 4  # role and separators of a chat template, per message
_WORST_MESSAGE_TOKENS: Final = 8
_WORST_TOKENS: Final = 16
_FIRST: Final = (0.25, 0.4, 0.5)  # tokens a byte by script, before anything was learnt
_WINDOW: Final = 64  # observations kept
_FADE: Final = 1 - 1 / _WINDOW
_LONGEST_TOKEN: Final = 32  # bytes: hardly any text has longer ones on the average
_MOST_EXCESS: Final = 512  # tokens a template may add of its own; more is no template
_ENOUGH_OUTPUTS: Final = 3  # as many as make a rate of service: both tell a wait, or neither


def usual_tokens(request: Request) -> float:
    """Tokens of a prompt of its size, whatever was learnt of prompts."""
    size = request.prompt_bytes
    return _FIRST[_script(size, request.prompt_chars)] * size


PromptTokens = tuple[int, int, int]
"""Tokens of one prompt: surely at least, expected, and at worst."""


class _Script:
    """What is known of one model's tokens per byte in one class of scripts."""

    __slots__ = ("bytes", "excess", "tokens")

    def __init__(self) -> None:
        self.tokens = 0.0  # sums that fade: their ratio is the mean, weighted by size
        self.bytes = 0.0
        self.excess = 0  # tokens beyond one a byte: a template's own words


class PromptLength:
    """Prompt tokens from bytes, per model and class of scripts (UTF-8 bytes per character).

    Expected: a quarter token a byte in ASCII, 0.4 in two-byte and 0.5 in three-byte scripts, and 4
    a message; with reports, their faded mean of tokens per byte. At worst: one a byte, which no
    tokenizer that falls back to bytes exceeds, 16, 8 a message, and what templates were seen to
    add. That is a bound and never a statistic: where an engine cannot preempt, streams die of one
    prompt denser than those before. At least: one in 32 bytes, since a request refused as too
    large teaches nothing. Reports beyond a token a byte (pictures, long templates on short
    prompts) say nothing of text, and are not learnt from.
    """

    def __init__(self) -> None:
        self._scripts: dict[tuple[str, int], _Script] = {}

    def estimate(self, model: str, size: int, chars: int, messages: int) -> PromptTokens:
        """`size`: UTF-8 bytes of the prompt's text; `chars`: its characters, 0 when unknown."""
        script = 0 if 10 * size <= 12 * chars else _script(size, chars)
        known = self._scripts.get((model, script))
        ratio, excess = _FIRST[script], 0
        if known is not None:
            excess = known.excess
            if known.bytes > 0:
                ratio = known.tokens / known.bytes
        expected = ceil(ratio * size) + _MESSAGE_TOKENS * messages or 1
        worst = size + _WORST_TOKENS + _WORST_MESSAGE_TOKENS * messages + excess
        return size // _LONGEST_TOKEN, expected, worst

    def observe(self, model: str, size: int, chars: int, messages: int, tokens: int) -> None:
        """An engine reported `tokens` for a prompt."""
        if size <= 0 or tokens <= 0:
            return
        key = (model, 0 if 10 * size <= 12 * chars else _script(size, chars))
        known = self._scripts.get(key)
        if known is None:
            known = self._scripts[key] = _Script()
        text = tokens - _MESSAGE_TOKENS * messages
        if text < 1:
            text = 1
        if text <= size:
            known.tokens = known.tokens * _FADE + text
            known.bytes = known.bytes * _FADE + size
            return
        over = tokens - size - _WORST_TOKENS - _WORST_MESSAGE_TOKENS * messages
        if known.excess < over <= _MOST_EXCESS:
            known.excess = over

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` makes an equal one."""
        return {
            "scripts": [
                [model, script, s.tokens, s.bytes, s.excess]
                for (model, script), s in self._scripts.items()
            ]
        }

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> PromptLength:
        """Raises ValueError, KeyError or TypeError when `kept` is not what `to_dict` gave."""
        made = cls()
        for model, script, tokens, size, excess in kept["scripts"]:
            known = made._scripts[str(model), int(script)] = _Script()
            known.tokens, known.bytes = float(tokens), float(size)
            known.excess = int(excess)
        return made


class Window:
    """The last `_WINDOW` lengths, in order of time and in order of size.

    `expected`: their P75, what room is kept for; `mean`: what a request is expected to cost. Both
    None before there are enough.
    """

    __slots__ = ("_by_size", "_total", "by_time", "expected", "mean")

    def __init__(self) -> None:
        self.by_time: deque[int] = deque()
        self._by_size: list[int] = []
        self._total = 0
        self.expected: int | None = None
        self.mean: float | None = None

    def add(self, length: int) -> None:
        """Take a length, and forget one that is too old."""
        times, sizes = self.by_time, self._by_size
        times.append(length)
        if len(times) > _WINDOW:
            oldest = times.popleft()
            if oldest == length:
                return  # as it was
            del sizes[bisect_left(sizes, oldest)]
            self._total -= oldest
        insort(sizes, length)
        self._total += length
        number = len(sizes)
        if number >= _ENOUGH_OUTPUTS:
            self.expected = sizes[(3 * number + 3) // 4 - 1]
            self.mean = self._total / number


class OutputLength:
    """Expected output tokens: P75 of a (tenant, model)'s last 64 answers; `default` before 3."""

    def __init__(self, default: int) -> None:
        self.default = default
        self._windows: dict[tuple[str, str], Window] = {}

    def window(self, tenant: str, model: str) -> Window | None:
        """The answers there were; None before the first."""
        return self._windows.get((tenant, model))

    def windows_of(self, model: str) -> list[tuple[str, Window]]:
        """The tenants that had answers of a model, and those answers."""
        return [(tenant, w) for (tenant, name), w in self._windows.items() if name == model]

    def expect(self, tenant: str, model: str, max_tokens: int | None) -> int:
        """Tokens of one choice, never above `max_tokens`."""
        window = self.window(tenant, model)
        expected = None if window is None else window.expected
        if expected is None:
            expected = self.default
        return expected if max_tokens is None or expected < max_tokens else max_tokens

    def observe(self, tenant: str, model: str, tokens: int) -> Window:
        """An answer ended by itself after `tokens` (of one choice); give its window."""
        window = self._windows.get((tenant, model))
        if window is None:
            window = self._windows[tenant, model] = Window()
        window.add(tokens)
        return window

    def to_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` makes an equal one."""
        return {
            "windows": [
                [tenant, model, list(w.by_time)] for (tenant, model), w in self._windows.items()
            ]
        }

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any], default: int) -> OutputLength:
        """Raises ValueError, KeyError or TypeError when `kept` is not what `to_dict` gave."""
        made = cls(default)
        for tenant, model, lengths in kept["windows"]:
            for length in lengths:
                made.observe(str(tenant), str(model), int(length))
        return made


def _script(size: int, chars: int) -> int:
    """0: ASCII mostly, 1: two bytes a character (Cyrillic, Arabic ...), 2: three (Chinese ...)."""
    if 10 * size <= 12 * chars or chars <= 0:
        return 0
    return 1 if 10 * size <= 22 * chars else 2
