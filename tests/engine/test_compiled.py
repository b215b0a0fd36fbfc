"""The cache of compiled code, and what a user is told of compiling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import surgetank
from surgetank.engine import replica
from surgetank.engine.skipping import compiled


def double(x: int) -> int:
    return x + x


@pytest.fixture
def _fresh() -> Iterator[None]:
    compiled.folder.cache_clear()
    yield
    compiled.folder.cache_clear()


@pytest.mark.usefixtures("_fresh")
def test_compiling_is_announced_once_and_what_is_cached_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    lines: list[str] = []
    with compiled.on_compile(lines.append):
        assert compiled.entry(double)(21) == 42
        assert lines == [compiled.MESSAGE]
        assert compiled.entry(double)(21) == 42  # a new process's, as it were
    assert lines == [compiled.MESSAGE]
    where = compiled.folder()
    assert where is not None
    assert where.parent == tmp_path
    assert list(where.rglob("*.nbi"))


def test_prepared_there_is_nothing_left_to_compile() -> None:
    replica.prepare()
    lines: list[str] = []
    with compiled.on_compile(lines.append):
        replica.prepare()
    assert not lines


@pytest.mark.usefixtures("_fresh")
def test_the_cache_is_the_users_and_not_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    where = compiled.folder()
    assert where is not None
    assert where.parent == tmp_path / "surgetank"
    assert Path(surgetank.__file__).parent not in where.parents


@pytest.mark.usefixtures("_fresh")
def test_without_a_folder_to_write_to_it_compiles_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    lines: list[str] = []
    with compiled.on_compile(lines.append):
        assert compiled.folder() is None
        assert compiled.entry(double)(21) == 42
    assert lines == [compiled.MESSAGE]
