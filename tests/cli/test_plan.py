"""`surgetank plan`, as its user runs it."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from surgetank.report import numbers
from surgetank.traffic import arrivals
from tests.cli.command import surgetank
from tests.gateway.processes import serve

OBJECTIVE = ("--engine", "demo-fleet", "--ttft", "1.5", "--tpot", "0.3", "--attainment", "0.9")
MEANS = ("--cold-start", "20", "--wake", "1", "--standby-cost", "0.25", "--max-replicas", "5")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens"]
    rows += [f"{t:.3f},200,100" for t in arrivals.pulse(rng, 0.5, 6.0, 10.0, 60.0, 200.0)]
    path = tmp_path_factory.mktemp("plan") / "log.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_text_json_page_and_configuration_tell_the_same(log: Path, tmp_path: Path) -> None:
    page, file = tmp_path / "plan.html", tmp_path / "surgetank.yaml"
    outputs = ("--html", str(page), "--write", str(file))
    done = surgetank("plan", str(log), *OBJECTIVE, *MEANS, "--json", *outputs)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["attainment"] >= 0.9
    text = surgetank("plan", str(log), *OBJECTIVE, *MEANS)
    sizes = (
        f"{found['base']} base + {found['elastic']} elastic + {found['standby']} standby replicas"
    )
    assert sizes in text.stdout.replace("\n", " ")
    assert numbers.percent(found["attainment"]) in text.stdout
    assert numbers.percent(found["attainment"]) in page.read_text(encoding="utf-8")
    checked = surgetank("config", "check", str(file))
    assert checked.returncode == 0, checked.stderr
    pool = yaml.safe_load(file.read_text(encoding="utf-8"))["autoscaler"]["pools"][0]
    assert pool["base"] == found["base"]
    assert pool["max_replicas"] == found["base"] + found["elastic"] + found["standby"]


def test_times_a_century_apart_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens", "0,200,100", "4000000000,200,100"]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    done = surgetank("plan", str(path), *OBJECTIVE, *MEANS)
    assert done.returncode == 2
    assert "days apart" in done.stderr.replace("\n", " ")


def test_what_cannot_be_attained_exits_with_1(log: Path) -> None:
    done = surgetank("plan", str(log), *OBJECTIVE[:2], "--ttft", "0.001", *MEANS)
    assert done.returncode == 1
    assert "cannot be attained" in done.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--attainment", "95"), "--attainment 95: must be above 0 and below 1"),
        (("--attainment", "1.0"), "--attainment 1: must be above 0 and below 1"),
        (("--ttft", "0"), "--ttft 0: must be seconds, above 0"),
        (("--ttft", "inf"), "--ttft inf: must be seconds, above 0"),
        (("--price", "inf"), "--price inf"),
        (("--price", "nan"), "--price nan"),
        (("--wake", "inf"), "--wake inf"),
        (("--wake", "-1"), "--wake -1"),
        (("--html", "same", "--write", "same"), "name two files"),
        (("--cold-start", "soon"), "--cold-start soon"),
        (("--cold-start", "=5"), "--cold-start =5"),
        (("--standby-cost", "2"), "--standby-cost 2"),
        (("--command", "vllm serve"), "{port}"),
        (("--prompt", "many"), "--prompt"),
    ],
)
def test_a_mistake_is_one_line(log: Path, arguments: tuple[str, ...], told: str) -> None:
    done = surgetank("plan", str(log), "--engine", "demo-fleet", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_log_is_never_overwritten(log: Path) -> None:
    done = surgetank("plan", str(log), "--engine", "demo-fleet", "--write", str(log))
    assert done.returncode == 2
    assert log.read_text(encoding="utf-8").startswith("arrived_at")


@pytest.mark.heavy
def test_serve_takes_the_file_as_it_is_and_answers(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    command = f"{sys.executable} -m surgetank engine --profile demo-fleet --port {{port}}"
    more = ("--write", str(file), "--command", f"{command} --model demo-fleet")
    assert surgetank("plan", str(log), *OBJECTIVE, *MEANS, *more).returncode == 0
    sections = yaml.safe_load(file.read_text(encoding="utf-8"))
    sections["autoscaler"]["state_dir"] = str(tmp_path / "state")

    async def ask() -> int:
        async with serve(tmp_path, [], **sections) as served:
            await served.ready(sections["autoscaler"]["pools"][0]["base"])
            body = {
                "model": "demo-fleet",
                "messages": [{"role": "user", "content": "hello"}],
                "max_tokens": 4,
            }
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                url = f"{served.url}/v1/chat/completions"
                return (await client.post(url, json=body)).status_code

    assert asyncio.run(ask()) == 200
