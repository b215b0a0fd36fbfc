"""One request on its way: from admission to a replica and back to the client.

Rule: the client gets exactly one ending, FlowControl is told of exactly one ending, and one record
is written, whatever dies first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from surgetank.adapters.loadreport import ASK, HEADER
from surgetank.gateway import replies
from surgetank.gateway.account import Account
from surgetank.gateway.answers import (
    Answer,
    AssembledAnswer,
    Client,
    ErrorAnswer,
    StreamAnswer,
    WholeAnswer,
    has_events,
)
from surgetank.gateway.limitheaders import anthropic_headers, limit_headers
from surgetank.policy.effect import Cancel, Dispatch, Refuse
from surgetank.policy.flow import NO_BUDGET
from surgetank.policy.request import ENDINGS, Outcome, Request, Usage
from surgetank.wire.dialect import error_for, event_for
from surgetank.wire.http1 import ResponseHead
from surgetank.wire.native_body import ANTHROPIC_ROUTES, NATIVE_ROUTES, STREAMED_ROUTES
from surgetank.wire.native_stream import NativeAssembler, NativeScanner
from surgetank.wire.openai import Assembler, Body, can_assemble
from surgetank.wire.sse import SseScanner

if TYPE_CHECKING:
    from surgetank.gateway.fleet import Target
    from surgetank.gateway.server import Gateway
    from surgetank.gateway.upstream import UpstreamConnection

_OVERLOAD: Final = frozenset({429, 503, 529})
_DEAD: Final = frozenset({502, 504})
_OURS: Final = frozenset({401, 403, 407, 408, 499})  # of the call, not of the client's request
_UPSTREAM: Final = (
    b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
    b"x-request-id: %b\r\n%b\r\n"
)


_UNCHANGED: Final[Mapping[str, bytes]] = MappingProxyType({})


class Exchange:
    """Ticket towards the driver, receiver towards the upstream, host of its answer."""

    __slots__ = (
        "_account",
        "_answer",
        "_body",
        "_connecting",
        "_connection",
        "_ended",
        "_fresh",
        "_gateway",
        "_offered",
        "_shown_id",
        "_target",
        "_trace",
        "client",
        "request",
    )

    def __init__(  # noqa: PLR0917 - by position: keywords to a class cost a dict a request
        self,
        gateway: Gateway,
        client: Client,
        request: Request,
        body: Body,
        shown_id: bytes,
        trace: bytes,
    ) -> None:
        self.request = request
        self.client: Client | None = client
        self._gateway = gateway
        self._body = body
        self._shown_id = shown_id
        self._trace = trace
        self._account = Account(request, shown_id, gateway.clock())
        self._answer: Answer | None = None
        self._ended = False  # the record is written
        self._offered = False  # FlowControl knows of it
        self._fresh = False  # an idle connection was stale: only a new one will do
        self._target: Target | None = None
        self._connection: UpstreamConnection | None = None
        self._connecting: asyncio.Task[None] | None = None

    def offer(self) -> None:
        self._offered = True
        self._gateway.driver.offer(self.request, self)

    def offer_counted(self, counter: Target) -> None:
        """Have an engine count the prompt first, where room must be reserved for the worst case."""
        self._connecting = self._gateway.loop.create_task(self._count(counter))

    def offer_native(self) -> None:
        """Offer what is passed on as it is, when the engines of its model have its route."""
        routes, model, route = self._gateway.fleet.routes, self.request.model, self.request.route
        has = routes.known(model, route)
        if has is None:
            self._connecting = self._gateway.loop.create_task(self._ask_route())
        else:
            self._offer_if(has=has)

    async def _ask_route(self) -> None:
        has = await self._gateway.fleet.routes.ask(self.request.model, self.request.route)
        self._connecting = None
        self._offer_if(has=has)

    def _offer_if(self, *, has: bool) -> None:
        if has:
            self.offer()
            return
        route = self.request.route
        self._answer_outcome(Outcome.UNSUPPORTED, f"no engine here has {route}", status=404)

    async def _count(self, counter: Target) -> None:
        tokens = await self._gateway.fleet.count_tokens(counter, self._body)
        self._connecting = None
        if tokens is not None:
            self.request = self.request._replace(prompt_tokens=tokens)
        self.offer()

    # What the driver decides.

    def dispatch(self, effect: Dispatch) -> None:
        gateway = self._gateway
        if effect.attempt > 1:
            gateway.metrics.replays += 1
        self._account.dispatch(effect, gateway.clock())
        self._answer = None
        self._fresh = False
        target = gateway.fleet.target(effect.legs[-1].replica)
        if target is None:  # taken out of the configuration between the decision and now
            gateway.driver.retry(self.request.id, "unreached", None)
            return
        self._target = target
        self._send(target)

    def refuse(self, effect: Refuse) -> None:
        self.drop_upstream()
        self._account.refuse(effect, self._gateway.loop.time())
        self._answer_outcome(
            effect.outcome,
            effect.reason,
            retry_after=effect.retry_after,
            should_retry=effect.should_retry,
            effect=effect,
        )

    def cancel(self, effect: Cancel) -> None:
        self.drop_upstream()
        if self._started():
            self._break_off(effect.outcome, effect.reason)
        else:
            self._answer_outcome(effect.outcome, effect.reason)
        self._gateway.driver.finish(self.request.id, effect.outcome, self._usage())

    def shut_down(self) -> None:
        """The time to drain is over: end it, wherever it stands, and say so."""
        if self._ended:
            return
        self.drop_upstream()
        outcome, reason = Outcome.SHUTDOWN, "this gateway is shutting down"
        if self._started():
            self._break_off(outcome, reason)
        else:
            self._answer_outcome(outcome, reason, retry_after=1.0)
        self._gateway.driver.finish(self.request.id, outcome, self._usage())

    # What the client does.

    def client_gone(self) -> None:
        """The client has closed its connection: stop the work where it can be stopped."""
        self.client = None
        if self._ended:
            return
        reason = "the client left"
        usage = self._usage()
        self._record(Outcome.ABANDONED, reason, ENDINGS[Outcome.ABANDONED].status, usage)
        self.drop_upstream()
        if self._offered:
            self._gateway.driver.abandon(self.request.id, usage)

    def replica_gone(self, replica_id: str) -> None:
        """Its replica no longer answers: what the client has seen nothing of is asked elsewhere."""
        if self._target is None or self._target.id != replica_id or self._started() or self._ended:
            return
        self.drop_upstream()
        self._gateway.driver.retry(self.request.id, "failed", None)

    def strand(self) -> None:
        """No replica is left that it could wait for; what runs is told by its own connection."""
        if self._ended or self._connection is not None or self._connecting is not None:
            return
        outcome = Outcome.NO_REPLICA
        self._answer_outcome(
            outcome, "the last one was lost, and none is expected", retry_after=5.0
        )
        self._gateway.driver.finish(self.request.id, outcome, None)

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    # Sending.

    def _streams_upstream(self, target: Target) -> bool:
        return self._body.stream or (not target.frees_on_disconnect and can_assemble(self._body))

    def _may_be_sent_whole(self, target: Target) -> bool:
        route = self.request.route
        brief = route in NATIVE_ROUTES and route not in STREAMED_ROUTES  # no text is generated
        return brief or self._streams_upstream(target)

    def _send(self, target: Target) -> None:
        if not target.frees_on_disconnect and not self._may_be_sent_whole(target):
            # Such an engine goes on for a client that has left, in room that is given away.
            self._answer_outcome(
                Outcome.UNSUPPORTED, "this engine serves it only with stream: true"
            )
            self._gateway.driver.finish(self.request.id, Outcome.UNSUPPORTED, None)
            return
        connection = None if self._fresh else target.pool.acquire()
        if connection is None:
            self._connecting = self._gateway.loop.create_task(self._connect(target))
            return
        self._connection = connection
        connection.begin(self, *self._compose(target))

    async def _connect(self, target: Target) -> None:
        try:
            connection = await target.pool.connect()
        except (OSError, TimeoutError) as error:
            self._connecting = None
            gateway = self._gateway
            gateway.fleet.unreachable(target.id, str(error) or "no answer in time")
            gateway.driver.retry(self.request.id, "unreached", None)
            return
        self._connecting = None
        self._connection = connection
        connection.begin(self, *self._compose(target))

    def _compose(self, target: Target) -> tuple[bytes, Sequence[bytes | memoryview]]:
        """Write head and body for a replica, the body in parts."""
        body, usual = self._body, self._body.usual
        streams = body.stream or self._streams_upstream(target)
        ask_usage = streams and (not body.stream or body.include_usage is None)
        bound = self._account.max_tokens
        members = self._account.members() if self._account.degraded else _UNCHANGED
        parts: tuple[bytes | memoryview, ...]
        if usual is not None and not (ask_usage or members) and bound == self.request.max_tokens:
            parts = (usual.write(streams),)  # as Body.encode has it: two calls less
        else:
            parts = body.parts(
                stream=streams,
                include_usage=True if ask_usage else None,
                max_tokens=bound if bound != self.request.max_tokens else None,
                members=members,
            )
        more = self._trace
        if target.dialect.tells_load and not streams:
            more += ASK
        if target.authorization is not None:
            more += b"authorization: %b\r\n" % target.authorization
        route = self.request.route.encode("ascii")
        size = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        head = _UPSTREAM % (route, target.authority, size, self._shown_id, more)
        return head, parts

    def drop_upstream(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    # What the replica answers.

    def upstream_head(self, head: ResponseHead) -> None:
        target = self._target
        self._take_report(head)
        if head.status != 200:
            self._answer = ErrorAnswer(self, head)
        elif target is None or not has_events(head) or not self._streams_upstream(target):
            self._answer = WholeAnswer(self, head)
        else:
            strip = self._body.stream and self._body.include_usage is None
            max_line = self._gateway.upstream.max_line_bytes
            native = self.request.route in NATIVE_ROUTES
            scanner: SseScanner | NativeScanner
            if native:
                scanner = NativeScanner(max_line=max_line)
            else:
                scanner = SseScanner(strip_usage=strip, max_line=max_line)
            if self._body.stream:
                gateway = self._gateway
                answer = StreamAnswer(self, scanner, gateway.clock, gateway.metrics.gap)
                self._answer = answer
                if self._connection is not None:
                    self._connection.quick = answer.quick
            else:
                assembler = NativeAssembler() if native else Assembler(self._body)
                self._answer = AssembledAnswer(self, scanner, assembler)

    def _take_report(self, head: ResponseHead) -> None:
        """An engine may tell its load with an answer."""
        load = head.fields.get(HEADER)
        if load is not None and self._target is not None:
            self._gateway.fleet.reported(self._target, load)

    def upstream_body(self, payload: bytes) -> None:
        if self._answer is not None:
            self._answer.body(payload)

    def upstream_end(self) -> None:
        self._connection = None
        if self._answer is not None:
            self._answer.end()

    def upstream_whole(self, head: ResponseHead, payload: bytes) -> None:
        """The whole answer came at once, and its connection is another's already."""
        self._connection = None
        if head.status == 200 and not has_events(head):
            if HEADER in head.fields:
                self._take_report(head)
            whole = self._answer = WholeAnswer(self, head)
            whole.whole(payload)
            return
        self.upstream_head(head)
        answer = self._answer
        assert answer is not None  # noqa: S101  (a head makes one)
        if payload:
            answer.body(payload)
        if self._answer is answer and not self._ended:  # else its first event has decided
            answer.end()

    def upstream_lost(self, *, stale: bool) -> None:
        """The connection ended before its answer did."""
        self._connection = None
        if stale and not self._fresh and self._target is not None:
            # An idle connection that the engine had just closed: nothing was read, so ask again.
            self._fresh = True
            self._send(self._target)
            return
        self._distrust("the connection was cut")
        self.fail("the engine closed the connection")

    def upstream_broke(self, message: str) -> None:
        self._connection = None
        self._distrust(f"broke the protocol: {message}")
        self.fail(f"the engine broke the protocol: {message}")

    def _suspect(self) -> None:
        if self._target is not None:
            self._gateway.fleet.suspect(self._target)

    def _distrust(self, why: str) -> None:
        if self._target is not None:
            self._gateway.fleet.distrust(self._target.id, why)

    # What its answer says (see answers.Host).

    def first_token(self) -> None:
        if self._account.first_token is None:
            self._account.first_token = self._gateway.loop.time()
            if self._body.stream:  # a stream that has begun is never sent again: let the prompt go
                self._body.forget()
            self._gateway.driver.first_token(self.request.id)

    def all_tokens(self) -> None:
        """The first token came with the last: FlowControl hears of the end alone.

        The time of a prefill could not be learnt from it.
        """
        self._account.first_token = self._gateway.clock()

    def headers(self) -> bytes:
        """Headers on every answer of this request."""
        gateway, request, bound = self._gateway, self.request, self._account.max_tokens
        now = gateway.clock()
        budget = gateway.driver.flow.budget(request.tenant, now, request.key, request.model)
        told = self._account.told
        headers = b"x-request-id: %b\r\n%b%b" % (self._shown_id, told, limit_headers(budget))
        if bound is not None and bound != request.max_tokens:
            headers += b"x-surgetank-max-tokens: %d\r\n" % bound
        if budget is not NO_BUDGET and request.route in ANTHROPIC_ROUTES:
            headers += anthropic_headers(budget, now + gateway.wall_offset)
        degraded = self._account.degraded
        return headers + replies.degraded_header(degraded) if degraded else headers

    def judge(
        self, status: int, message: str, head: ResponseHead | None = None, body: bytes = b""
    ) -> None:
        """Decide what an engine's error means, while nothing has been sent to the client.

        `body` is an error in the OpenAI shape to pass on as it is, or empty.
        """
        if status in _OVERLOAD:
            if self._target is not None and status == 503:
                self._gateway.fleet.check(self._target.id)  # loading, perhaps: its health knows
            self._gateway.driver.retry(self.request.id, "busy", _retry_after(head))
        elif status in _DEAD:
            self.fail(f"the engine answered {status}")
        elif status == 500 and self._target is not None:
            doubt = self._doubt(self._target, message, body)
            self._connecting = self._gateway.loop.create_task(doubt)
        else:
            self._pass_on(status, message, body)

    async def _doubt(self, target: Target, message: str, body: bytes) -> None:
        """A 500 can be the request's own, or the last word of an engine that has died: ask it."""
        alive = await self._gateway.fleet.is_well(target)
        self._connecting = None
        if alive:
            self._pass_on(500, message, body)
        else:
            self._distrust("it answered 500 and is not well")
            self.fail(message)

    def _pass_on(self, status: int, message: str, body: bytes) -> None:
        """Give the engine's own error to the client; its words go into no record."""
        outcome, reason = Outcome.UPSTREAM_ERROR, f"the engine answered {status}"
        if status == 500:
            self._suspect()
        elif status == 501 and self._target is not None:  # vLLM: the model has no such task
            self._target.routes[self.request.route] = False
        if status in _OURS or not 400 <= status <= 599:
            status, body, message = 502, b"", "the engine refused this gateway's call"
        elif status < 500:
            outcome = Outcome.ENGINE_REJECTED
        ending = ENDINGS[outcome]
        answer = replies.plain_error(status, message, code=ending.code, kind=ending.type)
        if self.client is not None:
            told = error_for(self.request.route, status, body or answer[2])
            self.client.answer(status, replies.JSON_TYPE + self.headers(), told)
        self.finish(outcome, reason, status)

    def fail(self, message: str) -> None:
        """The upstream call is over without a usable answer: replay it, or break the stream off."""
        self._suspect()
        if self._started():
            self._break_off(Outcome.UPSTREAM_FAILED, message)
            self._gateway.driver.finish(self.request.id, Outcome.UPSTREAM_FAILED, self._usage())
        else:
            self._gateway.driver.retry(self.request.id, "failed", None)

    def finish(self, outcome: Outcome, reason: str, status: int) -> None:
        """The answer has ended and the client has it."""
        answer, gateway, target = self._answer, self._gateway, self._target
        usage = answer.usage() if answer is not None else None
        self._answer = None  # it holds this exchange: a circle would be left to the collector
        if not self._ended:  # as _record has it: a call less
            self._ended = True
            self._account.close(outcome, reason, status, usage, gateway.clock())
            gateway.ledger.add(self._account)
        gateway.driver.finish(self.request.id, outcome, usage)
        if target is not None and target.outlier.failures and outcome is Outcome.COMPLETED:
            gateway.fleet.trust(target)

    def output_tokens(self) -> int:
        """Output tokens so far, as counted or reported."""
        usage = self._usage()
        return usage.output_tokens if usage is not None else 0

    # The ending.

    def _started(self) -> bool:
        return self._answer is not None and self._answer.started

    def _break_off(self, outcome: Outcome, reason: str) -> None:
        """End a stream that has begun with an error event: an end alone looks like success."""
        self._record(outcome, reason, 200, self._usage())
        ending = ENDINGS[outcome]
        if self._answer is not None:
            route = self.request.route
            self._answer.break_off(
                event_for(route, ending.status, reason, type=ending.type, code=ending.code)
            )

    def _answer_outcome(
        self,
        outcome: Outcome,
        reason: str,
        *,
        retry_after: float | None = None,
        should_retry: bool = True,
        status: int | None = None,
        effect: Refuse | None = None,
    ) -> None:
        """Answer with an ending that is decided and settled."""
        param = self._body.limit_name if outcome is Outcome.OUTPUT_TOO_LONG else None
        status, headers, body = replies.refusal(
            outcome,
            reason,
            retry_after=retry_after,
            should_retry=should_retry,
            param=param,
            status=status,
            effect=effect,
        )
        self._account.told = b""  # the refusal's own header says it
        body = error_for(self.request.route, status, body)
        self._record(outcome, reason, status, self._usage())
        if self.client is not None:
            self.client.answer(status, headers + self.headers(), body)

    def _usage(self) -> Usage | None:
        return self._answer.usage() if self._answer is not None else None

    def _record(self, outcome: Outcome, reason: str, status: int, usage: Usage | None) -> None:
        if self._ended:
            return
        self._ended = True
        gateway = self._gateway
        self._account.close(outcome, reason, status, usage, gateway.clock())
        gateway.ledger.add(self._account)


def _retry_after(head: ResponseHead | None) -> float | None:
    """Read an engine's Retry-After in seconds; None when absent or a date."""
    value = head.get(b"retry-after") if head is not None else None
    if value is None or not value.isdigit() or len(value) > 6:
        return None
    return float(value)
