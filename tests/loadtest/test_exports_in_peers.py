"""Exports are what the other tools take: each tool sends the schedule that was exported for it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from surgetank.loadtest.exports import export
from surgetank.loadtest.schedule import Schedule
from surgetank.loadtest.shapes import Pulses
from surgetank.loadtest.tenants import TenantLoad, draw
from surgetank.traffic.tokencounts import Lengths
from surgetank.wire.http1 import LAST_CHUNK, chunk

from .scripted import DONE, STREAM_HEAD, TOKEN

pytestmark = pytest.mark.heavy  # a minute each, most of it the other tool's start
BOUND = 400.0  # seconds of one tool's run
TOKENIZER = "local/bytes"
REVISION = "0" * 40
SNAPSHOT = Path("hub", "models--local--bytes", "snapshots", REVISION)
NEAR = 0.1  # seconds by which they may be late: they are slower senders
NEARLY_ALL = 0.8  # of the requests: the first ones come late, while the tools still load


def schedule(duration: float = 12.0) -> Schedule:
    shape = Pulses(base=2, peak=12, width=2, period=6, duration=duration)
    output = Lengths("uniform", 2, 9)
    return draw([TenantLoad("t", shape, Lengths("uniform", 20, 60), output)], seed=3)


@dataclass
class Endpoint:
    """Answers every request for text at once, and remembers when it came and what it asked."""

    at: list[float] = field(default_factory=list)
    asked: list[dict[str, object]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                body = await reader.readexactly(int(length or 0))
                if b"/completions" in head.split(b"\r\n")[0]:
                    writer.write(self._text(json.loads(body)))
                else:
                    writer.write(_whole({"object": "list", "data": [{"id": "bench"}]}))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _text(self, asked: dict[str, object]) -> bytes:
        self.at.append(time.monotonic())
        self.asked.append(asked)
        usage = b'{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}'
        told = b'data: {"choices":[],"usage":%b}\n\n' % usage
        if asked.get("stream"):
            token = TOKEN.replace(b"{", b'{"object":"chat.completion.chunk",', 1)
            return STREAM_HEAD + b"".join(map(chunk, (token, told, DONE))) + LAST_CHUNK
        choice = {"index": 0, "message": {"role": "assistant", "content": "word"}}
        return _whole(
            {"object": "chat.completion", "choices": [choice], "usage": json.loads(usage)}
        )

    @property
    def prompts(self) -> list[int]:
        """Tokens of each prompt."""
        found = []
        for said in self.asked:
            messages = said["messages"]
            assert isinstance(messages, list)
            found.append(sum(_length(message["content"]) for message in messages))
        return found

    @property
    def outputs(self) -> list[object]:
        """Tokens that each asked for, in the order in which they came."""
        return [said.get("max_completion_tokens", said.get("max_tokens")) for said in self.asked]


def _length(content: object) -> int:
    """Characters of a message, which are tokens here; its content may be in parts."""
    parts = content if isinstance(content, list) else [{"text": content}]
    return sum(len(str(part.get("text", ""))) for part in parts)


def _whole(value: object) -> bytes:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def told_to(tool: str, words: Sequence[str], folder: Path) -> Endpoint:
    """Run a tool against an endpoint, whose address is put for URL in its words."""
    program = shutil.which(tool)
    if program is None:
        pytest.skip(f"{tool} is not on the PATH")
    endpoint = Endpoint()
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "NO_COLOR": "1"}
    offline["HF_HOME"] = str(keep_tokenizer(folder / "hub"))

    async def run() -> None:
        server = await asyncio.start_server(endpoint.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        log = folder / "tool.log"
        async with server:
            with log.open("wb") as out:
                process = await asyncio.create_subprocess_exec(
                    program,
                    *(word.replace("URL", url) for word in words),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd=folder,
                    env=os.environ | offline,
                )
                try:
                    async with asyncio.timeout(BOUND):
                        await process.wait()
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
        assert process.returncode == 0, log.read_text(errors="replace")[-3000:]

    asyncio.run(run())
    return endpoint


def keep_tokenizer(home: Path) -> Path:
    """Write TOKENIZER, a token a byte, as the hub's client keeps it: no hub is asked for one."""
    where = home / SNAPSHOT
    where.mkdir(parents=True)
    refs = where.parents[1] / "refs"
    refs.mkdir()
    written(REVISION, "main", refs)
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves
    hidden = [256 + n for n in range(256 - len(shown))]
    vocabulary = {chr(code): n for n, code in enumerate([*shown, *hidden])}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    whole: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level | {"use_regex": False},
        "post_processor": None,
        "decoder": level | {"use_regex": False},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    written(json.dumps(whole), "tokenizer.json", where)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "!"}
    written(json.dumps(config), "tokenizer_config.json", where)
    return home


