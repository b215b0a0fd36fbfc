"""Bodies of requests: made-up text of a given number of tokens, or a user's own bodies.

Rule: a body is made when it is sent, from its row of the schedule and the seed alone: the same run
sends the same words, and a long one needs no memory for them.

No tokenizer is needed here. The words are short and common, one token each to nearly every
tokenizer, so `words = (tokens - overhead) / per_word`; both numbers are read off the target's own
usage before the run (`WordScale.fitted`), so that template and tokenizer are in them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from surgetank.errors import InputError
from surgetank.loadtest.schedule import Schedule

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"

_PROSE: Final = (
    "the of and to in is you that it he was for on are as with his they at be this have from or "
    "one had by word but not what all were we when your can said there use an each which she do "
    "how their if will up other about out many then them these so some her would make like him "
    "into time has look two more write go see number no way could people my than first water been "
    "call who oil its now find long down day did get come made may part"
)
_WORDS: Final = tuple(_PROSE.split())
_RING: Final = 1 << 16  # words drawn once; a text is a piece of them, begun by words of its own
_OWN: Final = 6  # words drawn anew for each text: 110^6 beginnings, so no two share a prefix


@dataclass(frozen=True, slots=True)
class WordScale:
    """Prompt tokens of a text of n words: overhead + per_word * n."""

    per_word: float = 1.0
    overhead: float = 8.0  # of a chat template

    @classmethod
    def fitted(cls, few: tuple[int, int], many: tuple[int, int]) -> WordScale | None:
        """Fit to two (words, tokens); None when they make no sense."""
        words = many[0] - few[0]
        per_word = (many[1] - few[1]) / words if words > 0 else 0.0
        overhead = few[1] - per_word * few[0]
        if not 0.25 <= per_word <= 16 or overhead < -per_word:
            return None
        return cls(per_word, max(0.0, overhead))

    def words(self, tokens: float) -> int:
        """Words that make up so many tokens with the overhead, at least one."""
        return max(1, round((tokens - self.overhead) / self.per_word))


class Words:
    """Endless streams of words, one for each number."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([seed, 0x0D5])
        drawn = rng.integers(len(_WORDS), size=_RING)
        pieces = [_WORDS[i].encode() + b" " for i in drawn]
        self._seed = seed
        self._text = b"".join(pieces) * 2
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        self._ends = np.concatenate([[0], np.cumsum(np.tile(lengths, 2))])

    def text(self, stream: int, words: int) -> str:
        """Return the first words of a stream: a longer piece of one begins with a shorter one."""
        # A digest, since to seed a generator takes 50 us, more than all the rest.
        drawn = hashlib.blake2b(struct.pack("<qq", self._seed, stream), digest_size=2 * (_OWN + 1))
        begin, *own = struct.unpack(f"<{_OWN + 1}H", drawn.digest())
        parts = [_WORDS[i % len(_WORDS)] for i in own[:words]]
        left = words - len(parts)
        whole, rest = divmod(left, _RING)
        if left > 0:
            piece = self._piece(begin, rest)
            parts.append((self._piece(begin, _RING) * whole + piece).decode().rstrip())
        return " ".join(parts)

    def _piece(self, begin: int, words: int) -> bytes:
        return self._text[self._ends[begin] : self._ends[begin + words]]


@dataclass(frozen=True, slots=True)
class Asking:
    """What every body says beside its words."""

    model: str
    route: str = CHAT
    ignore_eos: bool = False  # an engine's extension: generate all of max_tokens
    extra: Mapping[str, Any] = field(default_factory=dict)  # members of the body

    def body(self, text: str, max_tokens: int) -> bytes:
        """Make a streaming request that asks for its usage."""
        said: dict[str, Any] = {"model": self.model}
        if self.route == CHAT:
            said["messages"] = [{"role": "user", "content": text}]
        else:
            said["prompt"] = text
        said |= {
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            said["ignore_eos"] = True
        said |= self.extra
        return json.dumps(said, separators=(",", ":")).encode()


class Prompts:
    """Bodies of made-up text for a schedule."""

    def __init__(self, schedule: Schedule, asking: Asking, scale: WordScale, seed: int) -> None:
        self._schedule = schedule
        self._asking = asking
        self._scale = scale
        self._words = Words(seed)

    def body(self, row: int) -> bytes:
        """Make the body of a row of the schedule."""
        schedule = self._schedule
        tokens, shared = int(schedule.prompt_tokens[row]), int(schedule.shared[row])
        words = self._scale.words(tokens)
        common = min(words, round(shared / self._scale.per_word)) if shared else 0
        if shared >= tokens:
            common = words
        # Streams of rows have even numbers, those of roots odd ones: they never meet.
        own = self._words.text(2 * row, words - common) if common < words else ""
        root = self._words.text(2 * int(schedule.root[row]) + 1, common) if common else ""
        text = " ".join(part for part in (root, own) if part)
        return self._asking.body(text, int(schedule.max_tokens[row]))


class UserBodies:
    """Bodies from a file of JSON lines, one after the other, and from the start when they end."""

    def __init__(self, bodies: Sequence[tuple[str, bytes]]) -> None:
        self._bodies = bodies

    def __len__(self) -> int:
        return len(self._bodies)

    @property
    def model(self) -> str:
        """The model that the first one asks for."""
        return str(json.loads(self._bodies[0][1])["model"])

    def body(self, row: int) -> bytes:
        """Return the body of a row of the schedule."""
        return self._bodies[row % len(self._bodies)][1]

    def route(self, row: int) -> str:
        """Return the path that it goes to."""
        return self._bodies[row % len(self._bodies)][0]


def read_bodies(path: Path, *, model: str | None) -> UserBodies:
    """Read a user's bodies; each is made a stream that tells its usage.

    `model` replaces the one they name. Raises InputError with the line and what is wrong in it.
    """
    bodies = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    bodies.append(_user_body(line, f"{path} line {number}", model))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InputError(f"{path}: cannot be read: {reason}") from error
    if not bodies:
        raise InputError(f"{path}: holds no request; one JSON object a line")
    return UserBodies(bodies)


def _user_body(line: str, where: str, model: str | None) -> tuple[str, bytes]:
    try:
        said = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON") from error
    if isinstance(said, dict) and isinstance(said.get("body"), dict):
        said = said["body"]  # a line of an OpenAI batch file
    if not isinstance(said, dict) or not ("messages" in said or "prompt" in said):
        raise InputError(f'{where}: must be a request body with "messages" or "prompt"')
    if model is not None:
        said["model"] = model
    if "model" not in said:
        raise InputError(f"{where}: names no model; give --model")
    said["stream"] = True
    options = said.get("stream_options")
    said["stream_options"] = (options if isinstance(options, dict) else {}) | {
        "include_usage": True
    }
    route = CHAT if "messages" in said else COMPLETIONS
    return route, json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
