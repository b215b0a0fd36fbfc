"""Figures against the table of known streams, against theory, and on streams that break things."""

from __future__ import annotations

import json
import re
from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from surgetank.traffic import arrivals
from surgetank.traffic.agents import AgentSpec, agent_sessions
from surgetank.traffic.analysis import Analysis
from surgetank.traffic.burstiness import Accumulator, analyse
from surgetank.traffic.dispersion import index_of_dispersion, poisson_band
from surgetank.traffic.lengths import LengthSpec, trace_of, trace_of_tenants
from surgetank.traffic.trace import Batch, Labels, Trace
from tests.traffic.streams import azure_code, mooncake, needs_traces, trace


def idc(analysis: Analysis, *windows: int) -> list[float | None]:
    return [analysis.idc.requests[str(w)] for w in windows]


# ---- the table of known streams -----------------------------------------------------------------


@needs_traces
def test_azure_code_has_the_figures_of_the_table() -> None:
    analysis = analyse(azure_code())
    assert analysis.rate.mean == pytest.approx(2.57, rel=0.02)
    assert analysis.cv_1s == pytest.approx(2.27, rel=0.02)
    assert analysis.poisson_cv_1s == pytest.approx(0.62, rel=0.02)
    assert analysis.peak_to_mean["1"] == pytest.approx(26, rel=0.02)
    assert idc(analysis, 1, 10, 60) == pytest.approx([13, 72, 167], rel=0.02)
    assert analysis.verdict.shape in {"clumps", "pulses"}
    assert len(analysis.episodes) > 5
    assert analysis.burst_seconds is not None


@needs_traces
def test_mooncake_conversation_is_an_artefact_of_its_stamps() -> None:
    forced = analyse(mooncake("conversation"), force=True)
    assert forced.rate.mean == pytest.approx(3.40, rel=0.02)
    assert forced.cv_1s == pytest.approx(1.52, rel=0.02)
    assert forced.poisson_cv_1s == pytest.approx(0.54, rel=0.02)
    assert forced.peak_to_mean["1"] == pytest.approx(8.2, rel=0.02)
    assert idc(forced, 1, 10, 60) == pytest.approx([7.9, 2.1, 3.0], rel=0.02)
    assert forced.verdict.shape == "quantised"

    analysis = analyse(mooncake("conversation"))
    assert analysis.resolution_s == pytest.approx(3.0, rel=0.001)
    assert analysis.verdict.shape == "quantised"
    assert idc(analysis, 1, 2, 5) == [None, None, None]
    assert idc(analysis, 10, 60) == pytest.approx([2.1, 3.0], rel=0.02)
    assert analysis.cv_1s is None
    assert analysis.peak_to_mean["1"] is None
    assert analysis.rate.p99 is None
    assert analysis.rate.mean == pytest.approx(3.40, rel=0.02)
    assert "steps of 3 s" in analysis.refused["idc.5"]
    assert analysis.interarrival is None
    assert "coarser than the mean gap of 0.294 s" in str(analysis.interarrival_refused)
    assert [line.window_s for line in analysis.series.rates] == [10, 60]


@needs_traces
def test_steps_show_in_counts_alone() -> None:
    whole = mooncake("conversation")
    accumulator = Accumulator(counts_only=True)
    accumulator.add(whole.batch)
    counted = accumulator.analyse()
    assert counted.resolution_s == 3.0
    assert counted.verdict == analyse(whole).verdict
    assert idc(counted, 1, 2, 5) == [None, None, None]


@needs_traces
def test_mooncake_synthetic_is_poisson() -> None:
    analysis = analyse(mooncake("synthetic"))
    assert analysis.rate.mean == pytest.approx(3.91, rel=0.02)
    assert analysis.cv_1s == pytest.approx(0.53, rel=0.02)
    assert analysis.poisson_cv_1s == pytest.approx(0.51, rel=0.02)
    assert analysis.peak_to_mean["1"] == pytest.approx(3.3, rel=0.02)
    # The table gives two digits: 1.1, 1.2, 1.3.
    assert idc(analysis, 1, 10, 60) == pytest.approx([1.1, 1.2, 1.3], abs=0.05)
    assert analysis.verdict.shape == "poisson"
    assert analysis.pulse is None


def test_the_pulse_has_the_figures_of_the_table() -> None:
    analysis = analyse(trace(arrivals.pulse(default_rng(1), 20, 80, 30, 90, 9000)))
    assert analysis.rate.mean == pytest.approx(40, rel=0.02)
    assert analysis.cv_1s == pytest.approx(0.72, rel=0.03)
    assert analysis.poisson_cv_1s == pytest.approx(0.16, rel=0.02)
    assert analysis.peak_to_mean["1"] == pytest.approx(2.8, rel=0.1)
    assert idc(analysis, 1, 10) == pytest.approx([21, 200], rel=0.05)
    assert analysis.verdict.shape == "pulses"
    assert analysis.pulse is not None
    assert analysis.periodicity is not None
    assert analysis.periodicity.autocorrelation[0][0] == 90


