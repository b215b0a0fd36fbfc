"""The benchmark itself: it measures, and says by its exit code what is missed or missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


def bench(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCH / "gateway.py", *arguments],
        env=os.environ | ({} if path is None else {"PATH": path}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_client_and_upstream_measure_one_another_without_a_proxy() -> None:
    done = bench("--proxies", "direct", "--rounds", "1", "--seconds", "0.2", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["kept"] is None
    figures = result["figures"]["direct"]
    assert 0 < figures["reads_per_chunk"][0] <= 1.1
    assert all(0 < share < 2 for share in figures["client_share"] + figures["upstream_share"])


def test_a_missing_nginx_is_one_line_that_says_how_to_get_it(tmp_path: Path) -> None:
    done = bench("--proxies", "nginx", "--rounds", "1", path=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "bench: nginx is missing: apt-get install nginx"


def test_an_unknown_proxy_is_refused() -> None:
    done = bench("--proxies", "nginx,haproxy")
    assert done.returncode == 2
    assert done.stderr.startswith("bench: --proxies: haproxy is not one of ")


@pytest.mark.parametrize(
    ("request_us", "chunk_us", "kept"),
    [
        ([40.0, 90.0, 30.0], [15.0, 15.0, 15.0], True),  # one bad round is no verdict
        ([41.0, 90.0, 30.0], [15.0, 15.0, 15.0], False),
        ([10.0, 10.0, 10.0], [17.0, 17.0, 9.0], False),
    ],
)
def test_the_verdict_is_the_median_ratio_to_nginx(
    request_us: list[float],
    chunk_us: list[float],
    kept: bool,  # noqa: FBT001 - a parameter
) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(BENCH)!r})
from gateway import Figures, verdict
peer = Figures(request_us=[10.0] * 3, chunk_us=[10.0] * 3)
ours = Figures(request_us={request_us}, chunk_us={chunk_us})
sys.exit(not verdict({{"nginx": peer, "surgetank": ours}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.returncode == (0 if kept else 1)
    assert ("MISSED" in done.stdout) is not kept
