"""How true the forecasts are that the fleet is scaled by: coverage, and loss beside single ones.

    python bench/forecasting.py [--traces FOLDER] [--seeds 0,1] [--horizons 20,60]

Every kind of the arena's workloads and, where given, two public traces: the first half teaches, the
second is judged, as in `surgetank forecast`. Exit 1 when pooled coverage of the 95 % quantiles is
not within 93-97 %, a bound is not finite, or the pooled loss is more than 5 % above that of the
best single forecaster that is there for every series.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from surgetank.simulation.arena.workloads import AZURE, SCENARIOS, draw
from surgetank.simulation.logs import read_trace
from surgetank.traffic.backtest import BEST, Backtest, backtest
from surgetank.traffic.burstiness import Accumulator
from surgetank.traffic.forecast import named
from surgetank.traffic.rates import rates
from surgetank.traffic.trace import Batch, Source

TRACES = (AZURE, "mooncake_conversation.jsonl.gz")
STEPS = 12  # of a horizon, as the command has it


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--traces", type=Path, help="folder of the public traces")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--horizons", default="20,60", help="seconds")
    asked = parser.parse_args(arguments)
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    right = True
    for horizon in map(float, asked.horizons.split(",")):
        found = [judge(name, batch, horizon) for name, batch in _series(seeds, asked.traces)]
        right &= tell(found, horizon)
    return 0 if right else 1


def _series(seeds: Sequence[int], traces: Path | None) -> Iterator[tuple[str, Batch]]:
    for name in SCENARIOS:
        for seed in seeds:
            yield f"{name}, seed {seed}", Batch(np.asarray(draw(name, seed).workload.arrived))
    for file in TRACES:
        if traces is None:
            return
        yield file, Batch(read_trace(str(traces / file), None, ()).batch.arrived)


def judge(name: str, batch: Batch, horizon: float) -> Backtest:
    """Back-test one log; the rhythm that its first half shows is one of the forecasters."""
    step = max(1.0, horizon / STEPS)
    series = rates(batch, step, "requests", top=0)
    half = Accumulator(counts_only=True)
    half.add(batch.take(batch.arrived < (batch.arrived.min() + batch.arrived.max()) / 2))
    pulse = half.analyse(Source(path="", format="")).pulse if half.requests else None
    kinds = named(len(series.total) * step, [] if pulse is None else [pulse.period_s])
    return backtest(name, series.total, kinds, step=step, horizon=horizon, first=series.first)


def tell(found: Sequence[Backtest], horizon: float) -> bool:
    """Print the pooled figures; whether they are as they should be."""
    told = sum(b.mix.forecasts for b in found)
    coverage = sum((b.mix.coverage or 0.0) * b.mix.forecasts for b in found) / told
    finite = all(bool(np.isfinite(b.upper[~np.isnan(b.upper)]).all()) for b in found)
    pooled: dict[str, list[float]] = defaultdict(list)
    for b in found:
        for j in b.judged:
            if j.pinball is not None:
                pooled[j.forecaster].append(j.pinball / b.mean)
    whole = {n: sum(losses) for n, losses in pooled.items() if len(losses) == len(found)}
    best = min((n for n in whole if n != BEST), key=whole.__getitem__)
    ratio = whole[BEST] / whole[best]
    own = [(b.best_single.pinball or 0.0) / b.mean for b in found if b.best_single is not None]
    single = [
        ((b.mix.pinball or 0.0) / (b.best_single.pinball or 1.0), b.series)
        for b in found
        if b.best_single is not None
    ]
    print(f"{horizon:g} s ahead, {len(found)} series, {told} forecasts: coverage {coverage:.1%}")
    print(f"  bounds {'finite' if finite else 'NOT FINITE'}")
    print(f"  loss {ratio:.2f}x that of {best}, the best single one that every series has")
    print(f"  {whole[BEST] / sum(own):.2f}x that of each series' own best single one, pooled;")
    print(f"  at most {max(single)[0]:.2f}x ({max(single)[1]})")
    return 0.93 <= coverage <= 0.97 and finite and ratio <= 1.05


if __name__ == "__main__":
    raise SystemExit(main())
