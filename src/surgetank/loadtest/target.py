"""The endpoint under test: whether it is there and serves, and how it counts words.

Rule: whatever would fail every request is told in one line before the run, as an InputError: an
address where nothing listens, a web page, a redirect, a wrong model, a missing key.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from surgetank.adapters import http
from surgetank.adapters.engines import count_prompt_tokens
from surgetank.adapters.http import FetchError, fetch
from surgetank.errors import InputError
from surgetank.loadtest.client import Call, Client, Tls
from surgetank.loadtest.connection import Exchange
from surgetank.loadtest.prompts import CHAT, Asking, Words, WordScale
from surgetank.loadtest.trouble import trouble
from surgetank.policy.request import Outcome

_FEW: Final = 16  # words of the first request
_MANY: Final = 336  # words of the second: their difference is what counts
_ASK_TIMEOUT: Final = 5.0  # seconds of a question beside the run
_OUT_OF_SEED: Final = 0x5EED  # the probes' words are not those of the run, nor cached for it


@dataclass(frozen=True, slots=True)
class Target:
    """Where a run is sent to. Keys are kept out of its repr.

    `keys`: by tenant; "" is the key of all others. `timeout`: seconds of each probe.
    """

    url: str
    model: str = ""  # empty: the only one it serves
    route: str = CHAT
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Tls = field(default_factory=Tls)
    timeout: float = 60.0

    @property
    def root(self) -> str:
        """The address without its final /v1."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    def key(self, tenant: str) -> str:
        """Return the key that a tenant sends; empty for none."""
        return self.keys.get(tenant, self.keys.get("", ""))

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """What a question beside the run carries."""
        key = self.key("") or next(iter(self.keys.values()), "")
        return ((b"authorization", b"Bearer " + key.encode()),) if key else ()

    def trusted(self, *urls: str) -> http.Tls | None:
        """Tell by whom https addresses are trusted; None where none of these is one.

        Without addresses, its own. Raises InputError when the CA file cannot be used.
        """
        asked = urls or (self.url,)
        if not any(u.startswith("https://") for u in asked):
            return None
        return http.Tls(self.tls.context())

    def named(self) -> str:
        """Give the address without user name and password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


@dataclass(frozen=True, slots=True)
class Found:
    """What the target turned out to be.

    `counted`: where the word scale is from: usage, tokenizer or estimate. `context`: the most
    tokens of a request, if it says so.
    """

    asking: Asking
    scale: WordScale
    counted: str
    context: int | None = None
    notes: tuple[str, ...] = ()

    def to_json(self, target: Target) -> dict[str, Any]:
        """Give what a report says of it; no secret is in it."""
        return {
            "url": target.named(),
            "model": self.asking.model,
            "route": self.asking.route,
            "ignore_eos": self.asking.ignore_eos,
            "words_counted_by": self.counted,
            "tokens_per_word": self.scale.per_word,
            "overhead_tokens": self.scale.overhead,
        }


async def preflight(
    target: Target,
    *,
    count_by: str = "usage",
    ignore_eos: bool | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Found:
    """Send one request, or two, and learn from the answers. Raises InputError in one line.

    `count_by`: "usage" (two short requests), "tokenizer" (its own route), "estimate" (a token a
    word). `ignore_eos`: ask for outputs of the full length; None: if it takes the member.
    """
    client = Client(target.url, tls=target.tls)
    try:
        model, context = await _model(target)
        asking = Asking(model, target.route, ignore_eos is not False, dict(extra or {}))
        first = await _ask(client, target, asking, _FEW)
        if ignore_eos is None and first.outcome is not Outcome.COMPLETED and first.status == 400:
            plain = await _ask(client, target, replace(asking, ignore_eos=False), _FEW)
            if plain.outcome is Outcome.COMPLETED:
                asking, first = replace(asking, ignore_eos=False), plain
        _refuse(target, asking, first)
        scale, counted = await _scale(client, target, asking, first, count_by)
    finally:
        await client.close()
    notes = []
    if counted == "estimate" and count_by != "estimate":
        notes.append(f"the target gave no {count_by} to count by: a word is taken as one token")
    if ignore_eos is None and not asking.ignore_eos:
        notes.append("the target takes no ignore_eos: outputs may end before their length")
    return Found(asking, scale, counted, context, tuple(notes))


def public_address(url: str) -> str | None:
    """Return the first public address that the host of `url` stands for; None when it is private.

    A name that cannot be resolved is not public either: the run will say so.
    """
    host = urlsplit(url).hostname or ""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return None
    for address in sorted(map(str, found)):
        if ipaddress.ip_address(address.partition("%")[0]).is_global:
            return address
    return None


async def _model(target: Target) -> tuple[str, int | None]:
    """Name the model to ask for, and the longest context it is known to have."""
    rows: list[Any] = []
    try:
        answer = await fetch(
            f"{target.root}/v1/models",
            timeout=_ASK_TIMEOUT,
            headers=target.headers,
            tls=target.trusted(),
        )
        listing = json.loads(answer.body) if answer.status == 200 else {}
        rows = listing.get("data", []) if isinstance(listing, dict) else []
    except (FetchError, ValueError):
        rows = []  # the first request will tell what is wrong
    by_name = {row["id"]: row for row in rows if isinstance(row, dict) and "id" in row}
    if not target.model and len(by_name) != 1:
        await _reachable(target)
        if by_name:
            raise InputError(f"{target.named()} serves {_few(by_name)}: choose one with --model")
        raise InputError(f"{target.named()} does not say which model it serves: give --model")
    model = target.model or next(iter(by_name))
    if by_name and model not in by_name:
        raise InputError(f"--model {model}: {target.named()} serves {_few(by_name)}")
    length = by_name.get(model, {}).get("max_model_len")
    return model, length if type(length) is int and length > 0 else None


async def _reachable(target: Target) -> None:
    """Raise InputError when a request of any model would fail for another reason than its name."""
    client = Client(target.url, tls=target.tls)
    try:
        exchange = await _ask(client, target, Asking("default", target.route), _FEW)
    finally:
        await client.close()
    if exchange.outcome not in {Outcome.COMPLETED, Outcome.UNKNOWN_MODEL} and (
        exchange.status not in {400, 404} or "HTML" in exchange.reason
    ):
        _refuse(target, Asking("default", target.route), exchange)


def _few(names: Mapping[str, Any]) -> str:
    listed = ", ".join(list(names)[:8])
    return f"{listed} and {len(names) - 8} more" if len(names) > 8 else listed


async def _ask(client: Client, target: Target, asking: Asking, words: int) -> Exchange:
    text = Words(_OUT_OF_SEED).text(words, words)
    call = Call(
        asking.body(text, 1),
        key=target.key("") or next(iter(target.keys.values()), ""),
        route=asking.route,
        timeout=target.timeout,
    )
    return await client.send(call)


def _refuse(target: Target, asking: Asking, exchange: Exchange) -> None:
    if exchange.outcome is None or exchange.outcome is Outcome.COMPLETED:
        return
    why = trouble(exchange.outcome, exchange.status, exchange.reason)
    of = f", model {asking.model}" if exchange.outcome is Outcome.UNKNOWN_MODEL else ""
    raise InputError(f"{target.named()}{of}: {why}")


async def _scale(
    client: Client, target: Target, asking: Asking, first: Exchange, count_by: str
) -> tuple[WordScale, str]:
    if count_by == "usage":
        many = await _ask(client, target, asking, _MANY)
        counts = [None if e.usage is None else e.usage.prompt_tokens for e in (first, many)]
    elif count_by == "tokenizer":
        counts = await asyncio.gather(*(_count(target, asking, n) for n in (_FEW, _MANY)))
    else:
        return WordScale(), "estimate"
    few, lots = counts
    fitted = WordScale.fitted((_FEW, few), (_MANY, lots)) if few and lots else None
    return (fitted, count_by) if fitted is not None else (WordScale(), "estimate")


async def _count(target: Target, asking: Asking, words: int) -> int | None:
    """Have the target count a prompt: vLLM's and SGLang's /tokenize, or llama.cpp's."""
    trusted = target.trusted()
    text = Words(_OUT_OF_SEED).text(words, words)
    said = json.loads(asking.body(text, 1))
    asked = {name: said[name] for name in ("model", "messages", "prompt") if name in said}
    try:
        answer = await fetch(
            f"{target.root}/tokenize",
            timeout=_ASK_TIMEOUT,
            headers=(*target.headers, (b"content-type", b"application/json")),
            method="POST",
            body=json.dumps(asked).encode(),
            tls=trusted,
        )
        counted = json.loads(answer.body) if answer.status == 200 else None
    except (FetchError, ValueError):
        counted = None
    found = counted.get("count") if isinstance(counted, dict) else None
    if type(found) is int and found > 0:
        return found
    members = {name: json.dumps(value).encode() for name, value in asked.items()}
    return await count_prompt_tokens(
        target.root,
        asking.route,
        members,
        timeout=_ASK_TIMEOUT,
        headers=target.headers,
        tls=trusted,
    )
