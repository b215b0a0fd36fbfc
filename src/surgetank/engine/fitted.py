"""Profiles fitted to the operator tables of real GPUs: one row of `profiles/fitted.csv` each.

Rule: coefficients, KV blocks and errors come from the file; scheduler limits are the defaults of
vLLM's V1 API server for the GPU, and the stages of a cold start are orders of magnitude that are
said to be such.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

_MODELS: Final = {
    "L3.1-8B": ("llama-3.1-8b", 131072),
    "L3.1-70B": ("llama-3.1-70b", 131072),
    "Qwen3-8B": ("qwen3-8b", 40960),
    "Qwen3-32B": ("qwen3-32b", 40960),
    "Qwen3-30B-A3B": ("qwen3-30b-a3b", 40960),
}
_EXPERT_SHARE: Final = {"Qwen3-30B-A3B": 8 / 128}  # 8 of 128 experts take part in each token


class _Limits(NamedTuple):
    max_num_batched_tokens: int
    max_num_seqs: int


# vLLM V1's API server: GPUs of >= 160 GiB 16384/1024, of >= 70 GiB except A100 8192/1024, else
# 2048/256.
_LIMITS: Final = {
    "a100": _Limits(2048, 256),
    "h100": _Limits(8192, 1024),
    "h200": _Limits(8192, 1024),
    "l40s": _Limits(2048, 256),
    "b200": _Limits(16384, 1024),
}
_NVME: Final = 4.0  # GiB/s, weights read from a local disk
_PAGE_CACHE: Final = 14.0  # GiB/s, weights read again
_BLOCK: Final = 16


@cache
def _rows() -> dict[str, dict[str, str]]:
    file = resources.files("surgetank.engine") / "profiles" / "fitted.csv"
    rows = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return {_name(row): row for row in rows}


def _name(row: dict[str, str]) -> str:
    return f"{row['sys']}-{_MODELS[row['model']][0]}-{row['q']}-tp{row['tp']}"


def names() -> list[str]:
    """List the fitted profiles, such as `h100-llama-3.1-70b-bf16-tp4`."""
    return list(_rows())


def data(name: str) -> dict[str, Any]:
    """Give one profile as the table that a user's own file would hold. KeyError: not among them."""
    row = _rows()[name]
    gpu, tp, blocks = row["sys"], int(row["tp"]), int(row["blk16"])
    limits = _LIMITS[gpu]
    coefficients = ("a_ms", "b_us", "c_ns", "d_us", "e_ns", "f_ms")
    weights = float(row["wGiB"]) * tp
    return {
        "name": name,
        "step": {key: float(row[key]) for key in coefficients},
        "expert_share": _EXPERT_SHARE.get(row["model"], 0.0),
        "kv_blocks": blocks,
        "block_size": _BLOCK,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": min(_MODELS[row["model"]][1], blocks * _BLOCK),
        "cold_start": _cold_start(weights),
        "wake_s": round(0.4 + weights / 32, 1),  # sleep level 1: 0.3-0.8 s small, 3-6 s large
        "description": _description(row),
        "source": (
            f"least squares over the operator tables of aiconfigurator-core 0.12.0 (Apache-2.0),"
            f" {row['n']} points; KV blocks estimated from the memory left beside"
            f" {float(row['wGiB']):.1f} GiB of weights per GPU; limits: vLLM V1's defaults"
        ),
        "error": _error(row),
    }


def _cold_start(weights: float) -> dict[str, dict[str, float]]:
    """Stages on a node that is there, its image pulled. `weights`: GiB in all."""
    return {
        "process": {"median_s": 30.0, "sigma": 0.3},
        "weights": {
            "median_s": round(weights / _NVME, 1),
            "sigma": 0.3,
            "again_s": round(weights / _PAGE_CACHE, 1),
        },
        "compile": {"median_s": 55.0, "sigma": 0.2, "again_s": 7.0},
        "graphs": {"median_s": 20.0, "sigma": 0.3},
        "kv_profiling": {"median_s": 10.0, "sigma": 0.5},
        "register": {"median_s": 2.0, "sigma": 0.5},
    }


def is_experimental(name: str) -> bool:
    """Tell the rows that checked poorly against measured silicon."""
    row = _rows()[name]
    return row["sys"] == "b200" or (row["sys"] == "l40s" and int(row["tp"]) > 2)


def _description(row: dict[str, str]) -> str:
    gpus = "one" if row["tp"] == "1" else row["tp"]
    dtype = {"bf16": "bfloat16", "fp8": "fp8"}[row["q"]]
    return f"{_MODELS[row['model']][0]}, {dtype} weights, {gpus} {row['sys'].upper()}, vLLM V1."


def _error(row: dict[str, str]) -> str:
    fit = (
        f"fit: mean {float(row['mape']):.1f} %, 95th percentile {float(row['p95']):.0f} %,"
        f" worst {float(row['mx']):.0f} %"
    )
    advice = "expect 5-15 % unless calibrated; read kv_blocks from your engine; stages are typical"
    poor = "EXPERIMENTAL: rows of this kind checked poorly against measured silicon; "
    return f"{poor if is_experimental(_name(row)) else ''}{fit}; {advice}"
