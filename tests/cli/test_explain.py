"""`surgetank explain --request`: the story of one request from the records of its time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surgetank.policy.record import RequestRecord
from surgetank.policy.request import Outcome
from surgetank.studies.explain_advice import MEANINGS, meaning_of
from tests.cli.command import surgetank

T = 1_800_000_000.0


def record(name: str, at: float, **more: object) -> RequestRecord:
    made = RequestRecord(name, tenant="noisy", tier="standard", model="tiny", arrived=T + at)
    for field, value in more.items():
        setattr(made, field, T + value if field in TIMES else value)  # type: ignore[operator]
    return made


TIMES = {"queued", "dispatched", "first_token", "ended"}
RAN = {"outcome": "completed", "status": 200, "replica": "r1", "attempts": 1}
RECORDS = [
    record("req-a-1", 0, dispatched=0, first_token=1, ended=9, **RAN),
    record("req-a-2", 1, queued=1, dispatched=8, first_token=9, ended=12, **RAN),
    record("req-a-4", 3, dispatched=3, first_token=4, ended=9, **(RAN | {"tenant": "acme"})),
    record(
        "req-a-3", 2, tenant="victim", ended=2.0, outcome="predicted_wait", status=429,
        reason="would wait 12.3 s of 2.0", predicted_wait=12.3, position=1, retry_after=9.0,
        ttft_objective=2.0, expected_tokens=1490, full=("r1 limit 4/4", "r2 kv 900+120/1000"),
    ),
    record(
        "req-a-5", 4, ended=4.0, outcome="quota_requests", status=429,
        level="the tenant: requests per minute",
        reason="the tenant's quota", retry_after=3.0,
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The records of one gateway, the first of them in a file that was cut off."""
    made = tmp_path_factory.mktemp("records")
    old = made / "records-20270115T080000000Z.jsonl"
    old.write_text("".join(r.to_line() + "\n" for r in RECORDS[:2]) + "no record\n")
    new = made / "records.jsonl"
    new.write_text("".join(r.to_line() + "\n" for r in RECORDS[2:]) + '{"id":"torn')
    return made


def story(path: Path, request: str) -> str:
    done = surgetank("explain", str(path), "--request", request)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["", "records.jsonl"])
def test_a_refusal_is_told_with_who_was_there_what_stood_in_the_way_and_what_would_help(
    folder: Path, name: str
) -> None:
    told = story(folder / name, "req-a-3")
    for words in (
        "of tenant victim (tier standard), for tiny",
        "1 other requests for this model ran (noisy 1) and 1 waited (noisy 1)",
        "foretold as 12.3 s, with 1 requests ahead",
        "r1 ran 4 of the 4 requests it may run at once",
        "r2 held 900 KV tokens, 120 more were wanted, 1000 allowed",
        "told HTTP 429, to come back after 9.0 s",
        "try again after the time it was told",
        "theta >= 6.2",
    ):
        assert words in told


def test_who_went_first_is_told_of_what_waited(folder: Path) -> None:
    told = story(folder, "req-a-2")
    assert "It waited 7.000 s" in told
    assert "Meanwhile 1 that arrived after it were sent first (acme 1)" in told
    assert "Its first token came 8.000 s after its arrival" in told


def test_a_quota_is_told_with_the_minute_before(folder: Path) -> None:
    told = story(folder, "req-a-5")
    assert "The limit that refused it: the tenant: requests per minute." in told
    assert "2 requests of the tenant were let in: 3 a minute" in told


def test_json_has_the_same_figures(folder: Path) -> None:
    done = surgetank("explain", str(folder), "--request", "req-a-3", "--json")
    told = json.loads(done.stdout)
    assert told["request"]["predicted_wait"] == pytest.approx(12.3)
    assert told["around"]["running"] == {"noisy": 1}
    assert told["around"]["waiting"] == {"noisy": 1}
    assert told["ttft"] is None
    text = story(folder, "req-a-3")
    assert all(sentence in text for sentence in told["sentences"] + told["advice"])


def test_a_record_of_an_older_version_is_told_with_what_it_has(tmp_path: Path) -> None:
    old = tmp_path / "old.jsonl"
    old.write_text('{"v":1,"id":"x","arrived":1.5,"outcome":"queue_full"}\n')
    told = story(old, "x")
    assert "of tenant unknown" in told
    assert "the size of its prompt is unknown" in told
    assert "At an unknown time: it ended as queue_full" in told
    assert "flow.max_queued" in told


def test_an_unknown_id_is_told_with_the_nearest_and_what_the_file_has(folder: Path) -> None:
    done = surgetank("explain", str(folder), "--request", "req-a-33")
    assert done.returncode == 2
    assert "which has 5 from 2027-01-15 08:00:00.000Z to 2027-01-15 08:00:04.000Z" in done.stderr
    assert "nearest: req-a-3" in done.stderr


@pytest.mark.parametrize(
    "arguments", [("nowhere", "--request", "x"), (".", "--request", "x"), (".",)]
)
def test_what_cannot_be_read_is_one_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = surgetank("explain", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_time_in_shadow_is_summed_up(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    admitted = {"shadow": "admitted", "shadow_wait": 0.5, "ttft_objective": 2.0, **RAN}
    rows = [
        *(
            record(f"a{i}", i, dispatched=i, first_token=i + 9, shadow_ttft=i / 10, **admitted)
            for i in range(30)
        ),
        *(record(f"b{i}", i, shadow="predicted_wait", **RAN) for i in range(3)),
        record("c", 5, shadow="queue_timeout", **RAN | {"tenant": "acme"}),
        record("d", 6, shadow="waiting", **RAN),
        record("e", 7, **RAN),
    ]
    file.write_text("".join(r.to_line() + "\n" for r in rows))
    told = json.loads(surgetank("explain", str(file), "--shadow", "--json").stdout)
    assert told["refused"] == {"noisy": {"predicted_wait": 3}, "acme": {"queue_timeout": 1}}
    assert (told["records"], told["shadowed"], told["admitted"]) == (36, 35, 30)
    assert (told["refused_total"], told["undecided"]) == (4, 1)
    assert told["ttft_p95"] == pytest.approx(2.8)
    assert told["ttft_p95_now"] == pytest.approx(9.0)
    assert told["attainment"] == pytest.approx(21 / 30)
    assert told["attainment_now"] == 0.0
    text = surgetank("explain", str(file), "--shadow").stdout
    assert "35 requests: 4 refused, 30 admitted, 1 not decided" in text
    assert "noisy: 3 predicted_wait" in text
    assert "about 2.80 s" in text


def test_records_without_a_shadow_say_so(folder: Path) -> None:
    text = surgetank("explain", str(folder), "--shadow").stdout
    assert "None of 5 records" in text


def test_no_records_are_no_summary(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("[1, 2]\n", encoding="utf-8")
    done = surgetank("explain", str(path), "--shadow")
    assert done.returncode == 2
    assert "has no records" in done.stderr


def test_every_outcome_has_its_meaning() -> None:
    assert set(MEANINGS) == set(Outcome)
    assert all(meaning_of(outcome.value).what.endswith(".") for outcome in Outcome)
    assert meaning_of("of_a_later_version").what == "It ended as of_a_later_version."
