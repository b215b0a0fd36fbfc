"""One request for text under way: events of the batcher in, bytes of the answer out."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Final

from surgetank.engine.literal import Event, EventKind
from surgetank.mockengine import answers, native
from surgetank.mockengine.answers import StreamForm
from surgetank.mockengine.asked import Asked
from surgetank.mockengine.connection import Connection, Headers
from surgetank.mockengine.driver import Driver
from surgetank.mockengine.faults import Fault, FaultKind
from surgetank.mockengine.native import MessagesForm, ResponsesForm
from surgetank.mockengine.text import Answer

_FLUSH: Final = 0.005  # seconds for the last written bytes to reach the socket before the exit
_DEAD: Final = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_TOKENS: Final = frozenset({EventKind.FIRST_TOKEN, EventKind.TOKEN})


class Generation:
    """Answers one request, streamed or whole, and strikes when its fault says so."""

    def __init__(
        self,
        *,
        number: int,
        id_: str,
        created: int,
        model: str,
        asked: Asked,
        choices: list[Answer],
        fault: Fault | None,
        driver: Driver,
        connection: Connection,
        load_header: Callable[[], Headers],
        on_end: Callable[[Generation], None],
        cached: int | None = None,
    ) -> None:
        """`cached` prompt tokens are in the prefix cache; None: there is none."""
        self._id = id_
        self._created = created
        self._model = model
        self._asked = asked
        self._choices = choices
        self._fault = fault
        self._driver = driver
        self._connection = connection
        self._load_header = load_header
        self._on_end = on_end
        self._cached = cached
        self._keys = [f"{number}-{i}" for i in range(len(choices))]
        self._counts = [0] * len(choices)
        self._unfinished = len(choices)
        self._total = 0
        self._over = False
        self._form: StreamForm | ResponsesForm | MessagesForm
        self._form = _native_form(asked, id_, created, model) or StreamForm(
            chat=asked.chat,
            id_=id_,
            created=created,
            model=model,
            prompt_tokens=asked.prompt_tokens,
            include_usage=asked.include_usage,
            continuous_usage=asked.continuous_usage,
            cached=cached,
        )

    def begin(self) -> None:
        """Queue its sequences; a stream's head goes out at once, as vLLM sends it on admission."""
        self._connection.on_gone = self.client_gone
        before_head = self._fault is not None and self._fault.kind is not FaultKind.ERROR_EVENT
        if before_head and self._strikes():
            return
        if self._asked.stream:
            self._connection.open_stream()
        if self._strikes():
            return
        for i, (key, choice) in enumerate(zip(self._keys, self._choices, strict=True)):
            listener = partial(self._happened, i)
            self._driver.add(
                key,
                self._asked.prompt_tokens,
                choice,
                self._asked.priority,
                listener,
                cached=self._cached or 0,
            )

    def client_gone(self) -> None:
        """Free what it holds in the engine: at once, streamed or not, running or queued."""
        self._end()

    def shut_down(self) -> None:
        """End it as vLLM does on SIGTERM: with finish_reason "abort" and what there is."""
        if self._over:
            self._connection.vanish()
            return
        if self._asked.stream:
            for i, count in enumerate(self._counts):
                if count < self._choices[i].tokens:
                    if not count:
                        self._connection.send(self._form.opening(i))
                    self._connection.send(self._form.last(i, "", "abort", self._total))
        self._complete()

    def _happened(self, index: int, event: Event) -> None:
        if self._over or event.kind not in _TOKENS:
            return
        self._counts[index] = event.tokens
        self._total += 1
        if event.tokens == self._choices[index].tokens:
            self._unfinished -= 1
        if self._asked.stream:
            self._stream_token(index, first=event.kind is EventKind.FIRST_TOKEN)
        if not self._strikes() and not self._unfinished:
            self._complete()

    def _stream_token(self, index: int, *, first: bool) -> None:
        choice = self._choices[index]
        count = self._counts[index]
        if first:
            self._connection.send(self._form.opening(index))
        text = choice.token(count)
        if count == choice.tokens:
            event = self._form.last(index, text, choice.finish_reason, self._total)
        else:
            event = self._form.token(index, text, self._total)
        self._connection.send(event)

    def _complete(self) -> None:
        self._end()
        if self._asked.stream:
            self._connection.send(self._form.closing(self._total))
            self._connection.end_stream()
            return
        parts = [
            (choice.text(count), choice.finish_reason if count == choice.tokens else "abort", count)
            for choice, count in zip(self._choices, self._counts, strict=True)
        ]
        body = self._native_body(*parts[0]) or answers.whole(
            chat=self._asked.chat,
            id_=self._id,
            created=self._created,
            model=self._model,
            prompt_tokens=self._asked.prompt_tokens,
            choices=parts,
            cached=self._cached,
        )
        self._connection.answer(200, body, headers=self._load_header())

    def _native_body(self, text: str, reason: str, tokens: int) -> bytes:
        """Write the answer of a route beside completions; empty for those."""
        if self._asked.route == native.EMBEDDINGS:
            return native.embeddings(self._asked, self._id, self._created, self._model)
        if isinstance(self._form, StreamForm):
            return b""
        return self._form.whole(text, reason, tokens)

    def _end(self, reason: str = "abort") -> None:
        """Forget it, exactly once; sequences that have not finished are aborted."""
        self._over = True
        for key in self._keys:
            self._driver.abort(key, reason)
        self._on_end(self)

    def _strikes(self) -> bool:
        """Do what the fault says once its number of tokens is reached; True when it is over."""
        fault = self._fault
        if fault is None or fault.after != self._total or self._over:
            return False
        if fault.kind is FaultKind.HANG:
            self._over = True  # its sequences hold their KV until they end, or the client goes
        elif fault.kind is FaultKind.DIE:
            self._over = True
            asyncio.get_running_loop().call_later(_FLUSH, os._exit, 1)
        elif fault.kind in {FaultKind.CUT, FaultKind.RESET}:
            self._end("error")
            self._connection.vanish(reset=fault.kind is FaultKind.RESET)
        elif fault.kind is FaultKind.ERROR_EVENT:
            self._end("error")
            self._fail()
        else:
            return False
        return True

    def _fail(self) -> None:
        """Report a dead engine as vLLM does: a 200 stream gets an error event and [DONE]."""
        if not self._asked.stream:
            self._connection.answer(500, answers.error(500, _DEAD, "InternalServerError"))
            return
        self._connection.send(answers.error_event(500, _DEAD, "InternalServerError"))
        self._connection.send(answers.DONE)
        self._connection.end_stream()


def _native_form(
    asked: Asked, id_: str, created: int, model: str
) -> ResponsesForm | MessagesForm | None:
    if asked.route == native.RESPONSES:
        return ResponsesForm(
            id_=id_, created=created, model=model, prompt_tokens=asked.prompt_tokens
        )
    if asked.route == native.MESSAGES:
        return MessagesForm(id_=id_, model=model, prompt_tokens=asked.prompt_tokens)
    return None