def test_long_prompts_that_come_together_are_told_though_requests_are_independent() -> None:
    rng = default_rng(1)
    times = arrivals.poisson(rng, 10, 3000)
    long = (times % 600) < 120
    prompt = np.where(long, 8000, 500)
    verdict = analyse(trace(times, prompt)).verdict
    assert verdict.shape == "poisson"
    assert "long prompts come together" in verdict.text
    mixed = analyse(trace(times, rng.permutation(prompt))).verdict
    assert "prompts" not in mixed.text


def test_a_trickle_of_a_week_is_poisson_though_both_naive_rules_flag_it() -> None:
    analysis = analyse(trace(arrivals.poisson(default_rng(3), 0.012, 7 * 86400)))
    assert analysis.cv_1s is not None
    assert analysis.cv_1s > 1
    assert analysis.cv_1s == pytest.approx(9.2, rel=0.03)
    assert analysis.poisson_cv_1s == pytest.approx(9.2, rel=0.03)
    assert analysis.peak_to_mean["1"] is not None
    assert analysis.peak_to_mean["1"] > 80
    assert idc(analysis, 1, 10, 60) == pytest.approx([1.0, 1.0, 1.0], abs=0.06)
    assert analysis.verdict.shape == "poisson"
    assert analysis.episodes == ()


def test_a_slow_drift_is_a_change_of_rate_without_a_burst() -> None:
    drift = arrivals.varying(
        default_rng(1), lambda t: 5.5 * (1 + 0.3 * np.sin(t / 500)), 3500, step=1
    )
    analysis = analyse(trace(drift))
    assert analysis.verdict.shape == "pulses"
    assert analysis.episodes == ()
    assert analysis.pulse is None
    assert "drifts without distinct bursts" in analysis.advice[0]


@pytest.mark.parametrize("seed", range(6))
def test_poisson_streams_of_any_rate_get_the_verdict_poisson(seed: int) -> None:
    for rate, duration in ((0.05, 20_000), (0.5, 20_000), (5, 3600), (200, 600)):
        analysis = analyse(trace(arrivals.poisson(default_rng([seed, duration]), rate, duration)))
        assert analysis.verdict.shape == "poisson", (rate, analysis.verdict.text)
        assert analysis.pulse is None
        assert len(analysis.episodes) <= 1


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rate", [1.0, 40.0])
def test_renewal_clumps_get_the_verdict_clumps_and_no_pulse(seed: int, rate: float) -> None:
    times = arrivals.gamma_renewal(default_rng(seed), rate, 40_000 / rate, cv=3)
    analysis = analyse(trace(times))
    assert analysis.verdict.shape == "clumps", analysis.verdict.text
    assert analysis.pulse is None


# ---- single figures -----------------------------------------------------------------------------


def test_idc_is_variance_over_mean_of_full_windows_only() -> None:
    """Ten full seconds 0-9 with 1, 3, 1, 3 ... requests, and a tenth that has only begun."""
    times = [s + 0.1 * i for s in range(10) for i in range(1 if s % 2 == 0 else 3)] + [10.0]
    analysis = analyse(trace(np.array(times)))
    assert idc(analysis, 1) == [pytest.approx(np.var([1, 3] * 5, ddof=1) / 2)]
    assert idc(analysis, 2, 5) == pytest.approx([0.0, np.var([9, 11], ddof=1) / 10])
    assert idc(analysis, 10) == [None]
    assert analysis.refused["idc.10"] == "fewer than two full windows of 10 s in the log"
    assert analysis.cv_1s == pytest.approx(np.std([1, 3] * 5, ddof=1) / 2)
    assert analysis.poisson_cv_1s == pytest.approx(1 / sqrt(2))
    assert analysis.excess_cv_1s == 0.0
    assert analysis.peak_to_mean["1"] == pytest.approx(1.5)
    assert analysis.rate.mean == pytest.approx(21 / 10)


def test_excess_cv_is_the_variation_of_the_rate_itself() -> None:
    """A rate of 20 or 80 with weights 2:1 has a CV of sqrt(800) / 40."""
    analysis = analyse(trace(arrivals.pulse(default_rng(1), 20, 80, 30, 90, 9000)))
    assert analysis.excess_cv_1s == pytest.approx(sqrt(800) / 40, rel=0.03)


def test_the_poisson_band_holds_99_of_100_poisson_streams() -> None:
    rng = default_rng(1)
    for windows, mean in ((12, 100), (60, 4), (600, 0.5)):
        band = poisson_band(windows)
        assert band is not None
        streams = rng.poisson(mean, (4000, windows)).astype(float)
        values = np.array([index_of_dispersion(counts) or 0.0 for counts in streams])
        outside = float(((values < band[0]) | (values > band[1])).mean())
        # 1 %, and the chi-squared is an approximation for few requests a window
        assert 0.004 <= outside <= 0.022


