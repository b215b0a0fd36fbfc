"""Queues whose waits are known on paper: the simulator must find them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from surgetank.simulation.run import simulate
from tests.simulation.build import engine, load, scenario

STEP = 0.010  # seconds for a token, whatever is in the step
ONE_AT_A_TIME = engine(max_num_seqs=1)


def waits(arrived: Any, output: Any, *, policy: str, replicas: int = 1) -> Any:
    """Seconds from each arrival to the start of its service."""
    made = scenario(
        load(arrived, output=output),
        profile=ONE_AT_A_TIME,
        policy=policy,
        replicas=replicas,
        patience_after=1e6,
        scrape_interval=1e5,
        tick_interval=1e5,
    )
    return simulate(made).requests.ttft - STEP


def agrees(samples: list[float], theory: float) -> None:
    """Within three standard errors of the seeds' mean, and those below 8 % of it."""
    mean = float(np.mean(samples))
    error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
    assert error < 0.08 * theory, (mean, error, theory)
    assert abs(mean - theory) < 3 * error, (mean, error, theory)


def exponential(mean: float, rows: int, rng: np.random.Generator) -> Any:
    """Geometric: exponential in whole tokens, exact in both its moments."""
    return rng.geometric(1 / mean, rows)


def test_mm1_waits_as_long_as_its_formula_says() -> None:
    mean, rho, found = 12.0, 0.6, []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        service = mean * STEP
        arrived = np.cumsum(rng.exponential(service / rho, 2000))
        found.append(
            float(waits(arrived, exponential(mean, 2000, rng), policy="passthrough").mean())
        )
    # Pollaczek and Khinchine with the geometric's own second moment; rho/(1-rho) E[S] in the limit.
    second = (2 - 1 / mean) / (1 / mean) * STEP**2 * mean
    agrees(found, rho / (mean * STEP) * second / (2 * (1 - rho)))
    assert rho / (1 - rho) * mean * STEP == pytest.approx(
        rho / (mean * STEP) * second / (2 * (1 - rho)), rel=0.05
    )


def test_mg1_waits_as_pollaczek_and_khinchine_say() -> None:
    rho, found, theory = 0.5, [], []
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        tokens = np.maximum(1, np.rint(8 * np.exp(0.8 * rng.standard_normal(2000)))).astype(int)
        service = tokens * STEP
        rate = rho / service.mean()
        arrived = np.cumsum(rng.exponential(1 / rate, 2000))
        found.append(float(waits(arrived, tokens, policy="passthrough").mean()))
        theory.append(rate * float((service**2).mean()) / (2 * (1 - rho)))
    agrees([a / b for a, b in zip(found, theory, strict=True)], 1.0)


def erlang_c(servers: int, offered: float) -> float:
    """Probability of having to wait: A^c/c! c/(c-A) / (sum A^k/k! + that)."""
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)


def test_mmc_waits_as_erlang_c_says() -> None:
    mean, servers, rho, found = 12.0, 4, 0.75, []
    service = mean * STEP
    for seed in range(12):
        rng = np.random.default_rng(200 + seed)
        arrived = np.cumsum(rng.exponential(service / (servers * rho), 2500))
        tokens = exponential(mean, 2500, rng)
        found.append(float(waits(arrived, tokens, policy="fifo-cap:1", replicas=servers).mean()))
    expected = erlang_c(servers, servers * rho) * service / (servers * (1 - rho))
    # Whole tokens vary a little less than the exponential: (c_s^2 + 1)/2 of it (Lee and Longton).
    agrees(found, expected * (2 - 1 / mean) / 2)


def test_a_lone_request_waits_for_nothing() -> None:
    assert waits([0.0, 10.0, 20.0], 5, policy="passthrough").tolist() == pytest.approx([0, 0, 0])
