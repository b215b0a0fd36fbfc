"""llama.cpp's server log: a block of timings when a request ends.

Without --log-timestamps (or a collector's stamps) it holds no time, so arrivals cannot be known.
With them, a request arrives when its slot starts it (launch_slot_), or total time before its end;
the wait for a free slot is in no line. --log-timestamps counts from the server's start.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from surgetank.traffic.formats.clock import collected, without_prefix
from surgetank.traffic.formats.reading import Account, Format, ReadOptions, UnreadableError
from surgetank.traffic.formats.routes import ended, not_inference
from surgetank.traffic.formats.rows import BadLineError, LineReader, NotARequestError, Row
from surgetank.traffic.trace import UNKNOWN, Ended

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
# --log-timestamps: minutes.seconds.milliseconds.microseconds since the start; then a level letter
_CLOCK: Final = re.compile(r"(\d{1,9})\.(\d\d)\.(\d{3})\.(\d{3}) ", re.ASCII)
_LEVEL: Final = re.compile(r"[DIWE] ")
_SLOT: Final = re.compile(r"slot +([\w()]{1,24}): id +\d{1,9} \| task (-?\d{1,12}) \| ?", re.ASCII)
_TIMING: Final = re.compile(
    r" *(prompt eval|eval|total) time = *(\d{1,12}(?:\.\d{1,9})?) ms / *(\d{1,12}) tokens", re.ASCII
)
_SIZE: Final = re.compile(r"new prompt, .{0,200}?\b(?:task\.n_tokens|n_prompt_tokens) = (\d{1,12})")
_CANCEL: Final = re.compile(r"srv .{0,40}: cancel task, id_task = (\d{1,12})", re.ASCII)
_ANSWERED: Final = re.compile(
    r"srv +log_server_r: (?:done )?request: ([A-Z]{1,8}) (\S{1,2000}) \S{1,64} (\d{3})\Z", re.ASCII
)
_OWN: Final = re.compile(
    r"(?:\d{1,9}\.\d\d\.\d{3}\.\d{3} )?(?:[DIWE] )?(?:slot +[\w()]{1,24}: id +\d"
    r"|srv +[\w()]{1,24}: | *(?:prompt )?eval time = )",
    re.ASCII,
)
_MOST_OPEN: Final = 100_000  # tasks whose end was not seen; older ones are forgotten
_NO_CLOCK: Final = (
    "no time stamps in this llama.cpp log, so arrivals cannot be known: start llama-server with "
    "--log-timestamps, or keep the collector's stamps (docker logs -t, kubectl logs --timestamps)"
)
_FROM_SLOT: Final = (
    "a request arrives, as far as known, when its slot starts it: its wait is not logged"
)
_EVALUATED: Final = "prompt tokens are those evaluated: a prefix found in the cache is not counted"
_RELATIVE: Final = "times count from the server's start"


def detect(head: bytes, _filename: str) -> bool:
    """Tell a llama.cpp server log from its slot and timing lines."""
    lines = head.decode("utf-8", "replace").split("\n")[:500]
    return any(_OWN.match(_ANSI.sub("", without_prefix(line))) for line in lines)


def read(options: ReadOptions) -> LineReader:
    """Read a llama.cpp log; `options.start` is when the server started."""
    account = Account()
    log = _Log(account, options.start)
    reader = LineReader(log.parse, arrival_from="end - duration", account=account, last=log.last)
    log.reader = reader
    return reader


@dataclass(slots=True)
class _Task:
    started: float | None = None
    size: int = UNKNOWN  # tokens of the whole prompt
    prompt_ms: float = 0.0
    prompt: int = UNKNOWN  # tokens evaluated
    output: int = UNKNOWN


class _Log:
    """State: the tasks that run, the last stamp, and the task whose block of timings is open."""

    def __init__(self, account: Account, start: float | None) -> None:
        self.reader: LineReader | None = None
        self._account = account
        self._zero = start or 0.0
        self._tasks: dict[str, _Task] = {}
        self._block = ""
        self._now: float | None = None
        self._clockless = False

    def parse(self, line: str) -> list[Row]:
        line = self._stamped(line)
        slot = _SLOT.match(line)
        if slot is None:
            timing = _TIMING.match(line)
            if timing and self._block:
                return self._timing(timing)
            return self._elsewhere(line)
        verb, task = slot.groups()
        at = slot.end()
        if verb == "print_timing":
            self._block = task
            timing = _TIMING.match(line, at)
            if timing:
                return self._timing(timing)
        elif verb == "launch_slot_":
            self._known(task).started = self._now
        elif size := _SIZE.match(line, at):
            self._known(task).size = int(size[1])
        raise NotARequestError("log line within a request")

    def last(self) -> list[Row]:
        if self._clockless and not self._account.rows:
            raise UnreadableError(_NO_CLOCK)
        return []

    def _stamped(self, line: str) -> str:
        stamp, line = collected(line)
        line = _ANSI.sub("", line)
        clock = _CLOCK.match(line)
        if clock:
            line = line[clock.end() :]
            if stamp is None:
                minutes, second, ms, us = (int(part) for part in clock.groups())
                stamp = self._zero + minutes * 60 + second + ms * 1e-3 + us * 1e-6
                if self.reader is not None:
                    self.reader.arrival_from = "relative start"
                self._account.note(_RELATIVE)
        if stamp is not None:
            self._now = stamp
        return line[2:] if _LEVEL.match(line) else line

    def _known(self, task: str) -> _Task:
        if task not in self._tasks and len(self._tasks) >= _MOST_OPEN:
            del self._tasks[next(iter(self._tasks))]
        return self._tasks.setdefault(task, _Task())

    def _timing(self, timing: re.Match[str]) -> list[Row]:
        task = self._known(self._block)
        what, ms, tokens = timing[1], float(timing[2]), int(timing[3])
        if what == "prompt eval":
            task.prompt_ms, task.prompt = ms, tokens
        elif what == "eval":
            task.output = tokens
        else:
            del self._tasks[self._block]
            self._block = ""
            return [self._ended(task, ms)]
        raise NotARequestError("log line within a request")

    def _ended(self, task: _Task, total_ms: float) -> Row:
        if self._now is None:
            self._clockless = True
            raise BadLineError("a request without a time stamp")
        self._account.note(_FROM_SLOT)
        whole = task.size >= task.prompt >= 0
        if not whole:
            self._account.note(_EVALUATED)
        return Row(
            self._now - total_ms / 1e3 if task.started is None else task.started,
            duration=total_ms / 1e3,
            ttft=task.prompt_ms / 1e3 if task.prompt >= 0 else float("nan"),
            prompt_tokens=task.size if whole else task.prompt,
            cached_tokens=task.size - task.prompt if whole else UNKNOWN,
            output_tokens=task.output,
            ended=Ended.COMPLETED,
        )

    def _elsewhere(self, line: str) -> list[Row]:
        cancel = _CANCEL.match(line)
        if cancel:
            task = self._tasks.pop(cancel[1], None)
            if task is not None and task.started is not None:
                return [Row(task.started, prompt_tokens=task.size, ended=Ended.ABANDONED)]
            raise NotARequestError("log line within a request")
        answered = _ANSWERED.match(line)
        if answered is None:
            raise NotARequestError("other log line")
        why = not_inference(answered[1], answered[2])
        if why:
            raise NotARequestError(why)
        outcome = ended(int(answered[3]))
        if outcome == Ended.COMPLETED or self._now is None:
            raise NotARequestError("log line within a request")
        return [Row(self._now, ended=outcome)]  # refused before a slot had it: no timings


FORMATS: Final = (Format("llamacpp", "llama.cpp server log", detect, read),)