def test_prompt_tokens_of_a_poisson_stream_scatter_about_the_compound_reference() -> None:
    inside = 0
    for seed in range(20):
        rng = default_rng(seed)
        lengths = LengthSpec(median=400, sigma=0.8)
        analysis = analyse(trace_of(rng, arrivals.poisson(rng, 10, 1200), prompt=lengths))
        band = analysis.idc.prompt_tokens_band
        assert band is not None
        assert analysis.idc.prompt_tokens is not None
        # E[X^2] / E[X] = median exp(3 sigma^2 / 2) for a log-normal
        assert analysis.idc.prompt_tokens_reference == pytest.approx(
            400 * np.exp(1.5 * 0.64), rel=0.1
        )
        for w in ("1", "10"):
            limits, value = band[w], analysis.idc.prompt_tokens[w]
            assert limits is not None
            assert value is not None
            inside += limits[0] <= value <= limits[1]
    assert inside >= 38


def test_gaps_of_a_poisson_stream_have_the_values_of_an_exponential() -> None:
    analysis = analyse(trace(arrivals.poisson(default_rng(1), 50, 2000)))
    gaps = analysis.interarrival
    assert gaps is not None
    assert gaps.mean == pytest.approx(0.02, rel=0.02)
    assert gaps.cv == pytest.approx(1, abs=0.02)
    assert gaps.p50_to_mean == pytest.approx(log(2), rel=0.02)
    assert gaps.p99_to_mean == pytest.approx(log(100), rel=0.03)
    assert gaps.poisson["p99"] == pytest.approx(log(100) * gaps.mean)
    bars = analysis.series.gaps
    assert bars is not None
    assert bars.share.sum() == pytest.approx(1, abs=0.01)
    assert np.abs(bars.share - bars.exponential).max() < 0.01


def test_clustered_streams_have_a_large_p99_gap_not_a_small_one() -> None:
    analysis = analyse(trace(arrivals.gamma_renewal(default_rng(1), 50, 2000, cv=2)))
    assert analysis.interarrival is not None
    assert analysis.interarrival.p99_to_mean > 5.7
    assert analysis.interarrival.p50_to_mean < 0.4


@pytest.mark.parametrize("shape", [0.4, 1.0, 3.0])
def test_shapes_of_gaps_are_found_again(shape: float) -> None:
    rng = default_rng(4)
    gamma = analyse(trace(arrivals.gamma_renewal(rng, 5, 8000, shape=shape)))
    assert gamma.details.gamma_shape == pytest.approx(shape, rel=0.04)
    weibull = analyse(trace(arrivals.weibull_renewal(rng, 5, 8000, shape=shape)))
    assert weibull.details.weibull_shape == pytest.approx(shape, rel=0.04)


def test_an_mmpp_is_found_again_from_its_counts() -> None:
    spec = arrivals.Mmpp2Spec.of_dispersion(20, 40, time_scale=10, high_share=0.25)
    found = analyse(trace(arrivals.mmpp2(default_rng(2), spec, 40_000))).details.mmpp2
    assert found is not None
    assert found.low_rps == pytest.approx(spec.low, rel=0.1)
    assert found.high_rps == pytest.approx(spec.high, rel=0.1)
    assert found.low_stay_s == pytest.approx(spec.low_stay, rel=0.3)
    assert found.high_stay_s == pytest.approx(spec.high_stay, rel=0.3)


def test_tokens_have_their_quantiles_and_rates() -> None:
    rng = default_rng(1)
    times = arrivals.poisson(rng, 10, 1000)
    prompt = rng.integers(1, 4000, len(times))
    figures = analyse(trace(times, prompt)).tokens
    assert figures.output is None
    assert figures.prompt is not None
    assert figures.prompt_rate is not None
    assert figures.prompt.mean == pytest.approx(prompt.mean())
    assert figures.prompt.total == prompt.sum()
    assert figures.prompt.max == prompt.max()
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert getattr(figures.prompt, name) == pytest.approx(np.quantile(prompt, share), rel=0.006)
    assert figures.prompt_rate.mean == pytest.approx(prompt.sum() / (times[-1] - times[0]))


def test_unknown_tokens_are_no_tokens_and_zero_is_one() -> None:
    figures = analyse(trace(np.arange(6.0), np.array([-1, 0, 10, -1, 20, 0]))).tokens.prompt
    assert figures is not None
    assert figures.mean == 7.5
    assert figures.total == 30
    assert figures.p50 == 0.0


def test_rates_are_given_per_second_per_minute_and_per_ten_minutes() -> None:
    analysis = analyse(trace(arrivals.pulse(default_rng(1), 0.0001, 60, 600, 6000, 12_000)))
    assert analysis.rate.max is not None
    assert analysis.rate_per_minute is not None
    assert analysis.rate_per_10min is not None
    assert analysis.rate.max > 80
    assert analysis.rate_per_minute.max == pytest.approx(60, rel=0.1)
    assert analysis.rate_per_10min.max is not None
    assert analysis.rate_per_minute.max is not None
    assert analysis.rate_per_10min.max <= analysis.rate_per_minute.max


