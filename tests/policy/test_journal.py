"""The journal: what is written, and that it decides the same again."""

from __future__ import annotations

import json
from itertools import cycle

import pytest

from surgetank.policy.flow import FlowSpec
from surgetank.policy.journal import Journal, replay
from surgetank.policy.replica import Replica, Role, Signals
from surgetank.policy.request import Outcome, Request, Usage
from surgetank.policy.tenant import Tenant, Tier


def history() -> list[str]:
    """One of every input, refusals with drawn jitter, and an input that is wrong."""
    lines: list[str] = []
    draws = cycle([0.1, 0.9, 0.4])
    journal = Journal(
        lines.append,
        FlowSpec(max_in_flight=1, max_queued=2, queue_timeout=4.0),
        tenants=[Tenant("a", "gold", requests_per_minute=60)],
        tiers=[Tier("gold", 0, min_share=0.1)],
        models=["m"],
        draw=lambda: next(draws),
        wall_offset=1.7e9,
    )
    journal.offer(Request("early", "a", "m", 40), 0.5)
    journal.join(Replica("one", "m", slots=1, preempts=False, kv_tokens=4096), 1.0)
    journal.join(Replica("p", "m", Role.PREFILL), 1.0)
    for number in range(6):
        journal.offer(Request(f"r{number}", "ab"[number % 2], "m", 40, max_tokens=5), 1.1)
    journal.observe("one", Signals(1.0, waiting=0, kv_used=0.5), 1.2)
    journal.retry("r0", "busy", 0.5, 1.3)
    journal.advance(1.6)
    journal.first_token("r0", 1.7)
    with pytest.raises(KeyError):
        journal.finish("nobody", Outcome.COMPLETED, None, 1.8)
    journal.finish("r0", Outcome.COMPLETED, Usage(12, 5), 1.9)
    journal.abandon("r2", None, 2.0)
    journal.abandon("r1", Usage(12, 1), 2.0)
    journal.leave("one", 2.5)
    deadline = journal.next_deadline()
    if deadline is not None:
        journal.advance(deadline)
    return lines


def test_a_replay_decides_the_same() -> None:
    assert replay(history()) is None


def test_the_header_holds_all_that_was_handed_in() -> None:
    header = json.loads(history()[0])
    assert header["wall_offset"] == 1.7e9
    assert header["spec"] == {"max_in_flight": 1, "max_queued": 2, "queue_timeout": 4.0}
    assert header["tenants"] == [{"name": "a", "tier": "gold", "requests_per_minute": 60}]
    assert header["tiers"] == [{"name": "gold", "priority": 0, "min_share": 0.1}]
    assert header["models"] == ["m"]


def test_each_line_holds_input_effects_draws_and_errors() -> None:
    rows = [json.loads(line) for line in history()[1:]]
    first = rows[0]
    assert (first["do"], first["now"], first["drawn"]) == ("offer", 0.5, [0.1])
    assert first["effects"][0]["outcome"] == "no_replica"
    assert {row["do"] for row in rows} == {
        "offer", "first_token", "finish", "abandon", "retry", "join", "leave", "observe", "advance"
    }  # fmt: skip
    assert [row["args"][0] for row in rows if row.get("error") == "KeyError"] == ["nobody"]


@pytest.mark.parametrize(
    ("field", "value"), [("now", 3.9), ("effects", []), ("drawn", [0.7]), ("drawn", [])]
)
def test_the_first_line_that_differs_is_named(field: str, value: object) -> None:
    lines = history()
    number = next(i for i, line in enumerate(lines) if '"no_replica"' in line)
    row = json.loads(lines[number])
    lines[number] = json.dumps({**row, field: value})
    found = replay(lines)
    assert found is not None
    assert found.line >= number + 1
    if field != "now":
        assert found.line == number + 1


def test_numbers_that_were_drawn_and_are_not_asked_for_are_a_difference() -> None:
    lines = history()
    row = json.loads(lines[2])
    lines[2] = json.dumps({**row, "drawn": [0.5]})
    found = replay(lines)
    assert found is not None
    assert (found.line, found.got) == (3, "draws fewer numbers than were written down")


def test_a_last_line_cut_off_is_left_out_and_any_other_damage_is_an_error() -> None:
    lines = history()
    assert replay([*lines[:-1], lines[-1][:20]]) is None
    with pytest.raises(ValueError, match="line 4"):
        replay([*lines[:3], lines[3][:20], *lines[4:]])
    with pytest.raises(ValueError, match="line 1"):
        replay(lines[1:])
    with pytest.raises(ValueError, match="line 1"):
        replay([])
    with pytest.raises(ValueError, match="line 2: do = 'dance'"):
        replay([lines[0], '{"do": "dance", "args": [], "now": 0}'])


def test_a_file_of_several_lives_is_replayed_life_by_life() -> None:
    first, second = history(), history()
    assert replay([*first, *second]) is None
    assert replay([*first, first[-1][:20], *second]) is None  # the first one was killed


def test_lines_that_are_missing_are_told() -> None:
    lines = history()
    with pytest.raises(ValueError, match=r"line 3: n = 3, expected 2: lines were lost"):
        replay([*lines[:2], *lines[3:]])


def test_a_replay_decides_the_same_of_prefixes_and_sessions() -> None:
    lines: list[str] = []
    draws = cycle([0.1, 0.9, 0.4, 0.7])
    journal = Journal(
        lines.append,
        FlowSpec(max_in_flight=4, max_queued=6),
        tenants=[Tenant("a", max_sessions=4, session_tokens_per_minute=900.0)],
        draw=lambda: next(draws),
    )
    for name in ("one", "two", "three"):
        journal.join(Replica(name, "m", slots=4, kv_tokens=50_000), 0.0)
    for number in range(60):
        now = 0.1 * number
        request = Request(
            f"r{number}", "a", "m", 2400, 2400, session=f"s{number % 7}",
            prefix=(number % 3, 10 + number % 3, 100 + number),
        )  # fmt: skip
        journal.offer(request, now)
        running = [j for j in journal.flow._state.jobs.values() if j.legs]
        if number % 2 and running:
            journal.first_token(running[0].request.id, now)
            journal.finish(running[0].request.id, Outcome.COMPLETED, Usage(600, 20, 300), now)
    said = [json.loads(line) for line in lines]
    outcomes = {e.get("outcome") for row in said for e in row.get("effects", ())}
    assert {"quota_sessions", "quota_session_tokens"} <= outcomes
    assert any(row.get("drawn") for row in said)
    assert replay(lines) is None
