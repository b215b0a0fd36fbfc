"""What holds for any bytes holds for the fuzzers' corpus, and for what Hypothesis makes of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

BENCH = Path(__file__).parents[2] / "bench"
CORPUS = Path(__file__).parents[1] / "data" / "fuzz_wire"
sys.path.insert(0, str(BENCH))
from wire_checks import CHECKS, event_reader  # noqa: E402 - after the path to it

FILES = sorted(path for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("path", FILES, ids=[f"{p.parent.name}/{p.name}" for p in FILES])
def test_the_corpus_holds(path: Path) -> None:
    data = path.read_bytes()
    CHECKS[path.parent.name](data)
    if path.parent.name == "sse":
        event_reader(data)


def mutated(target: str) -> st.SearchStrategy[bytes]:
    """Pieces of the corpus, put together otherwise, with other bytes between them."""
    whole = [path.read_bytes() for path in FILES if path.parent.name == target]
    pieces = [piece for data in whole for piece in data.splitlines(keepends=True)]
    return st.lists(st.sampled_from(pieces) | st.binary(max_size=3), max_size=8).map(b"".join)


@settings(max_examples=40)
@given(mutated("http"))
def test_any_mixture_of_messages_is_read_alike_however_it_is_cut(data: bytes) -> None:
    CHECKS["http"](data)


@settings(max_examples=40)
@given(mutated("sse"))
def test_any_mixture_of_events_is_passed_on_and_learnt_from_alike(data: bytes) -> None:
    CHECKS["sse"](data)
    event_reader(data)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(range(9)) | st.binary(max_size=2), max_size=8), st.data())
def test_any_body_is_refused_in_words_or_sent_without_what_is_the_gateways(
    edits: list[int | bytes], data: st.DataObject
) -> None:
    whole = [path.read_bytes() for path in FILES if path.parent.name == "body"]
    body = data.draw(st.sampled_from(whole))
    for edit in edits:
        at = data.draw(st.integers(0, len(body)))
        body = (
            body[:at] + body[at + edit :] if isinstance(edit, int) else body[:at] + edit + body[at:]
        )
    CHECKS["body"](body)
