"""Fuzz what reads the wire with atheris: `make fuzz-wire`, or one target by hand.

Targets: `http` (requests, responses), `sse` (streams of both dialects), `body` (JSON requests);
what must hold stands in wire_checks.py. Seeds and what was found are tests/data/fuzz_wire/TARGET,
which the suite reads too.

    PYTHONPATH=src:bench build/fuzz/bin/python bench/fuzz_wire.py http -max_total_time=600 CORPUS
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["surgetank.wire"]):
    from wire_checks import CHECKS, event_reader

SEEDS = Path(__file__).parents[1] / "tests" / "data" / "fuzz_wire"


def sow(target: str, corpus: Path) -> None:
    """Put the seeds into an empty corpus."""
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):
        for seed in sorted((SEEDS / target).iterdir()):
            shutil.copy(seed, corpus / seed.name)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in CHECKS:
        sys.exit(f"name a target: {', '.join(CHECKS)}")
    name = sys.argv.pop(1)
    for folder in [Path(arg) for arg in sys.argv[1:] if not arg.startswith("-")][:1]:
        sow(name, folder)

    def check(data: bytes) -> None:
        CHECKS[name](data)
        if name == "sse":
            event_reader(data)

    atheris.Setup(sys.argv, check)
    atheris.Fuzz()
