"""llama.cpp's log: blocks of timings, with the stamps that make arrivals of them."""

from __future__ import annotations

import pytest

from surgetank.traffic.formats import registry
from surgetank.traffic.formats.reading import ReadOptions, UnreadableError
from surgetank.traffic.trace import Ended
from tests.traffic.formats.reading_logs import read, told

BLOCK = (
    "slot print_timing: id  0 | task 12 | \n"
    "prompt eval time =     225.17 ms /    18 tokens (   12.51 ms per token)\n"
    "       eval time =    7828.23 ms /   241 tokens (   32.48 ms per token)\n"
    "      total time =    8053.40 ms /   259 tokens\n"
)


def test_the_servers_own_clock_counts_from_its_start() -> None:
    # minutes.seconds.milliseconds.microseconds: 70.5 s after the start
    log = ("1.10.500.000 I " + BLOCK).encode()
    assert registry.detect(log).name == "llamacpp"
    batch, account, reader = read("llamacpp", log)
    assert told(batch) == {
        "arrived": [pytest.approx(62.4466)],
        "duration": [8.0534],
        "ttft": [pytest.approx(0.22517)],
        "prompt_tokens": [18],
        "output_tokens": [241],
        "ended": [int(Ended.COMPLETED)],
    }
    assert reader.arrival_from == "relative start"
    assert any("server's start" in note for note in account.notes)
    later, _, _ = read("llamacpp", log, options=ReadOptions(start=1796000000.0))
    assert later.arrived[0] == pytest.approx(1796000062.4466)


def test_a_slots_start_is_the_arrival_and_the_whole_prompt_is_its_length() -> None:
    log = (
        "0.01.000.000 I slot launch_slot_: id  0 | task 12 | processing task, is_child = 0\n"
        "0.01.000.100 I slot update_slots: id  0 | task 12 | new prompt, n_ctx_slot = 4096, "
        "n_keep = 0, task.n_tokens = 98\n"
        "0.01.900.000 I slot print_timing: id  0 | task 12 | prompt eval time = 225.17 ms / 18 "
        "tokens (12.51 ms per token)\n"
        "0.09.053.400 I slot print_timing: id  0 | task 12 |        eval time = 7828.23 ms / 241 "
        "tokens\n"
        "0.09.053.400 I slot print_timing: id  0 | task 12 |       total time = 8053.40 ms / 259 "
        "tokens\n"
    )
    found = told(read("llamacpp", log.encode())[0])
    assert found["arrived"] == [1.0]
    assert (found["prompt_tokens"], found["cached_tokens"]) == ([98], [80])


def test_slots_that_run_at_once_keep_their_own_figures() -> None:
    other = BLOCK.replace("id  0 | task 12", "id  1 | task 13").replace("/    18", "/    77")
    log = "".join(
        f"0.0{i}.000.000 I slot launch_slot_: id  {i} | task {12 + i} | processing task\n"
        for i in range(2)
    )
    found = told(read("llamacpp", (log + "0.10.000.000 I " + other + BLOCK).encode())[0])
    assert found["arrived"] == [1.0, 0.0]
    assert found["prompt_tokens"] == [77, 18]


def test_a_cancelled_task_is_abandoned_and_an_error_is_a_request_too() -> None:
    log = (
        b"0.01.000.000 I slot launch_slot_: id  0 | task 12 | processing task\n"
        b"0.02.000.000 W srv          stop: cancel task, id_task = 12\n"
        b"0.03.000.000 I srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 503\n"
        b"0.04.000.000 I srv  log_server_r: request: GET /health 127.0.0.1 200\n"
    )
    batch, account, _ = read("llamacpp", log)
    assert told(batch) == {
        "arrived": [1.0, 3.0],
        "ended": [int(Ended.ABANDONED), int(Ended.REFUSED)],
    }
    assert account.ignored["probe"] == 1


@pytest.mark.parametrize(
    "around",
    [
        "2026-11-30T02:46:49.261400Z {}",  # docker logs -t, kubectl logs --timestamps
        "2026-11-30T02:46:49.261400000+00:00 stderr F {}",  # containerd
        '{{"log":"{}\\n","stream":"stderr","time":"2026-11-30T02:46:49.261400000Z"}}',  # Docker
    ],
)
def test_a_collectors_stamp_serves_as_well(around: str) -> None:
    log = "".join(around.format(line) + "\n" for line in BLOCK.splitlines()).encode()
    assert registry.detect(log).name == "llamacpp"
    batch, account, reader = read("llamacpp", log)
    assert batch.arrived[0] == pytest.approx(1796006801.208, abs=1e-6, rel=0)
    assert reader.arrival_from == "end - duration"
    assert account.skipped == 0


def test_without_a_clock_it_is_refused_however_the_log_is_cut() -> None:
    lines = BLOCK.encode().splitlines(keepends=True)
    with pytest.raises(UnreadableError, match="arrivals cannot be known"):
        read("llamacpp", *lines)
