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
    assert result["bars"] == {}
    figures = result["figures"]["direct"]
    assert 0 < figures["reads_per_chunk"][0] <= 1.1
    assert all(0 < share < 2 for share in figures["client_share"] + figures["upstream_share"])


def test_a_missing_nginx_is_one_line_that_says_how_to_get_it(tmp_path: Path) -> None:
    done = bench("--proxies", "nginx", "--rounds", "1", path=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "bench: nginx is missing: apt-get install nginx"


def test_a_missing_peer_is_one_line_that_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SURGETANK_PEERS", str(tmp_path))
    done = bench("--proxies", "smg", "--rounds", "1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"bench: smg is not in {tmp_path / 'smg'}: ")
    assert "make peers PEERS=smg" in done.stderr


def test_another_gateway_that_is_cheaper_by_the_median_is_told() -> None:
    script = f"""
import sys
sys.path.insert(0, {str(BENCH)!r})
from bars import Figures, ahead, words
ours = Figures(request_us=[30.0, 90.0, 30.0], chunk_us=[10.0] * 3)
smg = Figures(request_us=[40.0] * 3, chunk_us=[11.0] * 3)
litellm = Figures(request_us=[20.0] * 3, chunk_us=[1.0] * 3)
print(words(ahead({{"surgetank": ours, "smg": smg}})))
print(words(ahead({{"surgetank": ours, "litellm": litellm}})))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    told = [line.split()[0] for line in done.stdout.splitlines()]
    assert told == ["kept", "kept", "MISSED"]  # of LiteLLM's chunks nothing is asked


def test_an_unknown_proxy_is_refused() -> None:
    done = bench("--proxies", "nginx,haproxy")
    assert done.returncode == 2
    assert done.stderr.startswith("bench: --proxies: haproxy is not one of ")


def judged(own: str, peer: str, more: str = "") -> subprocess.CompletedProcess[str]:
    """Judge made-up figures in a process of its own, since bench/ is no package."""
    script = f"""
import sys
sys.path.insert(0, {str(BENCH)!r})
from bars import Figures, judge, unsteady, words
figures = {{"nginx": Figures({peer}), "surgetank": Figures({own}), {more}}}
found = judge(figures)
print(words(found))
print(unsteady(figures))
sys.exit(not all(one.kept for one in found))
"""
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("request_us", "chunk_us", "kept"),
    [
        ([30.0, 90.0, 30.0], [12.0, 12.0, 12.0], True),  # one bad round is no verdict
        ([31.0, 90.0, 30.0], [12.0, 12.0, 12.0], False),
        ([10.0, 10.0, 10.0], [13.0, 13.0, 9.0], False),
    ],
)
def test_cpu_is_held_to_the_median_ratio_to_nginx(
    request_us: list[float],
    chunk_us: list[float],
    kept: bool,  # noqa: FBT001 - a parameter
) -> None:
    own = f"request_us={request_us}, chunk_us={chunk_us}"
    done = judged(own, "request_us=[10.0] * 3, chunk_us=[10.0] * 3")
    assert done.stderr == ""
    assert done.returncode == (0 if kept else 1)
    assert ("MISSED" in done.stdout) is not kept


def test_latency_is_compared_above_that_of_no_proxy() -> None:
    more = '"direct": Figures(p50_ms=[1.0])'
    assert judged("p50_ms=[1.18]", "p50_ms=[1.1]", more).returncode == 0  # 0.18 over 0.1 ms
    assert judged("p50_ms=[1.19]", "p50_ms=[1.1]", more).returncode == 1


def test_many_tenants_and_replicas_are_compared_with_one_of_each() -> None:
    more = '"surgetank-many": Figures(loaded_us=[60.0])'
    assert judged("loaded_us=[50.0]", "", more).returncode == 0
    assert judged("loaded_us=[46.0]", "", more).returncode == 1


def test_memory_and_large_prompts_have_bounds_of_their_own() -> None:
    assert judged("idle_mb=[20.0], prompt_ms=[1.0]", "").returncode == 0
    assert judged("idle_mb=[20.1], prompt_ms=[1.0]", "").returncode == 1
    assert judged("idle_mb=[20.0], prompt_ms=[1.01]", "").returncode == 1


def test_figures_of_nginx_that_spread_by_more_than_15_percent_are_no_ground_for_a_verdict() -> None:
    own = "request_us=[20.0] * 3, chunk_us=[10.0] * 3"
    steady = judged(own, "request_us=[10.0, 9.3, 10.8], chunk_us=[10.0] * 3")
    assert steady.stdout.splitlines()[-1] == "None"
    shaken = judged(own, "request_us=[10.0, 9.3, 10.9], chunk_us=[10.0] * 3")
    assert "nginx's own CPU per request spreads by 16%" in shaken.stdout.splitlines()[-1]
