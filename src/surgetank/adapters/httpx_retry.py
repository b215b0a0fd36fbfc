"""Retries for httpx clients, and so for openai-python's `http_client`, that make no second burst.

Rule: a retry is a favour that is asked of a server in trouble. Delays grow (1, 2, 4, 8 s) and are
drawn anew each time over their whole length; Retry-After is waited for, with the draw on top of it;
and retries are a share of the requests (a budget), so that an outage is not multiplied.

httpx is no dependency of Surgetank. The transport is made of whichever module the client's requests
come from: httpx, or httpx2, which openai-python uses by itself from release 3 on.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import random
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from surgetank.policy.backoff import RetryBudget
from surgetank.policy.retry import POLITE, Refusal, RetryRule
from surgetank.wire.retry_after import refusal

if TYPE_CHECKING:
    import httpx

    class _Transport(httpx.BaseTransport, httpx.AsyncBaseTransport):
        """What type checkers want to see; httpx itself asks for the methods only."""

else:
    _Transport = object

_MODULES: Final = ("httpx", "httpx2")
_WORTH_READING: Final = 65_536  # bytes of an error body, so that its connection can be kept
_RESERVE: Final = 10.0  # retries in 10 s that need no traffic: a lone script gets all four
_OURS: Final = ("UnsupportedProtocol", "LocalProtocolError")  # the same again would be as wrong


class RetryTransport(_Transport):
    """A transport that tries again, for `httpx.Client` and `httpx.AsyncClient` alike.

    `inner`: the transport that sends; httpx's own without one. `rule`: when and after how long;
    `budget`: how many retries there may be for the requests made (a tenth of those of the last 10 s
    and ten more, when none is given), shared by all who use this transport, threads included.
    `retries` and `denied` count those made, and those the budget did not allow.

    Once the rule gives up, or the budget is used up, the last answer is returned, or the last error
    raised, as if there were no retries. A body that can be sent only once is not sent again.
    Raises ImportError when no httpx is installed.
    """

    def __init__(
        self,
        inner: Any = None,
        *,
        rule: RetryRule = POLITE,
        budget: RetryBudget | None = None,
        draws: random.Random | None = None,
    ) -> None:
        if not any(importlib.util.find_spec(name) for name in _MODULES):
            raise ImportError("surgetank.RetryTransport needs httpx: pip install httpx")
        self._inner = inner
        self._made: dict[str, Any] = {}
        self._rule = rule
        self._budget = budget or RetryBudget(reserve=_RESERVE)
        self._draws = draws or random.Random()
        self._lock = threading.Lock()
        self.retries = 0
        self.denied = 0

    # --- what httpx calls

    def handle_request(self, request: Any) -> Any:
        transport, errors = self._parts(request, "HTTPTransport")
        self._requested()
        retries = 0
        while True:
            response, error = None, None
            try:
                response = transport.handle_request(request)
            except errors as raised:
                error = raised
            wait = self._wait(request, response, error, retries)
            if wait is None:
                return _given(response, error)
            if response is not None:
                if _is_short(response):
                    with contextlib.suppress(errors):
                        response.read()
                response.close()
            time.sleep(wait)
            retries += 1
            request.headers["x-stainless-retry-count"] = str(retries)

    async def handle_async_request(self, request: Any) -> Any:
        transport, errors = self._parts(request, "AsyncHTTPTransport")
        self._requested()
        retries = 0
        while True:
            response, error = None, None
            try:
                response = await transport.handle_async_request(request)
            except errors as raised:
                error = raised
            wait = self._wait(request, response, error, retries)
            if wait is None:
                return _given(response, error)
            if response is not None:
                if _is_short(response):
                    with contextlib.suppress(errors):
                        await response.aread()
                await response.aclose()
            await importlib.import_module("anyio").sleep(wait)  # httpx's own: asyncio or trio
            retries += 1
            request.headers["x-stainless-retry-count"] = str(retries)

    def close(self) -> None:
        for transport in self._transports():
            transport.close()

    async def aclose(self) -> None:
        for transport in self._transports():
            await transport.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.aclose()

    # --- what is decided

    def _wait(self, request: Any, response: Any, error: Any, retries: int) -> float | None:
        """Seconds until the next attempt; None: this was the last one."""
        if response is not None and response.status_code < 400:
            return None
        if type(error).__name__ in _OURS or not _can_be_sent_again(request):
            return None
        if response is None:
            why = Refusal(0)
        else:
            why = refusal(response.status_code, response.headers.get, time.time())
        with self._lock:
            wait = self._rule.wait(why, retries, self._draws.random())
            if wait is None:
                return None
            now = time.monotonic()
            if not self._budget.allows(now):
                self.denied += 1
                return None
            self._budget.retried(now)
            self.retries += 1
            return wait

    def _requested(self) -> None:
        with self._lock:
            self._budget.requested(time.monotonic())

    def _parts(self, request: Any, kind: str) -> tuple[Any, type[Exception]]:
        """The transport to send with, and the errors of its module that may be tried again."""
        module = importlib.import_module(type(request).__module__.partition(".")[0])
        transport = self._inner
        if transport is None:
            with self._lock:
                transport = self._made.get(kind)
                if transport is None:
                    transport = self._made[kind] = getattr(module, kind)()
        return transport, module.TransportError

    def _transports(self) -> list[Any]:
        return list(self._made.values()) if self._inner is None else [self._inner]


def _given(response: Any, error: Exception | None) -> Any:
    if error is not None:
        raise error
    return response


def _is_short(response: Any) -> bool:
    length = response.headers.get("content-length", "")
    return length.isdecimal() and int(length) <= _WORTH_READING


def _can_be_sent_again(request: Any) -> bool:
    """Whether its body is held as bytes: a generator's is gone once it was sent."""
    try:
        return request.content is not None
    except RuntimeError:  # RequestNotRead
        return False
