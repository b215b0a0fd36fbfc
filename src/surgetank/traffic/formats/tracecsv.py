"""Public traces as separated values: Azure LLM, BurstGPT, Vidur.

Rule: their header tells them; what it means beyond its names stands here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from surgetank.traffic.formats.csvlog import CsvReader, header_of
from surgetank.traffic.formats.reading import Format, ReadOptions
from surgetank.traffic.trace import Batch, Ended

_AZURE: Final = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}
_BURSTGPT: Final = {"Timestamp", "Request tokens", "Response tokens", "Log Type"}
_VIDUR: Final = {"arrived_at", "num_prefill_tokens", "num_decode_tokens"}


class BurstGptReader(CsvReader):
    """BurstGPT: seconds from the trace's start; no response tokens is a request that failed."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options, unit="s")

    def feed(self, lines: bytes) -> Batch:
        """Parse whole lines."""
        return _without_answer(super().feed(lines))

    def finish(self) -> Batch:
        """Give what was held back."""
        return _without_answer(super().finish())


def _without_answer(batch: Batch) -> Batch:
    output = batch.output_tokens
    if output is None:
        return batch
    ended = np.where(
        output == 0, Ended.FAILED, np.where(output > 0, Ended.COMPLETED, Ended.UNKNOWN)
    )
    return replace(batch, ended=ended.astype(np.int8))


def _has(head: bytes, names: set[str]) -> bool:
    return names <= set(header_of(head))


FORMATS: Final = (
    Format(
        "azure",
        "Azure LLM inference trace 2023 or 2024 (CSV)",
        lambda head, _: _has(head, _AZURE),
        CsvReader,
    ),
    Format(
        "burstgpt",
        "BurstGPT trace (CSV, 6 or 8 columns)",
        lambda head, _: _has(head, _BURSTGPT),
        BurstGptReader,
    ),
    Format(
        "vidur",
        "Vidur trace (CSV: arrived_at, num_prefill_tokens, num_decode_tokens)",
        lambda head, _: _has(head, _VIDUR),
        lambda options: CsvReader(options, unit="s"),
    ),
)
