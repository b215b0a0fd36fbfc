"""`surgetank explain --at`: one decision of the autoscaler, from its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surgetank.autoscaler.line import event_line, tick_line
from surgetank.policy.plan import Observation, ScalePlan
from surgetank.policy.pool import Start
from surgetank.policy.scaling import ScalePolicy, ScaleSpec
from tests.cli.command import surgetank

T = 1_796_206_500.0  # 2026-12-02T10:15:00Z


def row(t: float, model: str = "chat") -> dict[str, object]:
    return {"t": T + t, "now": t, "model": model, "role": "both", "advisory": False}


def seen(t: float, *, prompt: float) -> Observation:
    return Observation(
        serving=1,
        starting=0,
        standby=0,
        as_of=t,
        since=t - 1,
        arrivals=4,
        prompt_tokens=prompt,
        expected_output=400.0,
        output_tokens=300.0,
        queue_length=3,
        queue_age=0.2,
        running=8,
        outstanding_output=900.0,
    )


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines as the live policy and log write them: calm, then a burst, then its replica."""
    policy = ScalePolicy(ScaleSpec(standbys=0, max_replicas=8))
    lines: list[str] = []
    planned: list[ScalePlan] = []
    for t in range(30):
        now = float(t)
        observed = seen(now, prompt=500.0 if t < 20 else 9000.0)
        plan = policy.tick(observed, now)
        grew = bool(planned) and plan.replicas > planned[-1].replicas
        effects = [Start("chat-1", as_standby=False)] if grew and t < 23 else []
        lines.append(tick_line(row(now), observed, plan, effects))
        lines.append(tick_line(row(now, "other"), seen(now, prompt=1.0), plan, ()))
        planned.append(plan)
    lines.append(event_line(row(21.5), "crashed", "chat-0", "exit 1", ()))
    lines.append(event_line(row(5.5), "portfolio", "", "static floor of 3: 97.0%", ()))
    lines.append(event_line(row(81.0), "became_ready", "chat-1", "", ()))
    lines.sort(key=lambda line: json.loads(line)["t"])
    path = tmp_path_factory.mktemp("decisions") / "decisions.jsonl"
    path.write_text("".join(f"{line}\n" for line in [*lines, "{broken", '{"id":"a record"}']))
    return path


def grown(log: Path) -> float:
    """When the first replica was started, seconds after T."""
    rows = [json.loads(line) for line in log.read_text().splitlines() if '"do":"start"' in line]
    return float(rows[0]["t"]) - T


def test_it_says_by_which_choice_of_the_portfolio_a_later_decision_was_made(log: Path) -> None:
    def told(after: float) -> str:
        return surgetank("explain", str(log), "--at", str(T + after)).stdout

    assert "portfolio" not in told(4.0)
    assert "Just before: portfolio (static floor of 3: 97.0%)" in told(6.1)
    later = told(20.0)
    assert "Just before" not in later
    assert "By settings of the portfolio's choice: portfolio (static floor of 3: 97.0%)" in later
    assert later.count("static floor of 3") == 1  # the pool of the other model has none


def test_a_decision_is_told_with_its_inputs_reasons_and_what_came_of_it(log: Path) -> None:
    at = grown(log)
    done = surgetank("explain", str(log), "--at", str(T + at + 0.5))
    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert "0.5 s before the time asked" in told
    assert "It saw 1 serving, 0 starting, 0 standby" in told
    assert "9,000 prompt tokens" in told
    assert "more than the tick before" in told
    assert "Because: work of the last" in told
    assert "[demand]" in told
    assert "Considered, and did not decide" in told
    assert "It did: start chat-1." in told
    assert f"Later: chat-1 became ready, {81 - at:.1f} s after this decision." in told
    assert "unknown: kv_held" in told


def test_json_has_the_line_itself_of_every_pool(log: Path) -> None:
    at = grown(log)
    found = json.loads(surgetank("explain", str(log), "--at", str(T + at), "--json").stdout)
    by_pool = {pool["pool"]: pool for pool in found["pools"]}
    assert set(by_pool) == {"chat/both", "other/both"}
    chat = by_pool["chat/both"]
    assert chat["plan"]["replicas"] > chat["plan_before"]["replicas"]
    assert chat["reasons"][0]["signal"]
    assert chat["rejected"]
    assert chat["observation"]["prompt_tokens"] == 9000.0
    assert chat["came_of_it"]["chat-1"]["event"] == "became_ready"


def test_what_happened_since_the_tick_before_is_told(log: Path) -> None:
    told = surgetank("explain", str(log), "--at", str(T + 22.2)).stdout
    assert "Just before: chat-0 crashed (exit 1)" in told


@pytest.mark.parametrize("text", ["10:15:05", "2026-12-02T10:15:05", "2026-12-02T11:15:05+01:00"])
def test_a_time_may_be_a_date_or_a_time_of_day(log: Path, text: str) -> None:
    told = surgetank("explain", str(log), "--at", text).stdout
    assert "decided at 2026-12-02 10:15:05.000Z" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--at", "soon"), "--at soon: must be a time such as"),
        (("--at", "2026-12-01T00:00:00"), "are from 2026-12-02 10:15:00.000Z to"),
        (("--at", "10:15:00", "--request", "x"), "one"),
        ((), "--at TIME"),
    ],
)
def test_a_mistake_is_one_line(log: Path, arguments: tuple[str, ...], told: str) -> None:
    done = surgetank("explain", str(log), *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_without_decisions_is_named(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text('{"id":"a","arrived":1.0}\n')
    done = surgetank("explain", str(file), "--at", "10:15:00")
    assert done.returncode == 2
    assert "holds no decisions" in done.stderr


def test_a_forecast_is_told_with_the_interval_of_the_errors_before_it(tmp_path: Path) -> None:
    """The last value is foretold for 60 s on; every 100 s the rate turns, 500 to 900 or back."""
    policy = ScalePolicy(ScaleSpec(standbys=0))
    lines = []
    for t in range(400):
        observed = seen(float(t), prompt=900.0 if t // 100 % 2 else 500.0)
        lines.append(tick_line(row(float(t)), observed, policy.tick(observed, float(t)), ()))
    file = tmp_path / "decisions.jsonl"
    file.write_text("".join(f"{line}\n" for line in lines))
    arguments = ("explain", str(file), "--at", str(T + 395), "--json")
    pool = json.loads(surgetank(*arguments).stdout)["pools"][0]
    assert pool["forecast"] == pytest.approx(900.0)
    assert pool["forecast_between"] == pytest.approx([500.0, 1300.0])
    assert "500 to 1,300 by 90% of the errors" in " ".join(pool["sentences"])
    early = surgetank("explain", str(file), "--at", str(T + 30)).stdout
    assert "too few forecasts came before it" in early
