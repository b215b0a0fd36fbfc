"""A real llama.cpp server on a model written here: what it says of its KV, and how it ends."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from surgetank.adapters.child import StartError
from surgetank.adapters.llamacpp.layout import KvLayout, kv_layout
from surgetank.adapters.llamacpp.model import write_tiny_gguf
from surgetank.adapters.llamacpp.process import LlamaServer
from surgetank.errors import InputError

TRAINED_CONTEXT = 8192


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, context=TRAINED_CONTEXT)
    return path


def test_one_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    sizes = [
        write_tiny_gguf(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert sizes == [len(a), len(b), len(c)]


def test_a_write_that_fails_leaves_neither_the_model_nor_a_draft(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    target.mkdir()
    (target / "file").touch()
    with pytest.raises(OSError, match="taken"):
        write_tiny_gguf(target)
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_sizes_that_do_not_divide_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hidden = 65"):
        write_tiny_gguf(tmp_path / "m", hidden=65)
    assert not list(tmp_path.iterdir())


def test_without_the_extra_one_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(InputError, match=r"gguf is not installed: pip install 'surgetank\[demo\]'"):
        write_tiny_gguf(tmp_path / "m")


@pytest.mark.parametrize(
    ("slots", "context", "unified", "split_said", "expected"),
    [
        (8, 2048, True, False, KvLayout(8, 2048, 2048)),
        (8, 2048, False, True, KvLayout(8, 2048, 256)),
        (8, 16384, False, True, KvLayout(8, 16384, 2048)),
        # Unsaid, a split KV is taken as the part of one slot: too little, never too much.
        (8, 16384, False, False, KvLayout(8, 2048, 2048)),
        # Unified beyond the trained context: one request is capped, and the total is not told.
        (8, 2 * TRAINED_CONTEXT, True, False, KvLayout(8, TRAINED_CONTEXT, TRAINED_CONTEXT)),
        (1, 2048, True, False, KvLayout(1, 2048, 2048)),
    ],
)
def test_a_servers_props_give_its_kv_or_less(
    model: Path, *, slots: int, context: int, unified: bool, split_said: bool, expected: KvLayout
) -> None:
    props = asyncio.run(_props(model, slots=slots, context=context, unified=unified))
    assert kv_layout(props, split=split_said) == expected


def test_props_of_a_unified_and_of_a_split_kv_cannot_be_told_apart(model: Path) -> None:
    unified = asyncio.run(_props(model, slots=8, context=2048, unified=True))
    split = asyncio.run(_props(model, slots=8, context=16384, unified=False))
    for props in (unified, split):
        props.pop("media_marker")  # random at each start
    assert unified == split


@pytest.mark.parametrize(
    "props",
    [
        {},
        {"total_slots": 8},
        {"total_slots": 0, "default_generation_settings": {"n_ctx": 2048}},
        {"total_slots": 8, "default_generation_settings": {"n_ctx": "2048"}},
        {"total_slots": True, "default_generation_settings": {"n_ctx": 2048}},
    ],
)
def test_props_of_something_else_are_an_error(props: Mapping[str, Any]) -> None:
    with pytest.raises(InputError, match="/props"):
        kv_layout(props)


def test_a_server_is_ready_when_entered_and_gone_when_left(model: Path) -> None:
    async def run() -> tuple[int, int]:
        server = LlamaServer(model)
        async with server:
            first = server.pid
            assert (await server.get("/health"))[0] == 200
            port = server.port
            await server.restart()
            second = server.pid
            assert server.port == port
            assert (await server.get("/health"))[0] == 200
        assert server.pid is None
        assert first is not None
        assert second is not None
        return first, second

    first, second = asyncio.run(run())
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_model_that_cannot_be_loaded_says_why_in_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")

    async def run() -> None:
        async with LlamaServer(broken):
            pass

    with pytest.raises(StartError, match=r"broken\.gguf: llama\.cpp cannot serve it") as said:
        asyncio.run(run())
    assert "\n" not in str(said.value)


def test_the_model_file_is_private_to_its_owner(model: Path) -> None:
    assert stat.S_IMODE(model.stat().st_mode) == 0o600


async def _props(model: Path, *, slots: int, context: int, unified: bool) -> dict[str, Any]:
    async with LlamaServer(model, slots=slots, context=context, unified=unified) as server:
        return await server.props()
