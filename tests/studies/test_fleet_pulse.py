"""What the second act sends: pulses, and a log in their place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from surgetank.errors import InputError
from surgetank.mockengine import asked
from surgetank.studies.fleet_demo.azure_log import read_azure
from surgetank.studies.fleet_demo.pulse import (
    BASE,
    BURST,
    NOISY,
    QUIET,
    RECOVERY,
    Logged,
    Pulse,
    body,
    pulse,
    replay,
)

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
SHARED = Path(__file__).parents[4] / "shared" / "traces" / "azure_llm_2023_code.csv"


def test_a_seed_makes_the_same_pulse_to_the_byte_and_another_seed_another() -> None:
    first, again, other = pulse(Pulse(), 7), pulse(Pulse(), 7), pulse(Pulse(), 8)
    assert first == again
    assert [s.body for s in first.shots] == [s.body for s in again.shots]
    assert [s.at for s in first.shots] != [s.at for s in other.shots]


def test_the_noisy_tenant_bursts_and_the_quiet_one_goes_on_as_before() -> None:
    schedule = pulse(Pulse(base=100.0, burst=100.0, recovery=100.0, noisy_peak=30.0), 3)
    counts = Counter((s.tenant, schedule.phase_of(s.at)) for s in schedule.shots)
    for phase in (BASE, BURST, RECOVERY):
        assert 150 < counts[QUIET, phase] < 250
    assert 25 < counts[NOISY, BASE] < 80
    assert 2700 < counts[NOISY, BURST] < 3300
    assert [s.at for s in schedule.shots] == sorted(s.at for s in schedule.shots)
    assert len({s.id for s in schedule.shots}) == len(schedule.shots)
    assert schedule.onset == 100.0
    assert schedule.length == 300.0
    assert schedule.phase_of(1000.0) == RECOVERY


def test_a_tenant_without_a_rate_sends_nothing() -> None:
    schedule = pulse(Pulse(quiet_rate=0.0, noisy_rate=0.0), 1)
    assert {(s.tenant, schedule.phase_of(s.at)) for s in schedule.shots} == {(NOISY, BURST)}


@pytest.mark.parametrize(("prompt", "output"), [(5, 2), (100, 40), (4808, 10)])
def test_a_body_has_exactly_the_tokens_it_should(prompt: int, output: int) -> None:
    found = asked.read(asked.CHAT, body(prompt, output))
    assert (found.prompt_tokens, found.max_tokens) == (prompt, output)
    assert found.ignore_eos
    assert found.include_usage


def rows(*gaps: tuple[int, float]) -> list[Logged]:
    """Make a log from (number of requests, seconds between them)."""
    at = 0.0
    found = []
    for count, gap in gaps:
        for _ in range(count):
            found.append(Logged(at, 1000, 50))
            at += gap
    return found


def test_a_replay_puts_the_logs_densest_stretch_where_the_burst_would_be() -> None:
    log = rows((100, 2.0), (250, 0.1), (100, 2.0))
    schedule = replay(log, Pulse(), 1, most_tokens=4096)
    noisy = Counter(schedule.phase_of(s.at) for s in schedule.shots if s.tenant == NOISY)
    assert noisy[BURST] >= 245
    assert noisy[BASE] <= 12
    assert {s.tenant for s in schedule.shots} == {QUIET, NOISY}


def test_a_replay_cuts_what_no_replica_could_hold() -> None:
    log = [Logged(float(n), 9000, 50 if n else 9000) for n in range(200)]
    for shot in replay(log, Pulse(), 1, most_tokens=4096).shots:
        found = asked.read(asked.CHAT, shot.body)
        assert found.prompt_tokens + (found.max_tokens or 0) <= 4096


def test_a_log_shorter_than_a_run_is_refused() -> None:
    with pytest.raises(InputError, match=r"^the log spans 9 s: needs 75$"):
        replay(rows((10, 1.0)), Pulse(), 1, most_tokens=4096)


def test_a_log_is_read_with_crlf_a_missing_last_newline_and_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(
        f"{HEADER}\r\n2023-11-16 18:17:04.9799600,30,2\r\n2023-11-16 18:17:03.4799600,10,1\r\n"
        "2023-11-16 18:17:03,5,3".encode()
    )
    found = read_azure(path)
    assert [(row.prompt_tokens, row.output_tokens) for row in found] == [(5, 3), (10, 1), (30, 2)]
    assert [row.at for row in found] == pytest.approx([0.0, 0.47996, 1.97996])


def test_a_torn_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    good = "\n".join(f"2023-11-16 18:17:{n % 60:02d}.5,10,1" for n in range(200))
    path.write_text(f"{HEADER}\n{good}\n2023-11-16 18:1")
    assert len(read_azure(path)) == 200


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "line 1: expected TIMESTAMP,ContextTokens,GeneratedTokens"),
        ("time,a,b\n1,2,3", "line 1: expected TIMESTAMP,ContextTokens,GeneratedTokens"),
        (f"{HEADER}\n2023-11-16 18:17:03.5,x,1", "line 2: expected TIMESTAMP"),
        (f"{HEADER}\n2023-11-16 18:17:03.5,-1,1", "line 2: expected TIMESTAMP"),
        (f"{HEADER}\n2023-11-16T18:17:03.5,1,1", "line 2: expected TIMESTAMP"),
    ],
)
def test_another_form_is_an_error_that_names_the_line(
    tmp_path: Path, text: str, error: str
) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=error):
        read_azure(path)


def test_a_log_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_azure(tmp_path / "none.csv")


@pytest.mark.skipif(not SHARED.exists(), reason="the trace is not beside the repository")
def test_the_published_trace_is_read_whole() -> None:
    log = read_azure(SHARED)
    assert len(log) == 8819
    assert log[0] == Logged(0.0, 4808, 10)
    assert log[-1].at == pytest.approx(3436, abs=1)
