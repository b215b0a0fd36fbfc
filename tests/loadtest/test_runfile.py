"""The file of a run: what is written is what is read, and what cannot be is told in a line."""

from __future__ import annotations

import contextlib
import functools
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surgetank.errors import InputError
from surgetank.loadtest.phases import phases_between
from surgetank.loadtest.report import report
from surgetank.loadtest.runfile import (
    OUTCOMES,
    Labels,
    Objective,
    Run,
    Samples,
    decode,
    encode,
    read_run,
    write_run,
)
from surgetank.loadtest.verdict import compare
from surgetank.policy.record import RequestRecord


def _records(start: float = 1_700_000_000.0) -> list[RequestRecord]:
    return [
        RequestRecord(
            id="b",
            tenant="blue",
            arrived=start + 3.0,
            scheduled=start + 3.0,
            sent=start + 3.001,
            ended=start + 3.2,
            status=429,
            outcome="queue_full",
            attempts=3,
        ),
        RequestRecord(
            id="a",
            tenant="amber",
            arrived=start + 1.0,
            scheduled=start + 1.0,
            sent=start + 1.0005,
            first_byte=start + 1.2,
            first_token=start + 1.25,
            ended=start + 2.0,
            prompt_tokens=100,
            output_tokens=20,
            status=200,
            outcome="completed",
            attempts=1,
        ),
    ]


def _run() -> Run:
    return Run(
        description={"base": 20, "seed": 1},
        fingerprint="abc",
        duration=10.0,
        phases=phases_between([(2, 4)], 10),
        samples=Samples.of_records(_records(), start=1_700_000_000.0),
        objective=Objective(0.5, 0.05, {"blue": 1.0}),
        target={"url": "http://127.0.0.1:8000", "model": "tiny"},
        sender={"lag": {"p50": 0.0, "p99": 0.001, "max": 0.002}, "valid": True},
        metrics=[{"t": 1.0, "queue": 3.0, "kv": 0.5}, {"t": 2.0, "queue": 4.0}],
        summary={"requests": 2},
    )


def test_records_become_rows_in_the_order_in_which_they_were_due() -> None:
    samples = _run().samples
    assert samples.scheduled.tolist() == pytest.approx([1.0, 3.0])
    assert samples.first_token[0] == pytest.approx(1.25)
    assert np.isnan(samples.first_token[1])
    assert [OUTCOMES[code] for code in samples.outcome] == ["completed", "queue_full"]
    assert [samples.tenant.names[code] for code in samples.tenant.codes] == ["amber", "blue"]
    assert samples.prompt_tokens.tolist() == [100, -1]
    assert samples.attempts.tolist() == [1, 3]


def test_a_record_that_has_not_ended_is_refused() -> None:
    with pytest.raises(ValueError, match="record x: outcome = ''"):
        Samples.of_records([RequestRecord(id="x")], start=0.0)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = _run()
    write_run(tmp_path / "run.json", run)
    found = read_run(tmp_path / "run.json")
    assert encode(found) == encode(run)
    assert found.objective == run.objective
    assert found.phases == run.phases
    assert found.metrics == [{"t": 1.0, "queue": 3.0, "kv": 0.5}, {"t": 2.0, "queue": 4.0}]
    assert found.samples.scheduled == pytest.approx(run.samples.scheduled, abs=1e-6)


def test_the_file_is_its_owners_alone_and_no_draft_stays(tmp_path: Path) -> None:
    write_run(tmp_path / "run.json", _run())
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_each_row_tells_its_phase_and_cycle_to_other_readers() -> None:
    columns = json.loads(encode(_run()))["samples"]
    assert [columns["phase"]["names"][code] for code in columns["phase"]["codes"]] == [
        "base",
        "pulse",
    ]
    assert columns["cycle"] == [0, 0]
    assert columns["first_token"] == [1.25, None]


def _broken(*path: str | int, value: Any) -> bytes:
    whole = json.loads(encode(_run()))
    at = whole
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "not a run file"),
        (b"[]", "not a run file"),
        (b'{"v":1,"kind":"other"}', "kind = 'other'"),
        (b'{"requests": 3}', "kind = ''"),
        (_broken("v", value=2), "v = 2"),
        (_broken("samples", "sent", value=[1.0]), "sent has 1 rows: must be 2"),
        (_broken("samples", "tenant", "codes", value=[0]), "tenant has 1 rows"),
        (_broken("samples", "scheduled", value=[3.0, 1.0]), r"scheduled\[1\] = 1: must be in or"),
        (_broken("samples", "sent", 0, value="x"), r"got `str` - at `\$.samples.sent"),
        (_broken("samples", "outcome", "names", 0, value="odd"), "'odd' is no outcome"),
        (_broken("samples", "outcome", "codes", 0, value=99), "outcome.codes: must be from 0"),
        (_broken("samples", "tenant", "codes", 0, value=-1), "tenant.codes: must be from 0 to 1"),
        (_broken("samples", "status", 0, value=2**40), "number is too large"),
        (_broken("schedule", "phases", 0, "name", value="peak"), "phases.0..name = 'peak'"),
        (_broken("schedule", "phases", 1, "start", value=9), "from 9 to 4 s"),
        (_broken("schedule", "phases", 1, "cycle", value=10**9), "cycle = 1000000000: from 0"),
        (_broken("schedule", "duration_s", value=0), "duration_s = 0: must be > 0"),
    ],
)
def test_a_file_that_is_no_run_is_told_in_one_line(data: bytes, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        decode(data)
    assert "\n" not in str(caught.value)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_run(tmp_path / "none.json")
    (tmp_path / "bad.json").write_bytes(b"{")
    with pytest.raises(InputError, match=r"bad\.json: not a run file"):
        read_run(tmp_path / "bad.json")
    with pytest.raises(InputError, match=r"cannot be written: No such file"):
        write_run(tmp_path / "no" / "run.json", _run())


def test_columns_of_unequal_length_are_refused() -> None:
    samples = _run().samples
    with pytest.raises(ValueError, match="tenant has 1 rows: must be 2"):
        Samples(
            **{
                name: getattr(samples, name)
                for name in samples.__dataclass_fields__
                if name != "tenant"
            },
            tenant=Labels(np.zeros(1, np.int32), ("a",)),
        )


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**70, 1e308, -1e9])
    | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)
_PLACES = [
    (*path, key)
    for path in ((), ("schedule",), ("samples",), ("samples", "tenant"), ("objective",))
    for key in functools.reduce(lambda at, step: at[step], path, json.loads(encode(_run())))
] + [("samples", "sent", 0), ("samples", "scheduled", 1), ("metrics", 0, "t"), ("metrics", 0, "kv")]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(_PLACES), _JSON), min_size=1, max_size=3))
def test_any_damage_is_told_or_does_no_harm(damage: list[tuple[tuple[Any, ...], Any]]) -> None:
    whole = json.loads(encode(_run()))
    for path, value in damage:
        with contextlib.suppress(TypeError, KeyError, IndexError):  # damaged above already
            functools.reduce(lambda at, step: at[step], path[:-1], whole)[path[-1]] = value
    try:
        run = decode(json.dumps(whole).encode())
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 - it may also be a run
        return
    with np.errstate(over="ignore", invalid="ignore"):
        json.dumps(report(run).to_json(), allow_nan=False)
        assert compare(run, run).verdict == "not enough"
