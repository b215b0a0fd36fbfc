"""The engine model beside measured silicon: 45 runs of vLLM, Llama-3.1-70B fp8 on H100.

    make silicon            # fetches the measured rows (aiconfigurator-core 0.12.0, Apache-2.0)
    python bench/silicon.py [--gpu h200] [--apart MS]

Each row is a closed loop: C clients, each sends its next request when its last has ended, 10 C
requests in all, lengths uniform in [0.8, 1.0] of the row's (that benchmark's own range). The mean
TTFT and the mean TPOT of the model are compared with those measured.

One thing is assumed: how far apart a benchmark's first C requests reach the scheduler (client and
API server handle them one by one). `--apart` 3 ms is the default; the error for 0 is printed too.
"""

from __future__ import annotations

import argparse
import csv
import random
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from surgetank.engine import profile as profiles
from surgetank.engine.literal import EventKind
from surgetank.engine.profile import EngineProfile
from surgetank.engine.replica import Replica

ROWS = Path(__file__).resolve().parents[1] / "build" / "silicon" / "aiconfigurator_core"
FILE = ROWS / "systems" / "silicon_sample.csv"
ROUNDS = 10  # requests per client
RANGE = (0.8, 1.0)  # of the nominal lengths


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run. Times in milliseconds."""

    tp: int
    prompt: int
    output: int
    clients: int
    ttft: float
    tpot: float


def measured(file: Path, gpu: str) -> list[Row]:
    """Read the runs of vLLM with Llama-3.1-70B fp8 on one kind of GPU."""
    with file.open(encoding="utf-8", newline="") as lines:
        found = [
            row
            for row in csv.DictReader(lines)
            if row["backend"] == "vllm"
            and row["model_path"] == "meta-llama/Llama-3.1-70B"
            and row["system"] == f"{gpu}_sxm"
            and row["precision"] == "fp8"
        ]
    rows = []
    for row in found:
        clients = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
        assert clients is not None, row["id"]
        rows.append(
            Row(
                int(row["tp_size"]),
                int(row["isl"]),
                int(row["osl"]),
                int(clients[1]),
                float(row["silicon_ttft_ms"]),
                float(row["silicon_tpot_ms"]),
            )
        )
    return sorted(rows, key=lambda r: (r.tp, r.prompt, r.output, r.clients))


def closed_loop(profile: EngineProfile, row: Row, apart: float) -> tuple[float, float]:
    """Run the row's benchmark on the model; give mean TTFT and mean TPOT in milliseconds."""
    engine, rng = Replica(profile), random.Random(0)
    total = row.clients * ROUNDS
    pending = [apart * i for i in range(row.clients)]
    began: dict[str, float] = {}
    first: dict[str, float] = {}
    tpot: list[float] = []

    def send(at: float) -> None:
        if len(began) < total:
            prompt = int(row.prompt * rng.uniform(*RANGE))
            output = int(row.output * rng.uniform(*RANGE))
            name = str(len(began))
            began[name] = at
            engine.add(name, prompt, output, at)

    while pending or engine.due is not None:
        due = engine.due
        if pending and (due is None or pending[0] <= due):
            send(pending.pop(0))
            continue
        assert due is not None
        for event in engine.step(due):
            if event.kind is EventKind.FIRST_TOKEN:
                first[event.id] = event.at
            elif event.kind is EventKind.FINISHED:
                tpot.append((event.at - first[event.id]) / (event.tokens - 1))
                send(event.at)
    ttft = sum(at - began[name] for name, at in first.items()) / total
    return ttft * 1e3, sum(tpot) / total * 1e3


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute relative errors."""

    rows: int
    ttft: float
    tpot: float


def compare(rows: list[Row], gpu: str, apart: float, *, show: bool = False) -> Errors:
    """Compare all rows. `apart` in seconds."""
    ttft, tpot = [], []
    for row in rows:
        profile = profiles.find(f"{gpu}-llama-3.1-70b-fp8-tp{row.tp}")
        ours = closed_loop(profile, row, apart)
        ttft.append(ours[0] / row.ttft - 1)
        tpot.append(ours[1] / row.tpot - 1)
        if show:
            print(
                f"tp{row.tp} {row.prompt:>5} + {row.output:>4} x {row.clients:>2}:"
                f"  TTFT {row.ttft:8.0f} ms, model {ours[0]:8.0f} ({ttft[-1]:+6.1%})"
                f"  TPOT {row.tpot:5.1f} ms, model {ours[1]:5.1f} ({tpot[-1]:+6.1%})"
            )
    return Errors(len(rows), _mean(ttft), _mean(tpot))


def _mean(errors: list[float]) -> float:
    return sum(map(abs, errors)) / len(errors)


def main() -> int:
    """Print the comparison; exit 1 when a mean error is above 8 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="h100", choices=("h100", "h200"))
    parser.add_argument("--apart", type=float, default=3.0, help="ms between the first requests")
    given = parser.parse_args()
    if not FILE.exists():
        print(f"no {FILE.name}: run `make silicon` first", file=sys.stderr)
        return 2
    rows = measured(FILE, given.gpu)
    for apart in sorted({0.0, given.apart}):
        shown = apart == given.apart
        errors = compare(rows, given.gpu, apart / 1e3, show=shown)
        print(
            f"{errors.rows} rows, first requests {apart:g} ms apart:"
            f" mean error of TTFT {errors.ttft:.1%}, of TPOT {errors.tpot:.1%}"
        )
    return 0 if max(errors.ttft, errors.tpot) <= 0.08 else 1


if __name__ == "__main__":
    sys.exit(main())