def written(text: str, name: str, folder: Path) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def sent_as_scheduled(endpoint: Endpoint, made: Schedule) -> None:
    assert len(endpoint.at) == len(made)
    late = (np.array(endpoint.at) - endpoint.at[0]) - (made.at - made.at[0])
    assert np.quantile(np.abs(late - np.median(late)), NEARLY_ALL) < NEAR
    assert sorted(endpoint.prompts) == pytest.approx(sorted(made.prompt_tokens.tolist()), abs=2)
    assert sorted(endpoint.outputs) == sorted(made.max_tokens.tolist())  # type: ignore[type-var]  # whole numbers, or it fails


@pytest.mark.parametrize(
    ("form", "kind"),
    [("guidellm", "trace_synthetic"), ("mooncake", "mooncake,time_scale=0.001")],
)
def test_guidellm_replays_it_at_its_times_and_sizes(tmp_path: Path, form: str, kind: str) -> None:
    made = schedule()
    trace = written(export(made, form), "trace.jsonl", tmp_path)
    endpoint = told_to(
        "guidellm",
        [
            "run", "--backend", "kind=openai_http,target=URL,model=bench",
            "--profile", "kind=replay,schedule_turn=timestamp",
            "--data", f"kind={kind},source.kind=json_file,source.path={trace}",
            "--tokenizer", f"kind=huggingface_auto,model={tmp_path / 'hub' / SNAPSHOT}",
            "--output", f"kind=json,path={tmp_path / 'out.json'}", "--disable-progress",
        ],
        tmp_path,
    )  # fmt: skip
    sent_as_scheduled(endpoint, made)


def test_aiperf_replays_the_mooncake_lines_at_their_times_and_sizes(tmp_path: Path) -> None:
    made = schedule()
    trace = written(export(made, "mooncake"), "trace.jsonl", tmp_path)
    endpoint = told_to(
        "aiperf",
        [
            *_aiperf(tmp_path),
            "--input-file", str(trace), "--custom-dataset-type", "mooncake_trace",
            "--fixed-schedule",
        ],
        tmp_path,
    )  # fmt: skip
    sent_as_scheduled(endpoint, made)


def test_aiperf_follows_the_rate_series(tmp_path: Path) -> None:
    made = schedule()
    series = written(export(made, "aiperf"), "rates.json", tmp_path)
    endpoint = told_to(
        "aiperf",
        [
            *_aiperf(tmp_path), "--isl", "16", "--osl", "4",
            "--request-rate-series", str(series), "--request-rate-mode", "constant",
            "--request-count", str(len(made)),
        ],
        tmp_path,
    )  # fmt: skip
    assert len(endpoint.at) == len(made)
    at = np.array(endpoint.at) - endpoint.at[0]
    for phase in made.phases:
        due = ((made.at >= phase.start) & (made.at < phase.end)).sum()
        sent = ((at >= phase.start) & (at < phase.end)).sum()
        assert abs(int(sent) - int(due)) <= 3 + 0.2 * due, phase


def _aiperf(folder: Path) -> list[str]:
    return [
        "profile", "--model", "bench", "--url", "URL", "--endpoint-type", "chat", "--streaming",
        "--tokenizer", TOKENIZER,
        "--output-artifact-dir", str(folder / "artifacts"), "--ui-type", "none",
    ]  # fmt: skip
