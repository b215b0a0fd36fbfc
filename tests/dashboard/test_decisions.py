"""Which decisions are listed, and how they read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from surgetank.dashboard.decisions import Decisions, Entry
from surgetank.dashboard.observation import Plan, SourceError, read_decisions


def listed(decisions: Decisions, *lines: dict[str, Any]) -> list[Entry]:
    whole = [{"t": 1.0, "model": "m", "role": "both", **line} for line in lines]
    body = json.dumps({"v": 1, "next": len(whole), "lines": whole}).encode()
    return decisions.take(read_decisions(body).lines)


def test_a_repeated_plan_is_listed_once_and_a_changed_one_says_what_it_was() -> None:
    decisions = Decisions()
    three, five = {"plan": {"replicas": 3}}, {"plan": {"replicas": 5, "standbys": 2}}
    entries = listed(decisions, three, three, {**three, "model": "n"}, five)
    assert [(e.model, e.plan.replicas, e.before) for e in entries] == [
        ("m", 3, None),
        ("n", 3, None),
        ("m", 5, Plan(3)),
    ]
    assert listed(decisions, five) == []
    assert list(decisions.entries) == entries


def test_an_effect_is_listed_although_the_plan_stays() -> None:
    decisions = Decisions()
    plan = {"replicas": 3}
    listed(decisions, {"plan": plan})
    (entry,) = listed(decisions, {"plan": plan, "effects": [{"attach": "m-3"}]})
    assert entry.effects == [("attach", "m-3")]


def test_reasons_are_sentences_or_numbers_and_bounded() -> None:
    reasons: list[dict[str, Any]] = [
        {"signal": "ttft slope", "value": 0.41, "threshold": 0.3, "text": ""},
        {"signal": "kv", "value": None},
        {"signal": "x", "text": "y" * 5000},
    ]
    effects = [{"start": f"m-{i}"} for i in range(40)]
    plan = {"replicas": 3}
    (entry,) = listed(
        Decisions(), {"plan": plan, "reasons": reasons + reasons[:1] * 30, "effects": effects}
    )
    assert entry.reasons[:2] == ["ttft slope: 0.41 (threshold 0.3)", "kv: unknown"]
    assert len(entry.reasons[2]) == 300
    assert len(entry.reasons) == len(entry.effects) == 12
    assert entry.more == 28


def test_another_kind_of_answer_is_one_clear_line() -> None:
    with pytest.raises(SourceError, match="/decisions has version 3"):
        read_decisions(b'{"v":3,"next":0}')
    with pytest.raises(SourceError, match="/decisions is not what an autoscaler answers"):
        read_decisions(b'{"v":1}')
