"""Gaps between tokens: added up by tenant and phase, told as percentiles and histograms."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from surgetank.loadtest import histograms
from surgetank.loadtest.phases import BASE, ORDER, PULSE, locate
from surgetank.loadtest.report import report
from surgetank.loadtest.reportpage import page
from surgetank.loadtest.runfile import Run, decode, encode
from surgetank.loadtest.tokengaps import TokenGaps, itl
from surgetank.policy.gaps import count_gaps, flattened
from surgetank.report.page import html
from tests.loadtest import rehearsed
from tests.loadtest.test_report import told


def _run() -> Run:
    """Gaps of 10 ms in the calm and 40 ms in pulses, ten tokens each; one in a hundred of 1 s."""
    run = rehearsed.run(tenants=("amber", "blue"))
    phase, _ = locate(run.phases, run.samples.scheduled)
    seen = []
    for row, where in enumerate(phase.tolist()):
        gap = 0.04 if where == ORDER.index(PULSE) else 0.01
        gaps = [gap] * 8 + [1.0 if row % 11 == 0 else gap]
        seen.append(flattened(count_gaps(np.cumsum([0.0, *gaps]).tolist(), 10)))
    return replace(run, gaps=TokenGaps.counted(seen, run.samples.tenant.codes, phase))


def test_percentiles_of_each_phase_and_tenant_are_those_of_its_gaps() -> None:
    found = report(_run())
    base, pulse, _ = found.phases
    assert (base.itl.p50, pulse.itl.p50) == pytest.approx((0.010, 0.040), rel=0.045)
    assert base.itl.p95 == base.itl.p50
    assert base.itl.p99 == pytest.approx(1.0, rel=0.045)
    assert [t.gaps for t in found.tenants] == [9 * t.requests for t in found.tenants]
    assert found.whole.gaps == 9 * found.requests


def test_text_page_and_json_tell_them() -> None:
    run = _run()
    found = report(run)
    text, whole = told(found), html(page(run, found))
    for said in ("ITL P95", "gaps between tokens"):
        assert said in text
        assert said in whole
    assert "Gaps between tokens, by phase" in whole
    assert "How many cycles took how long to recover" in whole
    kept = json.loads(json.dumps(found.to_json(), allow_nan=False))
    itl_ = kept["itl_histograms"]
    assert itl_.keys() == {"base", "pulse", "recovery", "all"}
    assert sum(itl_["all"]["counts"]) == found.whole.gaps
    assert len(itl_["base"]["edges"]) == len(itl_["base"]["counts"]) + 1
    assert sum(kept["recovery_histogram"]["counts"]) == found.recovery.cycles


def test_a_run_without_gaps_has_no_table_of_them() -> None:
    run = rehearsed.run()
    found = report(run)
    assert "ITL P95" not in told(found)
    assert "Gaps between tokens" not in html(page(run, found))
    assert (found.whole.gaps, found.whole.itl.p50, found.itl_histograms) == (0, None, {})


def test_they_are_in_the_run_file_and_an_older_one_has_none() -> None:
    run = _run()
    data = encode(run)
    again = decode(data)
    assert report(again).whole.itl == report(run).whole.itl
    older = json.loads(data)
    del older["token_gaps"]
    assert len(decode(json.dumps(older).encode()).gaps) == 0


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("bin", [999], "token_gaps.bin: must be from 0 to 184"),
        ("phase", [7], "token_gaps.phase: must be from -1 to 2"),
        ("tenant", [-1], "token_gaps.tenant: must be from 0 to 1"),
        ("count", [-5], "token_gaps.count: must be >= 0"),
        ("count", [1, 2], "columns of"),
    ],
)
def test_a_damaged_file_is_told_in_words(name: str, values: list[int], message: str) -> None:
    file = json.loads(encode(_run()))
    file["token_gaps"] = {"tenant": [0], "phase": [0], "bin": [3], "count": [2]} | {name: values}
    with pytest.raises(ValueError, match=message):
        decode(json.dumps(file).encode())


def test_gaps_outside_the_phases_count_in_the_whole_alone() -> None:
    gaps = TokenGaps.counted(
        [(5, 2), (5, 1, 9, 4), ()], np.array([0, 1, 1], np.int32), np.array([0, -1, 1], np.int8)
    )
    assert gaps.by_bin()[[5, 9]].tolist() == [3, 4]
    assert gaps.by_bin(gaps.phase == ORDER.index(BASE)).sum() == 2
    assert itl(gaps.by_bin(gaps.tenant == 0), 0.5) == itl(gaps.by_bin(), 0.1)
    assert itl(TokenGaps.none().by_bin(), 0.5) is None


def test_a_histogram_has_round_bins_and_leaves_nothing_out() -> None:
    values = np.array([0.0, 0.49, 0.5, 3.2, 5.0, np.nan])
    found = histograms.of_seconds(values)
    assert found is not None
    assert found.edges == tuple(0.5 * i for i in range(12))
    assert found.counts == (2, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1)
    assert found.middles[0] == 0.25
    assert histograms.of_seconds(np.array([np.nan])) is None
    nothing = histograms.of_seconds(np.zeros(4))
    assert nothing is not None
    assert nothing.counts == (4,)


def test_a_histogram_of_gaps_begins_and_ends_with_one() -> None:
    by_bin = TokenGaps.none().by_bin()
    assert histograms.of_gaps(by_bin) is None
    by_bin[[0, 3, 184]] = (1, 2, 5)
    whole = histograms.of_gaps(by_bin)
    assert whole is not None
    assert len(whole.edges) == len(whole.counts) + 1 == 186
    assert whole.edges == tuple(sorted(whole.edges))
    by_bin[[0, 184]] = 0
    one = histograms.of_gaps(by_bin)
    assert one is not None
    assert one.counts == (2,)
    assert one.edges[0] < one.middles[0] < one.edges[1]
