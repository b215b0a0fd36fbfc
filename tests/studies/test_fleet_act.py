"""The second act's numbers, verdict, tables and picture."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from surgetank.cli import demo_fleet
from surgetank.studies.fleet_demo.act import SIDES, verdict
from surgetank.studies.fleet_demo.picture import svg
from surgetank.studies.fleet_demo.pulse import NOISY, QUIET
from surgetank.studies.fleet_demo.run import View
from tests.studies.fleet import AT, act, sample


def test_the_json_has_its_stable_names() -> None:
    out = json.loads(json.dumps(act().as_json(), allow_nan=False))
    assert out["onset_to_standby_s"] == pytest.approx(AT + 3.25 - act().onset)
    assert out["decision_to_standby_s"] == pytest.approx(0.25)
    for name in SIDES:
        side = out[name]
        assert set(side) == {"tenants", "wasted_tokens", "replica_seconds", "replicas"}
        assert set(side["replicas"]) == {"start", "peak", "end"}
        for tenant in (QUIET, NOISY):
            row = side["tenants"][tenant]
            ended = row["completed"] + row["refused"] + row["abandoned"] + row["failed"]
            assert row["requests"] == ended == 2
            assert set(row["ttft"]) == {"p50", "p95", "p99"}
            assert sum(phase["requests"] for phase in row["phases"].values()) == 2
    ours = out["surgetank"]
    assert ours["tenants"][QUIET]["attainment"] == 1.0
    assert ours["tenants"][NOISY]["refused"] == 1
    assert ours["tenants"][NOISY]["phases"]["base"]["attainment"] is None
    assert ours["replica_seconds"] == pytest.approx(3 * 3 + 4 * 3 + 3 * 4)
    assert ours["replicas"] == {"start": 3, "peak": 4, "end": 3}
    assert out["plain"]["wasted_tokens"] == 4
    assert out["plain"]["tenants"][QUIET]["attainment"] == 0.5
    assert out["plain"]["replica_seconds"] == 40.0
    assert out["fair"]
    assert out["trusted"]


def test_the_verdict_says_what_the_numbers_say() -> None:
    text = verdict(act())
    assert "100.0% of the quiet tenant's first tokens came within 2 s (50.0% with" in text
    assert "33 replica-seconds, standbys counted, against 40 of the plain proxy's 4" in text
    assert "had 1 of 2 requests served (plain: 2)" in text
    assert "0.25 s after the decision" in text


def test_the_verdict_claims_nothing_when_the_plain_side_had_less() -> None:
    assert verdict(act(plain=3)).startswith("No comparison: Surgetank used 33 replica-seconds")


def test_the_verdict_claims_nothing_when_the_sender_was_late() -> None:
    assert verdict(act(lag=0.051)).endswith("are not to be trusted.")


def test_the_verdict_admits_when_it_did_not_help() -> None:
    assert verdict(act(swapped=True)).startswith("Surgetank did not help here: 50.0%")


def test_an_act_without_a_promotion_says_so() -> None:
    none = replace(act(), promoted=[])
    assert none.as_json()["onset_to_standby_s"] is None
    assert verdict(none).endswith("No standby was promoted.")


def test_the_tables_show_every_tenant_and_phase_both_ways_in_80_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    demo_fleet.show(act())
    text = capsys.readouterr().out
    assert text.count("Surgetank") >= 8
    assert text.count("plain") >= 8
    for word in (QUIET, NOISY, "base", "burst", "recovery", "100.0%", "50.0%", "33 replica-sec"):
        assert word in text
    assert "Streams cut by scaling down: 0." in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_live_line_says_phase_rate_and_replicas_of_both_sides() -> None:
    view = View("burst", 21.4, 75.0, 36.0, sample(0, 3, 1, refilling=2, queued=40), 6, sent=50)
    view.alive = {"surgetank": 64, "plain": 20}
    assert demo_fleet.line(view) == (
        "burst 21/75 s, 36/s | Surgetank 3 serving 1 standby 2 starting, 64 alive "
        "| plain 6, 20 alive"
    )
    assert demo_fleet.line(View("pilot")) == "pilot"


def test_without_a_terminal_the_progress_is_a_line_for_each_phase(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with demo_fleet.watching() as watch:
        watch(View("starting"))
        for second in range(12):
            watch(View("burst", float(second), 75.0, sent=1, page="http://127.0.0.1:1"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "starting",
        "Live page: http://127.0.0.1:1",
        "burst 0/75 s, 0/s",
        "burst 10/75 s, 0/s",
    ]


def test_the_picture_is_one_well_formed_svg_with_a_mark_for_each_quiet_request() -> None:
    drawn = act()
    text = svg(drawn)
    root = ET.fromstring(text)  # noqa: S314 - our own text
    space = "{http://www.w3.org/2000/svg}"
    marks = [e for e in root.iter(f"{space}circle") if e.get("class") == "ours"]
    assert len(marks) == len(drawn.sides["surgetank"].of(QUIET)) + 1  # and one in the key
    crosses = [e for e in root.iter(f"{space}path") if e.get("class") == "plain"]
    assert len(crosses) == len(drawn.sides["plain"].of(QUIET)) + 1
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text
    title = root.find(f"{space}title")
    assert title is not None
    assert "100.0% and 50.0%" in (title.text or "")