# ---- resolution ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "told"), [(0.001, 0.001), (0.01, 0.01), (1.0, 1.0), (3.0, 3.0), (5.0, 5.0), (60, 60)]
)
def test_the_step_of_stamps_is_found(step: float, told: float) -> None:
    times = arrivals.poisson(default_rng(1), 4, 3600) + 1.7e9
    analysis = analyse(trace(np.floor(times / step) * step))
    assert analysis.resolution_s == pytest.approx(told)


def test_exact_stamps_have_no_step() -> None:
    assert analyse(trace(arrivals.poisson(default_rng(1), 4, 3600))).resolution_s == 0.0
    assert analyse(trace(np.array([1.0, 2.0]))).resolution_s is None


def test_seconds_truncated_forbid_gaps_but_not_counts_per_second() -> None:
    times = arrivals.pulse(default_rng(1), 20, 80, 30, 90, 900)
    exact, cut = analyse(trace(times)), analyse(trace(np.floor(times)))
    assert cut.interarrival is None
    assert "coarser than the mean gap" in str(cut.interarrival_refused)
    assert cut.details.gamma_shape is None
    assert cut.idc.requests["1"] == pytest.approx(exact.idc.requests["1"], rel=0.01)
    assert cut.verdict.shape == "pulses"
    forced = analyse(trace(np.floor(times)), force=True)
    assert forced.interarrival is not None
    assert forced.interarrival.cv > 5


def test_truncated_seconds_of_a_rare_stream_do_not_forbid_its_gaps() -> None:
    times = np.floor(arrivals.poisson(default_rng(1), 0.05, 40_000))
    analysis = analyse(trace(times))
    assert analysis.resolution_s == 1.0
    assert analysis.interarrival is not None
    assert analysis.interarrival.cv == pytest.approx(1, abs=0.07)


def test_regular_arrivals_are_no_steps_of_the_log() -> None:
    analysis = analyse(trace(arrivals.regular(default_rng(1), 0.2, 5000)))
    assert analysis.verdict.shape == "poisson"
    assert "steadier than independent users" in analysis.verdict.text
    assert analysis.interarrival is not None
    assert analysis.interarrival.cv == pytest.approx(0, abs=1e-5)


# ---- tenants and sessions -----------------------------------------------------------------------


def test_the_tenant_who_bursts_has_the_variance_and_the_episodes() -> None:
    rng = default_rng(1)
    mixed = trace_of_tenants(
        rng,
        {
            "steady": arrivals.poisson(rng, 30, 3000),
            "bursty": arrivals.pulse(rng, 1, 60, 60, 600, 3000),
            "quiet": arrivals.poisson(rng, 1, 3000),
        },
    )
    analysis = analyse(mixed)
    by_name = {t.name: t for t in analysis.tenants}
    assert [t.name for t in analysis.tenants] == ["steady", "bursty", "quiet"]
    assert by_name["steady"].share > 0.75
    assert by_name["bursty"].variance_share is not None
    assert by_name["bursty"].variance_share > 0.8
    shares = [t.variance_share for t in analysis.tenants]
    assert sum(s for s in shares if s is not None) == pytest.approx(1.0)
    assert sum(t.share for t in analysis.tenants) == pytest.approx(1.0)
    assert by_name["steady"].idc["10"] == pytest.approx(1, abs=0.35)
    bursty = by_name["bursty"].idc["10"]
    assert bursty is not None
    assert bursty > 100
    assert len(analysis.episodes) == 5
    for episode in analysis.episodes:
        assert episode.tenant == "bursty"
        assert episode.tenant_share == pytest.approx(1, abs=0.15)
        assert episode.duration == pytest.approx(60, abs=4)
        assert episode.base == pytest.approx(32, rel=0.1)
        assert episode.requests == pytest.approx(59 * 60, rel=0.1)
        assert episode.tokens is not None
        assert episode.tokens > 0
    stack = analysis.series.tenants
    assert stack is not None
    assert stack.names == ("steady", "bursty", "quiet")
    drawn = sum(float(y.sum()) for y in stack.y) * stack.window_s
    assert drawn == pytest.approx(len(mixed), rel=0.01)


def test_many_tenants_are_shown_as_the_largest_and_the_others() -> None:
    rng = default_rng(1)
    streams = {f"t{i:02}": arrivals.poisson(rng, 0.2 if i else 3, 2000) for i in range(70)}
    analysis = analyse(trace_of_tenants(rng, streams))
    assert len(analysis.tenants) == 50
    assert analysis.tenants[0].name == "t00"
    assert analysis.others is not None
    assert analysis.others.share + sum(t.share for t in analysis.tenants) == pytest.approx(1)
    assert analysis.series.tenants is not None
    assert len(analysis.series.tenants.names) == 9
    assert analysis.series.tenants.names[-1] == "others"


