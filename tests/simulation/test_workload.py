"""What is sent: logs as they came, pulses as they were asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from surgetank.adapters.logs import read_log
from surgetank.errors import InputError
from surgetank.simulation.pulses import PHASES, draw_pulse, parse_senders
from surgetank.simulation.workload import Workload, from_trace, of_batch
from surgetank.traffic.pulse import parse_pulse
from surgetank.traffic.tokencounts import Lengths, parse_lengths
from surgetank.traffic.trace import UNKNOWN, Batch, Labels, Trace

FIXED = Lengths("fixed", 10)


def pulse(text: str, *, senders: str | None = None, seed: int = 0) -> Workload:
    drawn = parse_senders(senders)
    return draw_pulse(parse_pulse(text), FIXED, FIXED, senders=drawn, model="m", seed=seed)


def test_a_pulse_has_its_rates_in_each_phase() -> None:
    load = pulse("2:40:30:120:3600")
    seconds = {"base": 3600 - 2 * 30 * 30, "peak": 30 * 30, "recovery": 30 * 30}
    for i, (name, rate) in enumerate(zip(PHASES, (2.0, 40.0, 2.0), strict=True)):
        found = (load.phase == i).sum() / seconds[name]
        assert found == pytest.approx(rate, abs=4 * (rate / seconds[name]) ** 0.5)
    inside = load.arrived[load.phase == 1] % 120
    assert inside.min() >= 45
    assert inside.max() < 75


def test_a_pulse_is_the_same_for_the_same_seed_only() -> None:
    first, again, other = pulse("2:9:5:20"), pulse("2:9:5:20"), pulse("2:9:5:20", seed=1)
    assert first.arrived.tolist() == again.arrived.tolist()
    assert first.arrived.tolist() != other.arrived.tolist()
    assert (np.diff(first.arrived) >= 0).all()


def test_tenants_have_their_shares_and_rates() -> None:
    load = pulse("10:10:5:20:2000", senders="a=3,b,quiet=2/s,team*2=4")
    assert load.tenants == ("a", "b", "quiet", "team1", "team2")
    counts = np.bincount(load.tenant)
    expected = np.array([3 / 8, 1 / 8, 0, 2 / 8, 2 / 8]) * 20_000 + [0, 0, 4000, 0, 0]
    assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()


@pytest.mark.parametrize("text", ["a,a", "a=0", "a=x", "=2", "a b", "a=1/m", "a*2,a1"])
def test_tenants_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--tenants"):
        parse_senders(text)


@pytest.mark.parametrize(
    "text",
    ["1:2:3", "a:2:3:4", "1:2:4:4", "1:2:0:4", "1:0:1:4", "1:2:1:4:0", "1:nan:1:4", "9:9e9:1:4"],
)
def test_pulses_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--pulse"):
        parse_pulse(text)


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("512", 512.0),
        ("uniform:100,300", 200.0),
        ("exponential:200", 200.0),
        ("lognormal:100,0.5", 100 * np.exp(0.125)),
    ],
)
def test_token_counts_have_the_mean_they_are_asked_for(text: str, mean: float) -> None:
    lengths = parse_lengths(text, "--prompt")
    drawn = lengths.draw(40_000, np.random.default_rng(1))
    assert drawn.mean() == pytest.approx(mean, rel=0.02)
    assert lengths.mean == pytest.approx(mean)
    assert drawn.min() >= 1


def test_a_bound_of_token_counts_is_kept() -> None:
    drawn = parse_lengths("lognormal:100,2,150", "--prompt").draw(1000, np.random.default_rng(1))
    assert drawn.max() == 150


@pytest.mark.parametrize(
    "text",
    ["0", "x", "uniform:5", "uniform:9,2", "lognormal:5", "normal:5,1", "fixed:", "-3", "inf"],
)
def test_token_counts_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--prompt"):
        parse_lengths(text, "--prompt")


def test_unix_stamps_are_kept_apart_and_relative_ones_stay() -> None:
    size = np.array([5, 5])
    stamped = of_batch(Batch(np.array([1.7e9 + 0.25, 1.7e9 + 1]), size, size))
    assert (stamped.origin, stamped.arrived.tolist()) == (1.7e9, [0.25, 1.0])
    relative = of_batch(Batch(np.array([3.5, 9.0]), size, size))
    assert (relative.origin, relative.arrived.tolist()) == (0.0, [3.5, 9.0])


def test_rows_without_tokens_are_left_out_unless_output_is_told() -> None:
    rows = Batch(
        np.array([0.0, 1.0, 2.0]),
        np.array([5, UNKNOWN, 5]),
        np.array([7, 7, UNKNOWN]),
        tenant=Labels.of(["a", "b", None]),
    )
    load = from_trace(Trace.of([rows]))
    assert (len(load), load.left_out) == (1, 2)
    told = from_trace(Trace.of([rows]), output=9)
    assert (told.output.tolist(), told.left_out) == ([7, 9], 1)
    assert [told.tenants[code] for code in told.tenant] == ["a", "default"]


def test_a_log_without_tokens_says_what_is_needed() -> None:
    with pytest.raises(InputError, match="no prompt tokens"):
        from_trace(Trace.of([Batch(np.array([0.0]))]))
    with pytest.raises(InputError, match="--output"):
        from_trace(Trace.of([Batch(np.array([0.0]), np.array([5]))]))


def test_rows_without_a_priority_have_the_default_one_and_others_keep_theirs(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log.csv"
    log.write_text(
        "arrived_at,num_prefill_tokens,num_decode_tokens,priority\n"
        "0,9,9,2\n1,9,9,\n2,9,9,-1\n3,9,9,-7\n"
    )
    load = from_trace(read_log(log))
    assert load.priority is not None
    assert load.priority.tolist() == [2, 0, -1, -7]


def test_a_log_without_priorities_has_none() -> None:
    batch = Batch(
        arrived=np.arange(2.0), prompt_tokens=np.ones(2, int), output_tokens=np.ones(2, int)
    )
    assert of_batch(batch).priority is None
