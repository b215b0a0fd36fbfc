"""A schedule as other load generators read it, for those who want the same load from their tool.

Rule: times, sizes and shared prefixes go over; tenants and sessions do not, no format has them.

    aiperf     JSON for `aiperf profile --request-rate-series`: points of time_s and qps, which it
               joins by lines. A rate only: it draws arrivals and sizes itself
    mooncake   JSON lines of timestamp (ms), input_length, output_length, hash_ids (one for each 512
               tokens), for `aiperf --custom-dataset-type mooncake_trace`, Dynamo and GuideLLM
    guidellm   JSON lines of timestamp (s), input_length, output_length, for GuideLLM's replay
               profile (kind=trace_minimal, trace_synthetic in later releases)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from surgetank.errors import InputError
from surgetank.loadtest.schedule import Schedule

BLOCK_TOKENS: Final = 512  # of one hash id
_LEAST_QPS: Final = 0.001  # AIPerf takes no rate of 0
_EDGE: Final = 0.001  # seconds in which a line between two points counts as a step


def export(schedule: Schedule, name: str) -> str:
    """Write a schedule in one of FORMATS. Raises InputError for another name."""
    write = FORMATS.get(name)
    if write is None:
        raise InputError(f"--export {name}: must be one of {', '.join(FORMATS)}")
    return write(schedule)


def _aiperf(schedule: Schedule) -> str:
    points = [{"time_s": round(t, 3), "qps": round(rate, 4)} for t, rate in _rates(schedule)]
    return json.dumps({"points": points}) + "\n"


def _rates(schedule: Schedule) -> Iterator[tuple[float, float]]:
    """Requests/s as steps: within each phase where there are pulses, else within each second."""
    phases = schedule.phases
    rising = any(phase.name == "pulse" for phase in phases)
    if rising and schedule.description.get("shape") in {"pulse", "step"}:
        edges = np.array([0.0, *(phase.end for phase in phases)])
    else:
        edges = np.append(np.arange(0.0, schedule.duration, 1.0), schedule.duration)
    counts, _ = np.histogram(schedule.at, edges)
    rates = np.maximum(_LEAST_QPS, counts / np.diff(edges))
    for start, end, rate in zip(edges[:-1], edges[1:], rates.tolist(), strict=True):
        yield float(start) + (_EDGE if start > 0 else 0.0), rate
        yield float(end), rate


def _mooncake(schedule: Schedule) -> str:
    blocks = _Blocks()
    return _lines(
        {
            "timestamp": round(at * 1000),
            "input_length": prompt,
            "output_length": output,
            "hash_ids": blocks.ids(row, root, shared, prompt),
        }
        for row, (at, prompt, output, root, shared) in enumerate(_rows(schedule))
    )


def _guidellm(schedule: Schedule) -> str:
    return _lines(
        {"timestamp": round(at, 6), "input_length": prompt, "output_length": output}
        for at, prompt, output, _, _ in _rows(schedule)
    )


FORMATS: Final[Mapping[str, Callable[[Schedule], str]]] = MappingProxyType(
    {"aiperf": _aiperf, "mooncake": _mooncake, "guidellm": _guidellm}
)


class _Blocks:
    """Ids of 512-token blocks: the same for blocks that two prompts share from their start."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def ids(self, row: int, root: int, shared: int, tokens: int) -> list[int]:
        """Number the blocks of a prompt; the last may be partly filled."""
        common = shared // BLOCK_TOKENS if shared < tokens else -(-tokens // BLOCK_TOKENS)
        whose = [
            (root, n) if n < common else (-2 - row, n) for n in range(-(-tokens // BLOCK_TOKENS))
        ]
        return [self._known.setdefault(key, len(self._known)) for key in whose]


def _rows(schedule: Schedule) -> Iterator[tuple[float, int, int, int, int]]:
    return zip(
        schedule.at.tolist(),
        schedule.prompt_tokens.tolist(),
        schedule.max_tokens.tolist(),
        schedule.root.tolist(),
        schedule.shared.tolist(),
        strict=True,
    )


def _lines(rows: Iterator[dict[str, object]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
