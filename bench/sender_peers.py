"""Other load generators against the same server: aiperf and guidellm.

They run from environments of their own and need no model hub: a tokenizer of a few words is written
for them.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tool says of the server. Milliseconds, requests per second."""

    p50_ms: float
    p99_ms: float
    rate: float


def tokenizer(folder: Path) -> Path:
    """Write a tokenizer of 2,000 words, as the transformers library reads it."""
    words = ["[UNK]", *(f"w{n}" for n in range(2000))]
    folder.mkdir()
    description: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: n for n, word in enumerate(words)},
            "unk_token": "[UNK]",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(description))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}'
    )
    return folder


def aiperf(program: str, url: str, rate: float, seconds: float, folder: Path) -> Seen:
    """Run aiperf at a constant rate. Raises CalledProcessError with its output."""
    out = folder / f"aiperf-{rate:g}"
    settings = f"""profile --model bench --url {url} --endpoint-type chat --streaming
        --request-rate {rate:g} --request-rate-mode constant --request-count {rate * seconds:.0f}
        --isl 16 --osl 4 --extra-inputs max_tokens:4 --ui-type none""".split()
    places = ["--tokenizer", str(folder / "tokenizer"), "--output-artifact-dir", str(out)]
    _run([program, *settings, *places])
    found = json.loads((out / "profile_export_aiperf.json").read_text())
    ttft = found["time_to_first_token"]
    return Seen(ttft["p50"], ttft["p99"], found["request_throughput"]["avg"])


def guidellm(program: str, url: str, rate: float, seconds: float, folder: Path) -> Seen:
    """Run guidellm at a constant rate. Raises CalledProcessError with its output."""
    out = folder / f"guidellm-{rate:g}.json"
    settings = f"""run --backend kind=openai_http,target={url},model=bench
        --profile kind=constant,rate={rate:g} --constraint kind=max_duration,seconds={seconds:g}
        --data kind=synthetic_text,prompt_tokens=16,output_tokens=4 --disable-progress""".split()
    words = ["--tokenizer", f"kind=huggingface_auto,model={folder / 'tokenizer'}"]
    _run([program, *settings, *words, "--output", f"kind=json,path={out}"])
    found = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    ttft = found["time_to_first_token_ms"]["successful"]["percentiles"]
    return Seen(ttft["p50"], ttft["p99"], found["requests_per_second"]["successful"]["mean"])


def _run(command: list[str]) -> None:
    subprocess.run(
        command, check=True, capture_output=True, timeout=300, env=os.environ | {"NO_COLOR": "1"}
    )
