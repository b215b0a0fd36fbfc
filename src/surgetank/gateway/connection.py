"""One client's connection: read a request, have it answered, read the next.

Rule: one request at a time, answered in order; what is not a known route or has no valid key is
refused before its body is read; every wait on a client has a bound.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from hmac import compare_digest
from typing import TYPE_CHECKING, Final, cast

from surgetank.gateway import decision, replies
from surgetank.gateway.listing import is_of_models, models_answer
from surgetank.gateway.relay import Exchange
from surgetank.gateway.room import MOST_TURNED_AWAY
from surgetank.policy.request import Outcome, Request
from surgetank.wire.chunked import ChunkedDecoder
from surgetank.wire.dialect import error_for
from surgetank.wire.head import BAD_UPSTREAM
from surgetank.wire.http1 import LAST_CHUNK, ProtocolError, RequestHead, RequestParser
from surgetank.wire.native_body import ANTHROPIC_ROUTES, NATIVE_ROUTES, parse_native
from surgetank.wire.openai import ROUTES, BadRequest, parse_request
from surgetank.wire.request_body import user_of

if TYPE_CHECKING:
    from surgetank.gateway.keys import KeyRing
    from surgetank.gateway.server import Gateway
    from surgetank.wire.request_body import Body

_MAX_PIPELINED: Final = 64 << 10
_LINGER: Final = 1.0  # seconds to read and drop what a refused client is still sending
_CLIENT_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACE: Final = (b"traceparent", b"tracestate")
_SESSION_BYTES: Final = 256  # as of the body's
_SECONDS: Final = re.compile(rb"[0-9]+(?:\.[0-9]+)?")
_new: Final = tuple.__new__  # a named tuple's own is a Python function: a call more
_Hints = tuple[bytes | None, int, float | None, bytes, str]
_NO_HINTS: Final[_Hints] = (None, 0, None, b"", "")
_EARLY: Final = {401: Outcome.UNAUTHORIZED, 429: Outcome.QUEUE_BYTES, 503: Outcome.SHUTDOWN}
_SERVED: Final = ROUTES | NATIVE_ROUTES
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "_backlog", "_closing", "_deadline", "_exchange", "_gateway", "_head", "_held", "_hints",
        "_keep_alive", "_key", "_key_name", "_let_in", "_lingering", "_parser", "_paused", "_phase",
        "_pieces", "_ring", "_tenant", "_timer", "_timer_at", "_transport", "_version",
        "_write_timer",
    )  # fmt: skip

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport | None = None
        self._parser = RequestParser(gateway.limits)
        self._exchange: Exchange | None = None
        self._backlog = b""
        self._closing = False
        self._lingering = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._deadline: float | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._phase = "idle"
        self._head: RequestHead | None = None
        self._tenant = ""
        self._key_name = ""
        self._key = b""  # the Authorization header that both were told by, and the ring
        self._ring: KeyRing | None = None
        self._let_in = False  # the last head was: so is one that repeats it
        self._hints = _NO_HINTS
        self._pieces: list[bytes] = []
        self._held = 0  # bytes of a body that is still coming
        self._keep_alive = True
        self._version = 1

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's TCP transport is one in all but name.
        transport = self._transport = cast("asyncio.Transport", transport)
        gateway = self._gateway
        if len(gateway.clients) >= gateway.listen.max_connections:
            self._turn_away(transport)
            return
        gateway.clients.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=gateway.listen.max_buffered_bytes)
        # Who has sent nothing yet has shown no key either: no keep-alive for it.
        self._arm("idle", gateway.listen.head_timeout)

    def _turn_away(self, transport: asyncio.Transport) -> None:
        """Say that there is no room, while there is room to say it."""
        gateway = self._gateway
        self._closing = self._lingering = True
        gateway.metrics.turned_away += 1
        if len(gateway.turned_away) >= MOST_TURNED_AWAY:
            transport.abort()
            return
        gateway.turned_away.add(self)
        transport.write(replies.TOO_MANY_CONNECTIONS)
        if transport.can_write_eof():
            transport.write_eof()
        gateway.loop.call_later(_LINGER, self.abort)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._gateway.closed(self)
        if self._held:
            self._let_go()
        self._transport = None
        self._closing = True
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._closing:
            return
        if self._exchange is not None or self._paused:
            self._backlog += data
            if len(self._backlog) > _MAX_PIPELINED and self._transport is not None:
                self._transport.pause_reading()
            return
        self._feed(data)

    def pause_writing(self) -> None:
        self._paused = True
        if self._exchange is not None:
            self._exchange.pause()
        self._write_timer = self._gateway.loop.call_later(
            self._gateway.listen.write_timeout, self.abort
        )

    def resume_writing(self) -> None:
        self._paused = False
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._exchange is not None:
            self._exchange.resume()
        elif self._backlog:
            self._take_backlog()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def drain(self) -> None:
        """Close when idle; a request under way is answered first."""
        self._keep_alive = False
        # One that has not asked for anything yet may be about to: its first request is on its way.
        fresh = self._gateway.hands_over and not self._tenant
        if (
            self._exchange is None
            and not self._parser.started
            and self._transport is not None
            and not fresh
        ):
            self._closing = True
            self._transport.close()

    def shut_down(self) -> None:
        """Close now that no exchange is alive; half a request is answered, not cut off."""
        self.drain()
        if self._transport is not None and not self._closing:
            self._refuse(*self._shutting_down())

    @staticmethod
    def _shutting_down() -> tuple[int, bytes, bytes]:
        return replies.refusal(Outcome.SHUTDOWN, "this gateway is shutting down", retry_after=1.0)

    # Time bounds: one lazy timer, moved only when it fires or must fire earlier.

    def _arm(self, phase: str, seconds: float | None) -> None:
        self._phase = phase
        if seconds is None:
            self._deadline = None
            return
        loop = self._gateway.loop
        self._deadline = loop.time() + seconds
        if self._timer is not None:
            if self._timer_at <= self._deadline:
                return
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        deadline = self._deadline
        if deadline is None or self._transport is None:
            return
        if deadline > self._gateway.loop.time() + 0.001:
            self._timer_at = deadline
            self._timer = self._gateway.loop.call_at(deadline, self._on_timer)
        elif self._phase in {"head", "body"}:
            self._refuse(
                *replies.plain_error(
                    400, f"the request's {self._phase} did not arrive in time", code="slow_request"
                )
            )
        else:
            self._transport.abort()

    # Reading a request.

    def _feed(self, data: bytes) -> None:
        parser = self._parser
        while data and not self._closing:
            try:
                piece = parser.receive(data)
            except ProtocolError as error:
                self._gateway.metrics.rejected += 1
                code = "invalid_http"
                self._refuse(*replies.plain_error(error.status, error.message, code=code))
                return
            if piece:
                self._pieces.append(piece)
                if not parser.done and not self._hold(len(piece)):
                    return
            if self._head is None:
                gateway = self._gateway
                if (
                    parser.repeats
                    and self._let_in
                    and self._ring is gateway.keys
                    and not gateway.draining
                ):
                    head = self._head = parser.head
                    self._keep_alive = head is not None and head.keep_alive
                elif not self._take_head():
                    return
            if not parser.done:
                return
            data = parser.excess
            self._complete()
            if self._exchange is not None:
                self._backlog = data
                return

    def _hold(self, size: int) -> bool:
        """Count bytes of a body that is still coming; False when there are too many of all."""
        self._held += size
        gateway = self._gateway
        gateway.upload_bytes += size
        if gateway.upload_bytes <= gateway.listen.max_upload_bytes:
            return True
        gateway.metrics.rejected += 1
        reason = "too many request bodies are being received"
        self._refuse(*replies.refusal(Outcome.QUEUE_BYTES, reason, retry_after=1.0))
        self._let_go()
        return False

    def _let_go(self) -> None:
        self._gateway.upload_bytes -= self._held
        self._held = 0
        self._pieces = []

    def _take_head(self) -> bool:
        """Judge a request by its head; False when there is nothing more to do with this read."""
        head = self._parser.head
        listen = self._gateway.listen
        if head is None:
            if self._parser.started and self._phase == "idle":
                self._arm("head", listen.head_timeout)
            return False
        self._head = head
        gateway = self._gateway
        self._let_in = False
        self._version = head.version_minor
        self._keep_alive = head.keep_alive and not gateway.draining
        refused = self._refusal_by_head(head)
        if refused is not None:
            gateway.metrics.rejected += 1
            self._refuse(*refused)
            return False
        self._let_in = True
        self._hints = _hints_of(head.fields, gateway.session_header)
        if not self._parser.done:
            self._arm("body", listen.body_timeout)
            if head.expect_continue and self._transport is not None and not self._pieces:
                self._transport.write(_CONTINUE)
        return True

    def _refusal_by_head(self, head: RequestHead) -> tuple[int, bytes, bytes] | None:
        gateway = self._gateway
        allowed = "POST" if head.path in _SERVED else "GET" if is_of_models(head.path) else None
        if allowed is None:
            return replies.plain_error(
                404, "no such route", code="not_found"
            )  # deny by default: engines answer far more than tenants may reach
        if head.method != allowed:
            status, headers, body = replies.plain_error(
                405, f"{head.path} takes {allowed}", code="method_not_allowed"
            )
            return status, headers + b"allow: %b\r\n" % allowed.encode(), body
        told = head.fields.get(b"authorization")
        if not self._is_let_in(_other_key(head) if told is None else told):
            gateway.metrics.unauthorized += 1
            status, headers, body = replies.plain_error(
                401, "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key"
            )
            return status, headers + replies.CHALLENGE, body
        if gateway.draining and not gateway.hands_over:
            return self._shutting_down()
        return None

    def _is_let_in(self, authorization: bytes | None) -> bool:
        """Know whose request it is, by its key; the key of the request before it at once."""
        gateway, told = self._gateway, authorization or b""
        if told and self._ring is gateway.keys and compare_digest(told, self._key):
            return True
        owner = gateway.owner_of(authorization)
        if owner is None:
            return False
        self._tenant, self._key_name = owner
        self._key, self._ring = told, gateway.keys
        return True

    def _complete(self) -> None:
        """A whole request is here: answer it or start its exchange."""
        self._phase, self._deadline = "active", None
        head, pieces = self._head, self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        gateway = self._gateway
        assert head is not None  # noqa: S101 (a complete message has a head)
        own_id, path = gateway.next_id(), head.path
        client_id, client_retry, patience, trace, session = self._hints
        shown_id = client_id or own_id.encode()
        self._parser.reset()
        self._head = None
        self._pieces = []
        if self._held:
            self._let_go()
        if path not in _SERVED:
            names, created = gateway.fleet.models(), int(gateway.wall_offset)
            self._write_early(*models_answer(path, names, created), shown_id)
            return
        try:
            parsed = parse_request(path, body) if path in ROUTES else parse_native(path, body)
        except BadRequest as error:
            gateway.metrics.rejected += 1
            self._note(head, shown_id, error.status)
            status, headers, told = replies.bad_request(
                error.status, error.message, error.param, error.code
            )
            self._write_early(status, headers, error_for(path, status, told), shown_id)
            return
        fields = (
            own_id,
            self._tenant,
            parsed.model,
            parsed.prompt_bytes,
            parsed.prompt_chars,
            parsed.prompt_tokens,
            parsed.messages,
            parsed.max_tokens,
            parsed.choices,
            len(body),
            path,
            parsed.stream,
            session or self._session_of(parsed),
            client_retry,
            None,  # no TTFT objective of its own
            patience,
            None,  # the tenant's own total time
            self._key_name,
            parsed.prefix,
        )
        request = _new(Request, fields)
        exchange = Exchange(gateway, self, request, parsed, shown_id, trace)
        self._exchange = exchange
        if path in NATIVE_ROUTES:
            exchange.offer_native()
            return
        counter = gateway.fleet.counter(parsed) if gateway.fleet.counts else None
        if counter is None:
            exchange.offer()
        else:
            exchange.offer_counted(counter)

    def _session_of(self, parsed: Body) -> str:
        """Name the session that a body tells, where the settings say."""
        member = self._gateway.sessions.member
        if member == "user":
            return user_of(parsed)
        return "" if member == "none" else parsed.session

    # Writing an answer.

    def framing(self) -> bytes:
        """Headers that say how a body of unknown length ends."""
        if self._version == 0:
            self._keep_alive = False
            return replies.CLOSE
        return replies.CHUNKED if self._keep_alive else replies.CHUNKED + replies.CLOSE

    def start_stream(self, head: bytes, payload: bytes) -> None:
        self._parser.forget()
        if self._transport is not None:
            self._transport.write(head + self._framed(payload))

    def write_piece(self, payload: bytes) -> None:
        if self._transport is not None:
            if self._version:
                self._transport.write(b"%x\r\n%b\r\n" % (len(payload), payload))
            else:
                self._transport.write(payload)

    def chunk_writer(self) -> Callable[[bytes], object]:
        """Give what writes whole chunks that have their frames already, while this is open."""
        if self._version and self._transport is not None:
            return self._transport.write
        return self._write_unframed

    def _write_unframed(self, data: bytes) -> None:
        if self._transport is not None:
            decoder = ChunkedDecoder(self._gateway.limits, BAD_UPSTREAM)
            self._transport.write(decoder.feed(data))

    def _framed(self, payload: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(payload), payload) if self._version and payload else payload

    def end_stream(self) -> None:
        if self._version and self._transport is not None:
            self._transport.write(LAST_CHUNK)
        self._answered()

    def answer(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer the running exchange with a whole response."""
        transport = self._transport
        if (
            status == 200
            and transport is not None
            and self._keep_alive
            and not (self._gateway.draining or self._backlog or self._closing)
        ):  # as most are: what the two below come to
            transport.write(replies.PLAIN % (headers, len(body), body))
            self._exchange = None
            self._arm("idle", self._gateway.listen.idle_timeout)
            return
        self._write_whole(status, headers, body)
        self._answered()

    def _write_whole(self, status: int, headers: bytes, body: bytes) -> None:
        if self._transport is None:
            return
        keep_alive = self._keep_alive and not self._gateway.draining
        head = self._parser.head  # of a request that is refused; no HEAD gets any further
        to_head = head is not None and head.method == "HEAD"
        self._transport.write(
            replies.whole(status, headers, body, keep_alive=keep_alive, to_head=to_head)
        )
        if not keep_alive:
            self._close_gently()
        elif self._exchange is None:
            self._arm("idle", self._gateway.listen.idle_timeout)

    def _answered(self) -> None:
        """The exchange's answer is written: wait for the next request, or take one that waits."""
        self._exchange = None
        if self._transport is None or self._closing:
            return
        if not self._keep_alive or self._gateway.draining:
            self._close_gently()
            return
        self._arm("idle", self._gateway.listen.idle_timeout)
        if self._backlog:
            self._gateway.loop.call_soon(self._take_backlog)

    def _take_backlog(self) -> None:
        if self._transport is None or self._closing or self._exchange is not None:
            return
        if self._paused:
            return  # answers nobody reads would gather: the next request waits for its reader
        data, self._backlog = self._backlog, b""
        self._transport.resume_reading()
        self._feed(data)

    def _refuse(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer a request that is not read to its end; the connection cannot be used again."""
        self._keep_alive = False
        head = self._parser.head
        shown_id = head.get(b"x-request-id") if head is not None else None
        if shown_id is None or not _CLIENT_ID.fullmatch(shown_id):
            shown_id = self._gateway.next_id().encode()
        if head is not None:
            self._note(head, shown_id, status)
            if decision.HEADER not in headers:
                told = decision.refused(_EARLY.get(status, Outcome.INVALID))
                headers += decision.header(told)
            body = error_for(head.path, status, body)
        self._write_early(status, headers, body, shown_id)

    def _note(self, head: RequestHead, shown_id: bytes, status: int) -> None:
        """Book a request to a route that never became an exchange."""
        if head.path not in _SERVED:
            return
        told = head.fields.get(b"authorization")
        owner = self._gateway.owner_of(_other_key(head) if told is None else told)
        outcome, tenant = _EARLY.get(status, Outcome.INVALID), "" if owner is None else owner.tenant
        self._gateway.ledger.refuse(shown_id, tenant, head.path, outcome, status)

    def _write_early(self, status: int, headers: bytes, body: bytes, shown_id: bytes) -> None:
        """Answer what never became an exchange."""
        self._write_whole(status, b"%bx-request-id: %b\r\n" % (headers, shown_id), body)

    def _close_gently(self) -> None:
        """Close after what is written has been sent; read on a little, lest a reset overtake it."""
        transport = self._transport
        if transport is None or self._closing:
            return
        self._closing = self._lingering = True
        self._arm("closing", None)
        if self._parser.started or self._backlog:
            if transport.can_write_eof():
                transport.write_eof()
            self._gateway.loop.call_later(_LINGER, self.abort)
        else:
            transport.close()


def _hints_of(fields: dict[bytes, bytes], session_header: bytes) -> _Hints:
    """Read what a head tells: id, retries so far, patience (seconds), trace, session."""
    client_id = fields.get(b"x-request-id")
    if client_id is not None and not _CLIENT_ID.fullmatch(client_id):
        client_id = None
    retry = fields.get(b"x-stainless-retry-count")
    patience = fields.get(b"x-stainless-read-timeout")
    session = fields.get(session_header)
    trace = b""
    if b"traceparent" in fields or b"tracestate" in fields:
        trace = b"".join([b"%b: %b\r\n" % (x, fields[x]) for x in _TRACE if x in fields])
    return (
        client_id,
        0 if retry is None else _small_int(retry),
        # The client gives up when it has read nothing for so long: it is told a little before.
        None if patience is None else _seconds(patience, share=0.9),
        trace,
        "" if session is None else session[:_SESSION_BYTES].decode("latin-1"),
    )


def _other_key(head: RequestHead) -> bytes | None:
    """Return the x-api-key of Anthropic's clients as the Authorization it stands for."""
    key = head.fields.get(b"x-api-key") if head.path in ANTHROPIC_ROUTES else None
    return None if key is None else b"Bearer " + key


def _small_int(value: bytes) -> int:
    return min(int(value), 100) if value.isdigit() and len(value) <= 4 else 0


def _seconds(value: bytes, *, share: float) -> float | None:
    """Read a client's hint of seconds, and take a share of it; None for what is none."""
    return share * float(value) if len(value) <= 12 and _SECONDS.fullmatch(value) else None
