"""Two processes read a log as one does: the same rows in the same order, the same account."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from surgetank.adapters import logbytes, loghelper
from surgetank.adapters.logs import TextLog, open_log
from surgetank.errors import InputError
from surgetank.traffic.trace import Batch, Source, concatenate

LINE = (
    '{{"msec":"{:.3f}","request_method":"POST","request_uri":"{}","status":"{}",'
    '"request_time":"{}","upstream_header_time":"{}","upstream_response_time":"{}",'
    '"http_x_tenant_id":"{}"}}\n'
)


def log(folder: Path, *, without_duration: bool = False) -> Path:
    """Write nginx lines with all that a reader has to account for, here and there."""
    rng = np.random.default_rng(9)
    lines = []
    for n in range(6000):
        took = "-" if without_duration and n == 4321 else f"{rng.exponential():.3f}"
        tried = f"60.000, {took}" if n % 700 == 3 else took
        uri = "/health" if n % 50 == 7 else "/v1/chat/completions"
        status = (200, 200, 429, 499)[n % 4]
        lines.append(
            LINE.format(1_796_006_832 + n / 20, uri, status, took, took, tried, f"t{n % 9}")
        )
        if n in {777, 2222, 5555}:
            lines.append("no JSON at all\n")
        if n == 3333:
            lines.append("x" * (2 << 20) + "\n")
    path = folder / "access.log"
    path.write_bytes(b"\xef\xbb\xbf" + "".join(lines).encode()[:-1])  # a BOM; no last newline
    return path


def read(path: Path, *, shared: bool) -> tuple[list[Batch], Source]:
    with open_log(path) as file:
        assert isinstance(file, TextLog)
        assert file.share(least_bytes=0 if shared else 1 << 40) == shared
        batches = list(file)
        return batches, file.source


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surgetank.adapters.logs._cores", lambda: 2)
    monkeypatch.setattr(logbytes, "BLOCK", 1 << 16)


@pytest.mark.parametrize("without_duration", [False, True])
def test_two_processes_give_what_one_gives(tmp_path: Path, *, without_duration: bool) -> None:
    path = log(tmp_path, without_duration=without_duration)
    ones, source = read(path, shared=False)
    twos, same = read(path, shared=True)
    assert len(ones) == len(twos) > 10
    one, two = concatenate(ones), concatenate(twos)
    for name in ("arrived", "duration", "ttft", "ended"):
        assert np.array_equal(getattr(one, name), getattr(two, name), equal_nan=True)
    assert one.tenant is not None
    assert two.tenant is not None
    assert one.tenant.names == two.tenant.names
    assert np.array_equal(one.tenant.codes, two.tenant.codes)
    assert replace(same, notes=()) == replace(source, notes=())
    assert sorted(same.notes) == sorted(source.notes)
    assert "9 requests went to more than one upstream; each counts once" in source.notes
    assert [bad.line for bad in source.bad] == [779, 2225, 3337, 5560]
    assert source.ignored == {"probe": 120}
    assert source.arrival_from == ("end" if without_duration else "end - duration")


def test_a_helper_that_dies_is_said(tmp_path: Path) -> None:
    with open_log(log(tmp_path)) as file:
        assert isinstance(file, TextLog)
        assert file.share(least_bytes=0)
        assert file._helper is not None
        file._helper._process.kill()
        file._helper._process.wait()
        with pytest.raises(InputError, match="has died"):
            list(file)


def test_only_what_is_tested_here_is_shared(tmp_path: Path) -> None:
    assert {"nginx-json"} == loghelper.FORMATS
    path = tmp_path / "a.csv"
    path.write_text("arrival_time\n1796006832\n1796006833\n")
    with open_log(path) as file:
        assert isinstance(file, TextLog)
        assert not file.share(least_bytes=0)
