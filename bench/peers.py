"""Other gateways as rows of the benchmark: three Rust routers, and LiteLLM.

Each is started as its documentation says, with its defaults, in one process, on connections to the
engine that are kept alive.
Each lives in an environment of its own, `build/peers/NAME` (`make peers`), or in a folder of such
environments named by SURGETANK_PEERS. They are asked for by name: `--proxies nginx,surgetank,smg`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = Path(os.environ.get("SURGETANK_PEERS", ROOT / "build" / "peers"))
KEY = "sk-bench-2f7c1d9a4b8e4c55a0d3"  # LiteLLM's master key: it checks one as ours does
SLOW = frozenset({"litellm"})  # asked first how much they bear; what is told is per request anyway
KEEP_ALIVE = 600  # seconds: LiteLLM closes what is idle for 5 s, as slow peers' connections are
LITELLM_ENVIRONMENT = (
    "REPEATED_STREAMING_CHUNK_LIMIT=1000000000",  # it ends a stream of 100 chunks that are alike
    "LITELLM_LOCAL_MODEL_COST_MAP=True",  # it asks the Internet for prices before it listens
)
START_SECONDS = 180.0  # LiteLLM imports for 20 s on a slow core, for longer on a busy one


def python_of(name: str) -> Path:
    """Where a peer's interpreter should be."""
    return FOLDER / name / "bin" / "python"


def version_of(name: str) -> str:
    """Its package's version, asked of its own environment; empty when there is none."""
    code = f"from importlib.metadata import version; print(version({name!r}))"
    python = python_of(name)
    if not python.exists():
        return ""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


ROUTERS = {
    "vllm-router": ("vllm-router",),
    "sglang-router": ("sglang-router", "launch"),
    "smg": ("smg", "launch"),
}
NAMES = (*ROUTERS, "litellm")


def router(name: str, upstream: int, port: int, metrics: int) -> list[str]:
    """The command of one of the three routers: they are of one family and take the same options.

    Round robin is their cheapest policy; with one engine there is nothing to choose anyway.
    """
    program, *rest = ROUTERS[name]
    return [
        *(str(python_of(name).with_name(program)), *rest),
        *("--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--worker-urls", f"http://127.0.0.1:{upstream}"),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
    ]


def litellm_config(upstream: int) -> str:
    """Its configuration: one deployment, and its own way of checking a key."""
    return f"""\
model_list:
  - model_name: bench
    litellm_params:
      model: openai/bench
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: none
general_settings: {{master_key: {KEY}}}
"""
