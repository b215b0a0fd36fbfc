"""The story of one request, from the records of its time.

Rule: it says what the records say and no more. What a record does not hold, such as one written by
an older version, is "unknown", never a zero. Counts of others are of requests that have ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from surgetank.policy.record import RequestRecord
from surgetank.studies.explain_advice import Minute, advice, meaning_of

MINUTE: Final = 60.0  # seconds before its arrival that quotas are judged by
_MOST_TENANTS: Final = 6


@dataclass(slots=True)
class Around:
    """Others of its model at the moment it arrived, by tenant, and who went before it."""

    running: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    overtook: dict[str, int] = field(default_factory=dict)  # arrived later, were sent earlier
    records: int = 0  # looked at


@dataclass(frozen=True, slots=True)
class Story:
    """One request explained. `sentences` and `advice` are the text; the rest are its figures."""

    record: RequestRecord
    around: Around
    before: Minute
    sentences: list[str]
    advice: list[str]

    def to_json(self) -> dict[str, Any]:
        """The same figures, JSON-able; None is unknown, or did not happen."""
        r = self.record
        return {
            "v": 1,
            "request": asdict(r),
            "waited": waited(r),
            "ttft": r.ttft,
            "total": None if r.ended is None else r.ended - r.arrived,
            "around": asdict(self.around),
            "minute_before": asdict(self.before),
            "sentences": self.sentences,
            "advice": self.advice,
        }


def waited(record: RequestRecord) -> float | None:
    """Seconds in the gateway's queue; None when it is unknown how long."""
    if record.queued is None:
        return 0.0 if record.dispatched is not None else None
    until = record.ended if record.dispatched is None else record.dispatched
    return None if until is None else until - record.queued


def explain(record: RequestRecord, others: Iterable[RequestRecord]) -> Story:
    """Tell the story of `record`; `others`: of the minute before it until its end."""
    around, before = _look_around(record, others)
    sentences = [
        *_arrival(record),
        *_crowd(record, around),
        *_wait(record, around),
        *_run(record),
        *_ending(record),
    ]
    return Story(record, around, before, sentences, advice(record, before))


def _look_around(record: RequestRecord, others: Iterable[RequestRecord]) -> tuple[Around, Minute]:
    around, requests, tokens = Around(), 0, 0
    at = record.arrived
    until = record.ended if record.dispatched is None else record.dispatched
    for other in others:
        if other.id == record.id and other.arrived == at:
            continue
        around.records += 1
        if other.tenant == record.tenant and at - MINUTE < other.arrived <= at:
            let_in = other.dispatched is not None
            requests += let_in
            tokens += ((other.prompt_tokens or 0) + (other.output_tokens or 0)) * let_in
        if other.model != record.model:
            continue
        sent, ended = other.dispatched, other.ended
        if sent is not None and sent <= at and (ended is None or ended > at):
            _add(around.running, other.tenant)
        elif other.queued is not None and other.arrived <= at < _until(other):
            _add(around.waiting, other.tenant)
        if sent is not None and until is not None and at < other.arrived and sent < until:
            _add(around.overtook, other.tenant)
    return around, Minute(requests, tokens)


def _until(other: RequestRecord) -> float:
    """When it no longer waited."""
    if other.dispatched is not None:
        return other.dispatched
    return float("inf") if other.ended is None else other.ended


def _add(counts: dict[str, int], tenant: str) -> None:
    counts[tenant] = counts.get(tenant, 0) + 1


# The sentences.


def _arrival(r: RequestRecord) -> list[str]:
    who = f"tenant {r.tenant or 'unknown'}" + (f" (tier {r.tier})" if r.tier else "")
    how = f" on {r.route}" if r.route else ""
    how += ", streamed" if r.stream else ""
    said = [f"{when(r.arrived)}: it arrived, of {who}, for {r.model or 'no known model'}{how}."]
    if r.client_retry:
        said.append(f"Its client had tried before: this was retry {r.client_retry}.")
    asked = (
        "without a bound on its output"
        if r.max_tokens is None
        else (f"for at most {r.max_tokens:,} output tokens")
    )
    if r.prompt_tokens is not None:
        asked += f", with a prompt of {r.prompt_tokens:,} tokens"
    elif r.expected_tokens is not None:
        asked += f"; prompt and output were expected to take {r.expected_tokens:,} tokens"
    else:
        asked += "; the size of its prompt is unknown"
    said.append(f"It asked {asked}.")
    return said


def _crowd(r: RequestRecord, around: Around) -> list[str]:
    running, waiting = sum(around.running.values()), sum(around.waiting.values())
    ran, others = f"{running} other requests for this model ran", f"{waiting} waited"
    said = [f"At that moment {ran}{_by(around.running)} and {others}{_by(around.waiting)}."]
    if r.predicted_wait is not None:
        ahead = "" if r.position is None else f", with {r.position} requests ahead of it"
        said.append(f"Its wait was foretold as {r.predicted_wait:.1f} s{ahead}.")
    elif r.position:
        said.append(f"{r.position} requests were ahead of it; how long it would wait is unknown.")
    elif r.queued is not None or r.dispatched is None:
        said.append("How long it would wait was not foretold, or is unknown.")
    return said