def test_sessions_that_fan_out_are_told_from_those_that_chain() -> None:
    rng = default_rng(1)
    chains = analyse(agent_sessions(rng, AgentSpec(turns=8, fan_probability=0), 0.5, 1000)).sessions
    assert chains is not None
    assert chains.calls_mean == pytest.approx(8, rel=0.15)
    assert chains.fan_out_max == 1
    assert chains.verdict.startswith("chains")
    assert chains.fan_out_from == "durations"
    spec = AgentSpec(turns=8, fan_probability=0.5, fan_out=6)
    fans = analyse(agent_sessions(rng, spec, 0.5, 1000)).sessions
    assert fans is not None
    assert fans.fan_out_max == 6
    assert fans.verdict.startswith("fan-out")
    assert fans.tokens_per_second_p50 is not None
    assert fans.share_of_requests == 1.0


def test_fan_out_is_the_peak_of_calls_under_way() -> None:
    batch = Batch(
        np.array([0.0, 1.0, 2.0, 5.0, 9.0]),
        duration=np.array([4.0, 1.0, 4.0, 1.0, 0.0]),
        prompt_tokens=np.array([10, 10, 10, 10, 10]),
        session=Labels.of(["a", "a", "a", "a", "b"]),
    )
    figures = analyse(Trace.of([batch])).sessions
    assert figures is not None
    assert figures.fan_out_max == 2  # the second ends as the third begins
    assert figures.calls_max == 4
    assert figures.duration_p99 == pytest.approx(6, rel=0.02)
    assert figures.tokens_per_second_p50 == pytest.approx(40 / 6)


# ---- repetition ---------------------------------------------------------------------------------


def test_spikes_on_the_minute_the_hour_and_the_day_are_found() -> None:
    rng = default_rng(1)
    minute = analyse(trace(arrivals.cron_spike(rng, 2, 30, every=60, duration=3600, spread=0.3)))
    assert minute.periodicity is not None
    assert minute.periodicity.minute is not None
    assert minute.periodicity.minute.at == 0
    assert minute.periodicity.minute.ratio > 5
    hourly = arrivals.cron_spike(rng, 1, 600, every=3600, duration=6 * 3600, spread=10, offset=1800)
    hour = analyse(trace(hourly + 1.7e9 - 1.7e9 % 3600)).periodicity
    assert hour is not None
    assert hour.hour is not None
    assert hour.hour.at == 1800
    assert hour.clock == "UTC"
    day = analyse(trace(arrivals.diurnal(rng, 1, 0.9, 3 * 86400))).periodicity
    assert day is not None
    assert day.day is not None
    assert day.day.at in {13 * 3600, 14 * 3600}
    assert day.clock == "origin"


def test_poisson_has_no_rhythm() -> None:
    rhythm = analyse(trace(arrivals.poisson(default_rng(1), 5, 20_000))).periodicity
    assert rhythm is not None
    assert (rhythm.minute, rhythm.hour, rhythm.day) == (None, None, None)
    assert rhythm.autocorrelation == ()


# ---- advice -------------------------------------------------------------------------------------


def test_bursts_shorter_than_a_cold_start_are_told_with_numbers() -> None:
    times = arrivals.pulse(default_rng(1), 10, 40, 8, 60, 1200)
    advice = analyse(trace(times), capacity_delay=60).advice[0]
    assert advice.startswith("your bursts last 8")
    assert "new capacity takes 60 s: launching replicas cannot help them" in advice
    assert "for every 10 replicas" in advice
    assert "warm standbys" in advice
    assert "shed up to 7" in advice


def test_bursts_longer_than_a_cold_start_are_worth_launching_for() -> None:
    times = arrivals.pulse(default_rng(1), 10, 40, 300, 900, 5400)
    advice = analyse(trace(times), capacity_delay=60).advice[0]
    assert "your bursts last 30" in advice
    assert "launching helps after that" in advice
    assert "until then each brings 1" in advice  # 30 x 60 = 1,800 requests


# ---- what breaks programs -----------------------------------------------------------------------


def everything_is_finite_or_none(analysis: Analysis) -> None:
    json.dumps(analysis.to_json(), allow_nan=False)


@pytest.mark.parametrize(
    "times",
    [
        [],
        [5.0],
        [5.0, 5.0],
        [5.0, 9.0],
        [7.0] * 1000,
        [-3.5, -1.0, 0.0, 2.5],
        [1.7e9 + 0.5 * i for i in range(100)],
        [0.0, 1e9],
        [float(i) for i in range(3)],
    ],
    ids=["none", "one", "twice", "two", "one instant", "negative", "regular", "far", "three"],
)
@pytest.mark.parametrize("force", [False, True])
def test_odd_streams_have_figures_or_reasons_and_never_an_exception(
    times: list[float], *, force: bool
) -> None:
    analysis = analyse(trace(np.array(times, float)), force=force)
    assert analysis.requests == len(times)
    everything_is_finite_or_none(analysis)
    assert analysis.verdict.text
    assert analysis.advice
    assert analysis.pulse is None


