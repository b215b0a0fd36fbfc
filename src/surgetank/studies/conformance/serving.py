"""One request being answered by a scripted replica, from its slot to its end.

Rule: it writes what its behaviour says and tells of its end once; when the other side leaves, its
replica stops it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from surgetank.mockengine import answers
from surgetank.mockengine.connection import Connection
from surgetank.studies.conformance.behaviour import Behaviour
from surgetank.wire.http1 import response_head

if TYPE_CHECKING:
    from surgetank.studies.conformance.replica import End, Received

_BROKEN: Final = "engine failed on purpose"
_LINE: Final = 1 << 16  # bytes of an endless line in one write
_TIMED: Final = 100  # pieces whose moments are noted


class Serving:
    """An answer under way."""

    def __init__(
        self, connection: Connection, received: Received, behaviour: Behaviour, model: str
    ) -> None:
        self.received = received
        self._connection = connection
        self._behaviour = behaviour
        self._model = model
        self._told: Callable[[End], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sent = 0
        self._usage = False

    def begin(self, told: Callable[[End], None]) -> None:
        """It has a slot now. `told` is called once, at its end."""
        self._told = told
        self._after(self._behaviour.service, self._open)

    def stop(self) -> None:
        """Write nothing more."""
        self._told = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _after(self, seconds: float, then: Callable[[], None]) -> None:
        if seconds > 0:
            self._timer = asyncio.get_running_loop().call_later(seconds, then)
        else:
            then()

    def _end(self, end: End) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(end)

    def _cut(self) -> None:
        self._connection.on_gone = None
        self._connection.vanish(reset=self._behaviour.reset)
        self._end("broken")

    # Its parts.

    def _open(self) -> None:
        behaviour, connection = self._behaviour, self._connection
        asked = _members(self.received.body)
        if behaviour.hang_after == 0:
            return
        if behaviour.cut_after == 0:
            self._cut()
            return
        if behaviour.status != 200:
            told = behaviour.retry_after.encode()
            error = answers.error(behaviour.status, _BROKEN, "EngineError")
            headers = [(b"retry-after", told)] if told else []
            connection.answer(behaviour.status, error, headers=headers)
            self._end("answered")
        elif asked.get("stream") is True:
            options = asked.get("stream_options")
            wanted = isinstance(options, dict) and options.get("include_usage") is True
            self._usage = behaviour.usage == "always" or (behaviour.usage == "asked" and wanted)
            if behaviour.trickle:
                connection.trickle(0.0)
            connection.open_stream()
            if behaviour.error_after != 0:
                connection.send(self._chunk({"role": "assistant", "content": ""}))
            self._step()
        else:
            self._whole()

    def _whole(self) -> None:
        behaviour, connection = self._behaviour, self._connection
        if behaviour.error_after is not None:
            body = answers.error(500, _BROKEN, "EngineError")
        else:
            body = json.dumps(self._completion()).encode()
        if behaviour.hang_after is not None:
            return
        if behaviour.cut_after is not None:
            fields = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
            ]
            connection.send_garbage(response_head(200, fields) + body[: len(body) // 2])
            self._end("broken")
            return
        connection.answer(200, body)
        self._end("answered")

    def _step(self) -> None:
        """Write the next piece, or what happens in its place."""
        behaviour, connection = self._behaviour, self._connection
        while True:
            if self._sent == behaviour.hang_after:
                return
            if self._sent == behaviour.cut_after:
                self._cut()
                return
            if self._sent == behaviour.error_after:
                self._break()
                return
            if self._sent == behaviour.tokens:
                self._finish()
                return
            content = behaviour.piece.replace("{}", str(self._sent))
            connection.send(self._chunk({"content": content, **behaviour.said}))
            if self._sent < _TIMED:
                self.received.wrote.append(asyncio.get_running_loop().time())
            self._sent += 1
            if behaviour.endless_line and self._sent == 1:
                self._flood(behaviour.endless_line)
                return
            if behaviour.pace > 0:
                self._after(behaviour.pace, self._step)
                return

    def _break(self) -> None:
        """Tell of an error inside the stream."""
        if self._behaviour.bare_error:
            self._connection.send(answers.error(500, _BROKEN, "EngineError") + b"\n")
            self._connection.end_stream()
            self._end("answered")
        else:
            self._connection.send(answers.error_event(500, _BROKEN, "EngineError"))
            self._close()

    def _flood(self, left: int) -> None:
        """Write a line that never ends, a piece a round of the loop, then nothing more."""
        self._connection.send(b"data: " if self._sent == 1 else b"")
        self._sent += 1
        self._connection.send(b"x" * min(left, _LINE))
        if left > _LINE and self._told is not None:
            self._timer = asyncio.get_running_loop().call_later(0.0005, self._flood, left - _LINE)

    def _finish(self) -> None:
        connection = self._connection
        connection.send(self._chunk({}, finish="stop"))
        if self._usage:
            connection.send(self._event({"choices": [], "usage": self._counted()}))
        self._close()

    def _close(self) -> None:
        if self._behaviour.done:
            self._connection.send(answers.DONE)
        self._connection.end_stream()
        self._end("answered")

    # What it says.

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return self._event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    def _event(self, more: dict[str, Any]) -> bytes:
        head = {
            "id": f"chatcmpl-{self.received.number}",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self._model,
        }
        event = {**head, **self._behaviour.more, **more}
        return b"data: %b\n\n" % json.dumps(event, separators=(",", ":")).encode()

    def _counted(self) -> dict[str, Any]:
        behaviour = self._behaviour
        output = behaviour.tokens if behaviour.output_tokens is None else behaviour.output_tokens
        prompt = behaviour.prompt_tokens
        told: dict[str, Any] = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }
        if behaviour.cached_tokens is not None:
            told["prompt_tokens_details"] = {"cached_tokens": behaviour.cached_tokens}
        return told

    def _completion(self) -> dict[str, Any]:
        behaviour = self._behaviour
        text = "".join(behaviour.piece.replace("{}", str(i)) for i in range(behaviour.tokens))
        message = {"role": "assistant", "content": text, **self._behaviour.said}
        return {
            **self._behaviour.more,
            "id": f"chatcmpl-{self.received.number}",
            "object": "chat.completion",
            "created": 1,
            "model": self._model,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": self._counted(),
        }


def _members(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
    except ValueError:
        return {}
    return asked if isinstance(asked, dict) else {}
