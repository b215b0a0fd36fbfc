"""ServeGen's windows: arrivals with the rate and the shape that they state, drawn with a seed."""

from __future__ import annotations

import numpy as np
import pytest

from surgetank.traffic.formats.reading import ReadOptions, UnreadableError
from surgetank.traffic.formats.registry import by_name, detect
from surgetank.traffic.formats.servegen import renewal
from tests.traffic.formats.reads import names, read, read_in_pieces
from tests.traffic.formats.test_traces import needs_traces, trace_bytes

WINDOWS = b"""client,t,rate,cv,pat,a,b
7,600,0.5,2.0,Gamma,0.25,8
7,0,0.2,1,Weibull,1.0,5
3,600,0.1,1,Gamma,1,1
"""


def test_windows_become_sorted_arrivals_of_their_clients() -> None:
    assert detect(WINDOWS).name == "servegen"
    batch, reader = read(WINDOWS)
    assert reader.arrival_from == "window"
    assert reader.account.rows == len(batch)
    assert "drawn from rates (seed 0): 3 windows" in reader.account.notes[0]
    assert np.all(np.diff(batch.arrived) >= 0)
    assert batch.prompt_tokens is None
    clients = np.array(names(batch.tenant))
    assert set(clients) == {"3", "7"}
    early = batch.arrived < 600
    assert set(clients[early]) == {"7"}
    assert batch.arrived[clients == "3"].min() >= 600
    assert batch.arrived.max() < 1200


def test_a_seed_gives_the_same_arrivals_and_another_seed_others() -> None:
    one, _ = read(WINDOWS)
    again, _ = read(WINDOWS)
    other, _ = read(WINDOWS, ReadOptions(seed=1))
    lines = WINDOWS.splitlines(keepends=True)
    cut, _ = read_in_pieces(lines, by_name("servegen"))
    assert one.arrived.tolist() == again.arrived.tolist() == cut.arrived.tolist()
    assert one.arrived.tolist() != other.arrived.tolist()


@pytest.mark.parametrize(
    ("weibull", "shape", "cv"),
    [
        (False, 1.0, 1.0),
        (False, 4.0, 0.5),
        (False, 0.25, 2.0),
        (True, 1.0, 1.0),
        (True, 0.5, 5**0.5),
    ],
)
def test_the_gaps_have_the_rate_and_the_cv_of_the_window(
    *, weibull: bool, shape: float, cv: float
) -> None:
    """CV of Gamma gaps: 1/sqrt(shape); of Weibull gaps of shape 1/2: sqrt(5)."""
    rng = np.random.default_rng(5)
    times = renewal(rng, rate=100.0, shape=shape, weibull=weibull)
    gaps = np.diff(times)
    assert len(times) == pytest.approx(60_000, rel=0.03 * max(1.0, cv))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


@pytest.mark.parametrize(("weibull", "shape"), [(False, 0.1), (False, 5.0), (True, 0.5)])
def test_short_windows_keep_the_expected_count(*, weibull: bool, shape: float) -> None:
    """An ordinary renewal process, begun with a full gap, would miss it by half the gaps' CV^2."""
    rng = np.random.default_rng(6)
    rates = [len(renewal(rng, rate=0.01, shape=shape, weibull=weibull)) for _ in range(4000)]
    standard_error = np.std(rates) / 4000**0.5
    assert abs(np.mean(rates) - 6.0) < 4 * standard_error


def test_windows_that_are_none_are_counted_with_their_line() -> None:
    bad = b"""client,t,rate,cv,pattern,a,b
1,0,x,1,Gamma,1,1
1,0,1,1,Pareto,1,1
1,0,1,1,Gamma,0,1
1,0,nan,1,Gamma,1,1
1,0,0,0,Gamma,1,1
"""
    batch, reader = read(bad)
    assert len(batch) == 0
    assert [b.line for b in reader.account.bad] == [2, 3, 4, 5]


def test_rates_of_too_many_arrivals_are_refused() -> None:
    with pytest.raises(UnreadableError, match="its rates make more than 20000000 arrivals"):
        read(b"client,t,rate,cv,pat,a,b\n1,0,50000,1,Gamma,1,1\n")


@needs_traces
def test_a_public_file_keeps_its_load() -> None:
    data = trace_bytes("servegen_multimodal_mm-image.csv.gz")
    rates = np.loadtxt(data.decode().splitlines()[1:], delimiter=",", usecols=2)
    batch, reader = read(data)
    assert reader.account.skipped == 0
    assert len(batch) == pytest.approx(rates.sum() * 600, rel=0.01)