@settings(max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.floats(-100, 100),
            st.integers(0, 20).map(float),
            st.floats(-1e14, 1e14),
            st.sampled_from([0.0, 1.7e9, 1.7e9 + 60, np.nan, np.inf, 1e300]),
        ),
        max_size=60,
    ),
    st.booleans(),
    st.floats(0.001, 1e4),
)
def test_any_stamps_give_figures_or_reasons(
    times: list[float],
    force: bool,  # noqa: FBT001 - drawn
    delay: float,
) -> None:
    number = np.arange(len(times))
    labels = Labels((number % 3).astype(np.int32), ("a", "b", "c"))
    accumulator = Accumulator()
    accumulator.add(
        Batch(
            np.array(times, float),
            prompt_tokens=number % 5 - 1,
            output_tokens=number * 0 - 1,
            duration=np.where(number % 2, 1.5, np.nan),
            tenant=labels,
            session=labels,
        )
    )
    analysis = accumulator.analyse(capacity_delay=delay, force=force)
    everything_is_finite_or_none(analysis)
    assert analysis.requests == sum(abs(t) < 1e12 for t in times)
    assert analysis.advice


def test_one_absurd_stamp_is_counted_and_told_and_changes_no_figure() -> None:
    times = arrivals.pulse(default_rng(1), 20, 80, 30, 90, 600) + 1.7e9
    clean = analyse(trace(times))
    for absurd in (times[0] + 1e9, 0.0, times[0] - 1e9, times[-1] + 86_400.0):
        odd = analyse(trace(np.append(times, absurd)))
        assert odd.requests == len(times) + 1
        assert any("1 rows lie absurdly far" in note for note in odd.notes)
        assert odd.rate.mean == pytest.approx(clean.rate.mean, rel=0.01)
        assert odd.idc.requests["10"] == pytest.approx(clean.idc.requests["10"], rel=0.02)
        assert odd.interarrival is not None
        assert clean.interarrival is not None
        assert odd.interarrival.cv == pytest.approx(clean.interarrival.cv, rel=0.001)
        assert odd.pulse is not None
        assert odd.pulse.width_s == pytest.approx(30, rel=0.05)


def test_absurd_stamps_take_no_memory() -> None:
    accumulator = Accumulator()
    accumulator.add(Batch(np.array([0.0, 1e9, -1e9, 5e10, 1.0])))
    bins, counts = accumulator.seconds.bins()[:2]
    assert len(bins) == 5
    assert counts.sum() == 5
    assert accumulator.seconds._counts.nbytes < 1 << 20
    everything_is_finite_or_none(accumulator.analyse())


def test_times_that_are_none_are_left_out_and_counted() -> None:
    accumulator = Accumulator()
    accumulator.add(Batch(np.array([1.0, np.nan, np.inf, -np.inf, 1e300, 2.0])))
    accumulator.add(Batch(np.array([np.nan])))
    analysis = accumulator.analyse()
    assert analysis.requests == 2
    assert analysis.notes[0].startswith("5 rows have no usable time")


def test_missing_data_is_told_and_left_out() -> None:
    rng = default_rng(1)
    before, after = arrivals.poisson(rng, 20, 1000), arrivals.poisson(rng, 20, 1000) + 1600
    analysis = analyse(trace(np.concatenate([before, after])))
    assert len(analysis.holes) == 1
    assert analysis.holes[0].start == pytest.approx(1000, abs=1)
    assert analysis.holes[0].duration == pytest.approx(600, abs=2)
    assert any("taken as missing data" in note for note in analysis.notes)
    assert analysis.rate.mean == pytest.approx(20, rel=0.03)
    assert analysis.verdict.shape == "poisson"
    assert analysis.interarrival is not None
    assert analysis.interarrival.cv == pytest.approx(1, abs=0.03)


def test_silence_between_bursts_is_no_missing_data() -> None:
    analysis = analyse(trace(arrivals.pulse(default_rng(1), 0, 50, 20, 300, 3000)))
    assert analysis.holes == ()
    assert analysis.pulse is not None


def test_a_stream_of_thirty_years_is_counted_coarsely_and_says_so() -> None:
    times = arrivals.poisson(default_rng(1), 1e-6, 1e9)
    analysis = analyse(trace(times))
    assert idc(analysis, 1, 10) == [None, None]
    assert "counted per 600 s" in analysis.refused["idc.10"]
    everything_is_finite_or_none(analysis)


