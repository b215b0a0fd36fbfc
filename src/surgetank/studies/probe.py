"""A short, bounded probe of a live engine: the requests from which a profile is fitted.

Rule: it sends at most `PROBES` requests and stops after `within` seconds. Prompts are random words,
each different from the first, so that no prefix cache helps; nobody reads the answers.

Four kinds, one after the other: prompts alone, short to long (prefill); bursts of 2, 4, 8 ... as
many as the engine runs at once (decoding side by side); long contexts side by side (the KV term);
and a mixture at random times, which the fit is not shown.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from surgetank.errors import InputError
from surgetank.loadtest.client import CHAT, Call, Client
from surgetank.loadtest.sender import Shot, fire
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome

PROBES: Final = 400
_MIXED: Final = 60
_LEFT: Final = 0.25  # part of the time that the mixture may take
_BUSY: Final = 0.6  # part of the engine's time the mixture asks for
_OUTPUT: Final = 8  # output tokens, at least: fewer do not tell the time of one
_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend"
)
_WORDS: Final = tuple(_TEXT.split())

Progress = Callable[[str, int], None]
"""Told (kind of probe, requests ended in all)."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is probed, and what bounds it. Sizes in tokens, times in seconds."""

    url: str
    model: str
    at_once: int  # most requests side by side
    max_context: int  # of one request
    kv_tokens: int  # held by all that run together
    key: str = ""
    within: float = 120.0


@dataclass(frozen=True, slots=True)
class Probed:
    """Records in order of arrival; those of `mixed` ids are to be held out."""

    records: list[RequestRecord]
    mixed: frozenset[str]


async def probe(target: Target, *, seed: int = 0, progress: Progress | None = None) -> Probed:
    """Probe an engine. Raises InputError when it does not answer as it should."""
    return await _Probe(target, random.Random(seed), progress or (lambda _kind, _done: None)).run()


class _Probe:
    """One run of it."""

    def __init__(self, target: Target, rng: random.Random, progress: Progress) -> None:
        self._target = target
        self._rng = rng
        self._progress = progress
        self._client = Client(target.url)
        self._records: list[RequestRecord] = []
        self._words_per_token = 0.7
        self._sent = 0

    async def run(self) -> Probed:
        mixed: list[RequestRecord] = []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._target.within):
                await self._measure_words()
                for kind, (share, bursts) in self._stages().items():
                    until = loop.time() + share * self._target.within
                    slowest = 0.0  # a burst is at most some twice as long as the one before
                    for sizes in bursts:
                        began = loop.time()
                        if began + 2 * slowest > until or self._sent + len(sizes) > PROBES - _MIXED:
                            break
                        await self._fire(kind, [(0.0, *size) for size in sizes])
                        slowest = max(slowest, loop.time() - began)
                mixed = await self._mixture()
        except TimeoutError:
            pass  # what it has by then may do
        finally:
            await self._client.close()
        return Probed(self._records, frozenset(record.id for record in mixed))

    async def _measure_words(self) -> None:
        """Send one prompt, learn how many of its words make a token; and warm the engine up."""
        words = max(8, min(200, self._target.max_context // 8))
        exchange = await self._client.send(self._call(words, 4))
        if exchange.outcome is not Outcome.COMPLETED:
            raise InputError(
                f"{self._target.url}: the first request of the probe ended as"
                f" {exchange.outcome}: {exchange.reason}"
            )
        if exchange.usage is None or not exchange.usage.prompt_tokens:
            raise InputError(f"{self._target.url}: its answers have no usage: cannot be fitted")
        self._words_per_token = words / exchange.usage.prompt_tokens

    def _stages(self) -> dict[str, tuple[float, list[list[tuple[int, int]]]]]:
        """Give each kind its part of the time, and its bursts of (prompt, output) tokens."""
        longest = self._target.max_context * 3 // 4
        lengths = [n for n in (16, 64, 128, 256, 512, 1024, 2048, 4096) if n < longest]
        alone = [[(length, _OUTPUT)] for length in [*lengths, longest] for _ in range(2)]
        share = self._target.kv_tokens // self._target.at_once
        short = max(4, min(64, share // 3))
        counts = [2**i for i in range(self._target.at_once.bit_length())]
        together = [[(short, short)] * count for count in counts for _ in range(2)]
        long = max(16, min(longest, self._target.kv_tokens // 4, 4096))
        contexts = [[(n, 32)] * 3 for n in (long // 4, long // 2, long) for _ in range(2)]
        return {
            "prompts alone": (0.25, alone),
            "side by side": (0.25, together),
            "long contexts": (0.2, contexts),
        }

    async def _mixture(self) -> list[RequestRecord]:
        """Send requests of all sizes at random times, at a part of the engine's capacity."""
        first = [r for r in self._records if r.first_token and r.sent and r.prompt_tokens]
        token = sorted((r.first_token - r.sent) / r.prompt_tokens for r in first)  # type: ignore[operator] # chosen so
        prefill = token[len(token) // 4] if token else 1e-3
        share = max(32, self._target.kv_tokens // self._target.at_once)
        # A request may take a sixtieth of what is left of the time, at the load that is asked for.
        most = min(self._target.max_context // 2, share, int(_LEFT * self._target.within * _BUSY
            / _MIXED / prefill * 2))  # fmt: skip
        typical = max(16, most // 3)
        at, plan = 0.0, []
        for _ in range(_MIXED):
            prompt = max(8, min(2 * most, int(self._rng.lognormvariate(0, 0.6) * typical)))
            output = self._rng.randint(_OUTPUT, max(_OUTPUT + 1, min(64, share // 3)))
            plan.append((at, prompt, output))
            at += self._rng.expovariate(_BUSY / (prefill * typical * 2))
        return await self._fire("mixture", plan)

    async def _fire(self, kind: str, plan: Sequence[tuple[float, int, int]]) -> list[RequestRecord]:
        before = len(self._records)
        shots = [
            Shot(
                at,
                self._body(max(1, round(prompt * self._words_per_token)), output),
                key=self._target.key,
                id=f"{self._sent + i:06d}",
                timeout=self._target.within,
            )
            for i, (at, prompt, output) in enumerate(plan)
        ]
        self._sent += len(shots)

        def ended(record: RequestRecord) -> None:
            self._records.append(record)
            self._progress(kind, len(self._records))

        await fire(self._client, shots, on_end=ended)
        self._records.sort(key=lambda record: record.id)
        return self._records[before:]

    def _call(self, words: int, output: int) -> Call:
        return Call(self._body(words, output), key=self._target.key, route=CHAT)

    def _body(self, words: int, output: int) -> bytes:
        text = " ".join(self._rng.choices(_WORDS, k=words))
        return json.dumps(
            {
                "model": self._target.model,
                "messages": [{"role": "user", "content": text}],
                "max_tokens": output,
                "min_tokens": output,  # vLLM, SGLang
                "ignore_eos": True,  # also llama.cpp
                "temperature": 1.0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
