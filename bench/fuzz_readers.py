"""Fuzz every log reader of the registry with atheris: `make fuzz`, or a longer run by hand.

The first byte of an input chooses the reader, the rest is the log. What must hold: nothing but
UnreadableError escapes, and a log fed in pieces (cut at line ends) gives the same columns and the
same account as in one piece. Seeds are tests/data/log_samples, each under its own reader.

    build/fuzz/bin/python bench/fuzz_readers.py -max_total_time=120 build/fuzz-corpus
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["surgetank.traffic"]):
    import numpy as np
    from numpy.typing import NDArray

    from surgetank.traffic.formats import registry
    from surgetank.traffic.formats.reading import Account, Format, ReadOptions, UnreadableError
    from surgetank.traffic.trace import Batch, Labels, concatenate

SAMPLES = Path(__file__).parents[1] / "tests" / "data" / "log_samples"
# One log of each family that has no sample there.
OTHERS = (
    b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.6805900,374,44\r\n",
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,G,4,1,5,API\n",
    b'{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n',
    b"arrived_at,num_prefill_tokens,num_decode_tokens\n0.5,10,20\n",
    b"client,t,rate,cv,pat,a,b\n1,0,0.5,1.2,gamma,0.7,2.0\n",
    b"arrival_time\n1796006832\n",
    b"time,tenant,prompt,output\n30/Nov/2026:10:47:12 +0800,a,1,2\n",
    b'{"arrived": 1796006832.5, "tenant": "a", "prompt_tokens": 5, "output_tokens": 7}\n',
)
OPTIONS = ReadOptions(year=2026)


def read(log: Format, pieces: list[bytes]) -> tuple[str, Batch, Account | None]:
    """Read a log; a refusal is a result too."""
    try:
        reader = log.open(OPTIONS)
        batches = [reader.feed(piece) for piece in pieces]
        batches.append(reader.finish())
    except UnreadableError:
        return "unreadable", Batch(np.empty(0)), None
    return "", concatenate(batches), reader.account


def cut(content: bytes, seed: int) -> list[bytes]:
    """Cut at some of the line ends."""
    dice = random.Random(seed)
    pieces = [b""]
    for line in re.findall(rb"[^\n]*\n|[^\n]+", content):
        pieces[-1] += line
        if dice.random() < 0.5:
            pieces.append(b"")
    return [piece for piece in pieces if piece]


def known(column: NDArray[Any] | None) -> dict[int, float]:
    """Give the rows that state a value; a column of gaps is as good as none."""
    values = [] if column is None else column.tolist()
    return {i: v for i, v in enumerate(values) if v not in {-1, None} and v == v}  # noqa: PLR0124 -- NaN


def names(labels: Labels | None) -> dict[int, str]:
    """Give the rows that state a name."""
    codes = [] if labels is None else labels.codes.tolist()
    return {i: labels.names[c] for i, c in enumerate(codes) if labels is not None and c >= 0}


def check(data: bytes) -> None:
    """Read one input both ways."""
    if len(data) < 2:
        return
    log = registry.FORMATS[data[0] % len(registry.FORMATS)]
    content = data[1:]
    log.detect(content, "x.log")
    refused, whole, account = read(log, [content])
    again, parts, other = read(log, cut(content, len(content)))
    assert refused == again, (log.name, refused, again)
    if account is None or other is None:
        return
    assert np.array_equal(whole.arrived, parts.arrived, equal_nan=True), log.name
    for column in ("prompt_tokens", "output_tokens", "duration", "ttft", "ended"):
        one, two = known(getattr(whole, column)), known(getattr(parts, column))
        assert one == two, (log.name, column)
    assert names(whole.tenant) == names(parts.tenant), log.name
    assert (account.rows, account.skipped) == (other.rows, other.skipped), log.name
    assert account.ignored == other.ignored, log.name


def seed(corpus: Path) -> None:
    """Write the samples into an empty corpus, each behind the byte of its reader."""
    corpus.mkdir(parents=True, exist_ok=True)
    logs = [path.read_bytes() for path in sorted(SAMPLES.iterdir())] + list(OTHERS)
    for n, content in enumerate(logs):
        for i, log in enumerate(registry.FORMATS):
            if log.detect(content, "a.log"):
                (corpus / f"{n}-{log.name}").write_bytes(bytes([i]) + content)


if __name__ == "__main__":
    folders = [Path(a) for a in sys.argv[1:] if not a.startswith("-")]
    if folders and not (folders[0].is_dir() and any(folders[0].iterdir())):
        seed(folders[0])
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
