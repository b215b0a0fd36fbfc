"""Prompts: so many words for so many tokens, the same for the same row, shared where asked for."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from surgetank.errors import InputError
from surgetank.loadtest.prompts import (
    COMPLETIONS,
    Asking,
    Prompts,
    Words,
    WordScale,
    read_bodies,
)
from surgetank.loadtest.sessions import SessionSpec
from surgetank.loadtest.shapes import Steady
from surgetank.loadtest.tenants import Prefix, TenantLoad, draw
from surgetank.traffic.tokencounts import Lengths

LOAD = TenantLoad("t", Steady(5, 60), Lengths("uniform", 20, 900), Lengths("fixed", 64))
ASKING = Asking("m")
SCALE = WordScale(per_word=1.0, overhead=10.0)


def text_of(body: bytes) -> str:
    content = json.loads(body)["messages"][0]["content"]
    assert isinstance(content, str)
    return content


def test_a_text_has_as_many_words_as_asked_for() -> None:
    words = Words(3)
    for number in (1, 5, 6, 7, 500, 70_000):
        assert len(words.text(4, number).split(" ")) == number


def test_a_stream_goes_on_where_a_shorter_piece_of_it_ended() -> None:
    words = Words(0)
    assert words.text(9, 400).startswith(words.text(9, 40) + " ")


def test_no_two_streams_begin_alike() -> None:
    words = Words(0)
    assert len({words.text(stream, 6) for stream in range(5000)}) == 5000


def test_words_make_up_the_tokens_with_the_overhead_in_them() -> None:
    scale = WordScale(per_word=1.25, overhead=12)
    assert scale.words(512) == 400
    assert scale.words(3) == 1


@pytest.mark.parametrize(
    ("few", "many", "fits"),
    [
        ((16, 28), (336, 348), WordScale(1.0, 12.0)),
        ((16, 84), (336, 1684), WordScale(5.0, 4.0)),
        ((16, 16), (336, 16), None),
        ((16, 400), (336, 20), None),
    ],
)
def test_the_scale_is_fitted_to_what_the_engine_counted(
    few: tuple[int, int], many: tuple[int, int], fits: WordScale | None
) -> None:
    assert WordScale.fitted(few, many) == fits


def test_a_body_asks_for_a_stream_with_usage_and_its_own_output() -> None:
    made = Prompts(draw([LOAD], seed=0), replace(ASKING, ignore_eos=True), SCALE, 0)
    body = json.loads(made.body(0))
    assert body["model"] == "m"
    assert body["max_tokens"] == 64
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["ignore_eos"] is True


def test_a_prompt_has_the_words_of_its_row_and_is_the_same_every_time() -> None:
    schedule = draw([LOAD], seed=0)
    made, again = (Prompts(schedule, ASKING, SCALE, 0) for _ in range(2))
    for row in (0, 7, 100):
        words = text_of(made.body(row)).split(" ")
        assert len(words) == max(1, schedule.prompt_tokens[row] - 10)
        assert made.body(row) == again.body(row)


def test_completions_get_a_prompt_instead_of_messages() -> None:
    made = Prompts(draw([LOAD], seed=0), replace(ASKING, route=COMPLETIONS), SCALE, 0)
    body = json.loads(made.body(0))
    assert isinstance(body["prompt"], str)
    assert "messages" not in body


def test_prompts_of_one_root_share_their_prefix_and_nothing_else() -> None:
    load = replace(LOAD, prompt=Lengths("fixed", 310), prefix=Prefix(200, 2))
    schedule = draw([load], seed=0)
    made = Prompts(schedule, ASKING, SCALE, 0)
    groups = [np.flatnonzero(schedule.root == root)[:2] for root in (0, 1)]
    (a, b), (c, _) = ([text_of(made.body(int(row))).split(" ") for row in g] for g in groups)
    assert a[:200] == b[:200]
    assert a[200:206] != b[200:206]
    assert a[:6] != c[:6]


def test_a_turn_begins_with_the_whole_prompt_of_the_turn_before() -> None:
    schedule = draw([replace(LOAD, sessions=SessionSpec(turns=5, think=1))], seed=0)
    made = Prompts(schedule, ASKING, SCALE, 0)
    session = int(np.bincount(schedule.session).argmax())
    rows = np.flatnonzero(schedule.session == session).tolist()
    texts = [text_of(made.body(row)) for row in rows]
    assert len(texts) > 2
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


def test_bodies_of_the_user_are_streamed_in_turn(tmp_path: Path) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_text(
        '{"model":"theirs","messages":[{"role":"user","content":"hé"}],"max_tokens":3}\n\n'
        '{"body":{"prompt":"x","stream":false,"stream_options":{"a":1}}}\n'
    )
    bodies = read_bodies(file, model="ours")
    first, second = (json.loads(bodies.body(row)) for row in (0, 1))
    assert first["model"] == second["model"] == "ours"
    assert first["messages"][0]["content"] == "hé"
    assert second["stream"] is True
    assert second["stream_options"] == {"a": 1, "include_usage": True}
    assert bodies.route(1) == COMPLETIONS
    assert bodies.body(2) == bodies.body(0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no request"),
        ("{}\n", "line 1: must be a request body"),
        ('{"prompt":"x"}\n', "line 1: names no model; give --model"),
        ('\n{"prompt":\n', "line 2: not JSON"),
        ("[1]\n", "line 1: must be a request body"),
    ],
)
def test_a_line_that_is_no_body_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=r"bodies\.jsonl") as caught:
        read_bodies(file, model=None)
    assert said in str(caught.value)