def test_json_has_every_promised_key_and_no_other_type() -> None:
    rng = default_rng(1)
    analysis = analyse(trace_of(rng, arrivals.pulse(rng, 5, 20, 30, 90, 900), tenant="a"))
    found = analysis.to_json()
    json.dumps(found, allow_nan=False)
    promised = {
        "source": "path format rows skipped resolution_s arrival_from",
        "rate": "mean std p50 p95 p99 max",
        "peak_to_mean": "1 10 60",
        "idc": "requests prompt_tokens",
        "interarrival": "mean p50 p99 cv",
        "tokens": "prompt output prompt_rate",
        "verdict": "shape text",
        "pulse": "base_rps peak_rps width_s period_s",
    }
    for key, inner in promised.items():
        assert set(inner.split()) <= set(found[key]), key
    flat = "span_s requests cv_1s poisson_cv_1s excess_cv_1s tenants sessions episodes advice"
    assert set(flat.split()) <= set(found)
    assert set(found["tokens"]["prompt"]) >= {"p50", "p90", "p99", "max"}
    assert set(found["idc"]["requests"]) == {"1", "2", "5", "10", "30", "60", "300", "600"}
    assert "series" not in found


def test_the_curve_to_draw_is_that_of_the_figures() -> None:
    rng = default_rng(1)
    analysis = analyse(trace_of(rng, arrivals.pulse(rng, 5, 40, 20, 120, 1200)))
    curve = analysis.series.idc_requests
    assert curve is not None
    assert curve.window_s.tolist() == [1, 2, 5, 10, 30, 60, 300, 600]
    assert curve.idc.tolist() == idc(analysis, 1, 2, 5, 10, 30, 60, 300, 600)
    assert np.all(curve.low < curve.high)
    tokens = analysis.series.idc_prompt_tokens
    assert tokens is not None
    assert tokens.reference == analysis.idc.prompt_tokens_reference
    spans = [(e.start, e.start + e.duration) for e in analysis.episodes]
    assert analysis.series.episodes == tuple(spans)
    assert len(spans) == 10


def test_curves_are_thinned_without_losing_their_peak() -> None:
    times = np.concatenate([arrivals.poisson(default_rng(1), 2, 20_000), np.full(300, 12_345.5)])
    analysis = analyse(trace(times))
    for line in analysis.series.rates:
        assert len(line.x) <= 2000
        assert len(line.x) == len(line.y)
    assert analysis.series.rates[0].y.max() == analysis.rate.max


# ---- verdict and advice -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_short_log_is_no_confident_verdict_and_never_climbs_to_itself(seed: int) -> None:
    rng = default_rng(seed)
    for rate, seconds in ((1, 30), (3, 15), (20, 4)):
        analysis = analyse(trace(arrivals.gamma_renewal(rng, rate, seconds, cv=2)))
        assert not analysis.verdict.confident
        assert analysis.verdict.text.startswith("too few requests, or too short a log,")
        assert analysis.advice[0].startswith("too little for advice")
        quoted = re.search(
            r"([\d.]+) at (\d+) s (?:to|and) ([\d.]+) at (\d+) s", analysis.verdict.text
        )
        assert quoted is None or quoted[2] != quoted[4]


@pytest.mark.parametrize("seed", range(10))
def test_a_verdict_climbs_only_upwards_and_quotes_what_is_reported(seed: int) -> None:
    rng = default_rng(seed)
    spec = arrivals.Mmpp2Spec.of_dispersion(20, 10, time_scale=5)
    for times in (
        arrivals.gamma_renewal(rng, 8, 600, cv=2.5),
        arrivals.mmpp2(rng, spec, 400),
        np.floor(arrivals.varying(rng, lambda t: 5 + 3 * np.sin(t / 200), 3000, step=1) / 3) * 3,
    ):
        analysis = analyse(trace(times))
        quoted = re.search(
            r"([\d.]+) at (\d+) s (?:to|and) ([\d.]+) at (\d+) s", analysis.verdict.text
        )
        if quoted is None:
            continue
        low, a, high, b = quoted.groups()
        if "climbs" in analysis.verdict.text:
            assert float(high) > float(low)
            assert int(b) > int(a)
        for window, value in ((a, low), (b, high)):
            assert float(value) == pytest.approx(analysis.idc.requests[window], rel=0.01)


def test_a_verdict_says_whether_the_log_is_long_enough_for_it() -> None:
    few = analyse(trace(arrivals.poisson(default_rng(1), 2, 20))).verdict
    assert (few.shape, few.confident) == ("poisson", False)
    many = analyse(trace(arrivals.poisson(default_rng(1), 2, 200))).verdict
    assert (many.shape, many.confident) == ("poisson", True)