def _wait(r: RequestRecord, around: Around) -> list[str]:
    seconds = waited(r)
    if r.queued is None or seconds is None:
        return [] if r.dispatched is None else ["It did not have to wait."]
    said = [f"It waited {seconds:.3f} s in the gateway's queue."]
    overtook = sum(around.overtook.values())
    if overtook:
        said.append(
            f"Meanwhile {overtook} that arrived after it were sent first"
            f"{_by(around.overtook)}: by tier, by share, or since they fitted."
        )
    return said


def _run(r: RequestRecord) -> list[str]:
    if r.dispatched is None:
        said = ["It was never sent to a replica."]
        if r.full:
            said.append(f"What stood in the way: {', '.join(map(_obstacle, r.full))}.")
        return said
    again = f" (attempt {r.attempts})" if r.attempts > 1 else ""
    said = [f"{when(r.dispatched)}: it was sent to {r.replica or 'a replica'}{again}."]
    if r.first_token is not None and r.ttft is not None:
        promised = ""
        if r.ttft_objective is not None:
            verdict = "within" if r.ttft <= r.ttft_objective else "later than"
            promised = f", {verdict} its objective of {r.ttft_objective:g} s"
        said.append(f"Its first token came {r.ttft:.3f} s after its arrival{promised}.")
    if r.full:
        said.append(f"At its end, what stood in the way: {', '.join(map(_obstacle, r.full))}.")
    return said


def _ending(r: RequestRecord) -> list[str]:
    meaning = meaning_of(r.outcome)
    at = "At an unknown time" if r.ended is None else when(r.ended)
    total = "" if r.ended is None else f", {r.ended - r.arrived:.3f} s after it arrived"
    said = [f"{at}: it ended as {r.outcome or 'unknown'}{total}. {meaning.what}"]
    if r.reason:
        said.append(f"The gateway's own words: {r.reason}.")
    if r.level:
        said.append(f"The limit that refused it: {r.level}.")
    if r.output_tokens is not None:
        said.append(f"{r.output_tokens:,} output tokens were made.")
    if r.degraded:
        said.append(f"The gateway was degraded then: {r.degraded}.")
    told = f"HTTP {r.status}" if r.status else "nothing that is known"
    if r.retry_after is not None:
        told += f", to come back after {r.retry_after:.1f} s"
    if r.status == 499:
        told = "nothing more: it had left"
    said.append(f"Its client was told {told}.")
    if meaning.client:
        said.append(f"A client should {meaning.client}.")
    if r.shadow:
        said.append(_shadow(r))
    return said


def _shadow(r: RequestRecord) -> str:
    if r.shadow == "admitted":
        wait = "" if r.shadow_wait is None else f" after {r.shadow_wait:.1f} s"
        return f"Admission was in shadow: it would have been admitted{wait}."
    if r.shadow == "waiting":
        return "Admission was in shadow: it would still have waited when it had ended."
    return f"Admission was in shadow: it would have been refused as {r.shadow}."


def _obstacle(text: str) -> str:
    """`r1 kv 900+120/1000` as a reader reads it."""
    replica, _, why = text.partition(" ")
    word, _, figures = why.partition(" ")
    match word:
        case "limit":
            return f"{replica} ran {figures.replace('/', ' of the ')} requests it may run at once"
        case "prompts":
            words = figures.replace("/", " prompt tokens before their first token, of the ")
            return f"{replica} had {words} it is given at once"
        case "batch":
            return f"{replica} was at a batch that had been filled"
        case "busy_by_its_own_word":
            return f"{replica} said itself that it had work waiting"
        case "kv":
            held, _, rest = figures.partition("+")
            wanted, _, most = rest.partition("/")
            return f"{replica} held {held} KV tokens, {wanted} more were wanted, {most} allowed"
        case "paused":
            return f"{replica} was left alone for a moment, after it shed or failed"
        case "small":
            return f"{replica} is too small for it"
        case "failed_it":
            return f"{replica} had failed it before"
        case "had_room":
            return f"{replica} had room, but it was not its turn"
        case _:
            return text


def _by(counts: dict[str, int]) -> str:
    if not counts:
        return ""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    words = [f"{name or 'unknown'} {n}" for name, n in rows[:_MOST_TENANTS]]
    if len(rows) > _MOST_TENANTS:
        words.append(f"{len(rows) - _MOST_TENANTS} more tenants")
    return f" ({', '.join(words)})"


def when(at: float) -> str:
    """A time as UTC, to the millisecond."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
