"""Pulses on a real llama.cpp server, straight and through the gateway, and the comparison.

    python bench/llama_pulses.py FOLDER [--duration 144]

Writes direct.json, gateway.json (run files), a page for each and compare.html into FOLDER, and
prints the two reports and the comparison that docs/guides/load.md shows. Takes about five minutes.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import uvloop

from surgetank.loadtest import reportscreen, verdictscreen
from surgetank.loadtest.report import report
from surgetank.loadtest.reportpage import page
from surgetank.loadtest.runfile import write_run
from surgetank.loadtest.verdict import Threshold, compare
from surgetank.loadtest.verdictpage import page as compared_page
from surgetank.report.files import write_whole
from surgetank.report.page import html
from surgetank.report.terminal import console
from surgetank.studies.llama_pulses import Setup, run_pulses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--duration", type=float, default=144.0)
    parser.add_argument("--base", type=float, default=0.5)
    parser.add_argument("--peak", type=float, default=12.0)
    parser.add_argument("--max-lag", type=float, default=20.0, help="milliseconds")
    asked = parser.parse_args()
    usual = Setup()
    pulses = replace(usual.pulses, duration=asked.duration, base=asked.base, peak=asked.peak)
    setup = replace(usual, pulses=pulses, max_lag=asked.max_lag / 1000)
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="surgetank-pulses-") as work:
        runs = uvloop.run(run_pulses(Path(work), setup))
    out = console()
    for way, run in runs.items():
        write_run(asked.folder / f"{way}.json", run)
        found = report(run)
        write_whole(asked.folder / f"{way}.html", html(page(run, found)))
        out.print(f"\n=== {way}\n")
        reportscreen.show(found, out)
    direct, gateway = runs["direct"], runs["gateway"]
    verdict = compare(direct, gateway, Threshold(), names=("direct", "gateway"))
    write_whole(asked.folder / "compare.html", html(compared_page(direct, gateway, verdict)))
    out.print("\n=== compare\n")
    verdictscreen.show(verdict, out)


if __name__ == "__main__":
    main()