def test_stamps_in_steps_hide_neither_the_drift_nor_the_pulses_from_the_advice() -> None:
    drift = arrivals.varying(
        default_rng(1), lambda t: 5.5 * (1 + 0.2 * np.sin(t / 500)), 3500, step=1
    )
    drifting = analyse(trace(np.floor(drift / 3) * 3))
    assert (drifting.verdict.shape, drifting.verdict.beneath) == ("quantised", "pulses")
    assert "drifts without distinct bursts" in drifting.advice[0]
    assert "finer time stamps" in drifting.advice[-1]
    steady = analyse(trace(np.floor(arrivals.poisson(default_rng(1), 5, 3600) / 3) * 3))
    assert (steady.verdict.shape, steady.verdict.beneath) == ("quantised", "poisson")
    assert "no bursts to prepare for" in steady.advice[0]


def test_a_trickle_is_advised_in_requests_not_in_fractions_of_a_rate() -> None:
    times = arrivals.poisson(default_rng(3), 0.012, 7 * 86400)
    assert "no more than 6 requests came in any 60 s" in analyse(trace(times)).advice[0]


# ---- what no row states -------------------------------------------------------------------------


def test_columns_without_a_single_value_are_no_columns() -> None:
    times = arrivals.poisson(default_rng(1), 5, 200)
    nothing = np.full(len(times), -1)
    batch = Batch(
        times,
        prompt_tokens=nothing,
        output_tokens=nothing,
        tenant=Labels.of([None] * len(times)),
        session=Labels.of(["a", "b"] * (len(times) // 2) + ["a"] * (len(times) % 2)),
    )
    found = analyse(Trace.of([batch])).to_json()
    assert found["tokens"]["prompt"] is None
    assert found["tokens"]["prompt_rate"] is None
    assert found["tokens"]["output_rate"] is None
    assert found["idc"]["prompt_tokens"] is None
    assert found["tenants"] == []
    assert found["others"] is None
    assert found["sessions"]["tokens_p50"] is None
    assert found["sessions"]["tokens_per_second_p50"] is None


def test_tenants_of_a_log_without_tokens_have_unknown_tokens() -> None:
    rng = default_rng(1)
    batch = Batch(np.sort(rng.uniform(0, 300, 400)), tenant=Labels.of(["a", "b", None, "a"] * 100))
    found = analyse(Trace.of([batch])).tenants
    assert [(t.name, t.prompt_tokens, t.output_tokens) for t in found] == [
        ("a", None, None),
        ("", None, None),
        ("b", None, None),
    ]


def test_requests_outside_every_full_window_leave_rates_unknown_not_zero() -> None:
    batch = Batch(np.array([772.512, 801.208]), tenant=Labels.of(["a", "b"]))
    analysis = analyse(Trace.of([batch]))
    assert analysis.rate.mean == pytest.approx(2 / 28.696)
    assert (analysis.rate.max, analysis.rate.p50, analysis.rate.std) == (None, None, None)
    assert analysis.refused["rate"] == "no full window of 1 s with a request in the log"
    assert analysis.tenants[1].peak_rate is None


def test_the_stack_of_tenants_falls_to_nothing_at_neither_end() -> None:
    """The log covers 6 s of its last 10 s, and 3 of its first: neither is a fall of the rate."""
    rng = default_rng(1)
    times = np.sort(rng.uniform(1007, 1496, 5000))
    batch = Batch(times, tenant=Labels.of(["a", "b"] * 2500))
    stack = analyse(Trace.of([batch])).series.tenants
    assert stack is not None
    assert stack.x[0] == 1010
    assert stack.x[-1] == 1490
    assert min(float(y.min()) for y in stack.y) > 3.3
    assert float(stack.y[0][-1] + stack.y[1][-1]) == pytest.approx(10, rel=0.3)


def test_a_fitted_pulse_is_called_pulses_however_wide_its_windows() -> None:
    """Steps of 7 s leave windows from 30 s on: the curve alone looks like clumps."""
    times = arrivals.pulse(default_rng(5), 20, 80, 60, 300, 7200)
    analysis = analyse(trace(np.floor(times / 7) * 7))
    assert analysis.pulse is not None
    assert (analysis.verdict.shape, analysis.verdict.beneath) == ("quantised", "pulses")
    assert "handfuls" not in analysis.verdict.text
    assert "the rate itself changes, every " in analysis.verdict.text


@pytest.mark.parametrize("seed", range(8))
def test_clumps_are_no_habit_of_the_minute(seed: int) -> None:
    times = arrivals.gamma_renewal(default_rng(seed), 10, 1200, cv=3)
    rhythm = analyse(trace(times)).periodicity
    assert rhythm is not None
    assert rhythm.minute is None


def test_a_job_of_a_second_every_hour_is_found_and_advised_upon() -> None:
    times = arrivals.cron_spike(default_rng(5), 5, 60, every=3600, duration=8 * 3600)
    analysis = analyse(trace(times + 1.7e9 - 1.7e9 % 3600))
    assert analysis.periodicity is not None
    assert analysis.periodicity.hour is not None
    assert analysis.periodicity.hour.at == 0
    assert "8 short bursts stand out of it all the same" in analysis.advice[1]
