"""`surgetank admin`: look at a running gateway and change what may be changed by hand."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from surgetank.adapters.http import FetchError, fetch
from surgetank.cli.credentials import read_admin_token
from surgetank.errors import InputError
from surgetank.gateway.spec import AdminSpec

app = typer.Typer(no_args_is_help=True, help="Look at a running gateway, and steer it by hand.")

_TIMEOUT: Final = 30.0
_Url = Annotated[
    str, typer.Option("--url", envvar="SURGETANK_ADMIN_URL", help="The gateway's admin listener.")
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the admin token (mode 0600). Without it: $SURGETANK_ADMIN_TOKEN if set.",
        show_default=False,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, as the gateway gave it.")]
_Replica = Annotated[str, typer.Argument(metavar="ID", help="Replica, as `replicas` names it.")]
_HERE: Final = "http://127.0.0.1:9000"


def _ask(url: str, token_file: Path | None, path: str, *, method: str = "GET") -> dict[str, Any]:
    """One call; what the gateway refuses is an InputError with its own words."""
    named = None if token_file is None else str(token_file)
    token = read_admin_token(AdminSpec(token_file=named), os.environ)
    headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
    where = f"{url.rstrip('/')}/{path}"
    try:
        answer = asyncio.run(fetch(where, timeout=_TIMEOUT, method=method, headers=headers))
    except FetchError as error:
        raise InputError(f"{error}; is admin.port set there?") from None
    try:
        body = json.loads(answer.text)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise InputError(f"{where}: is no admin listener: it answered {answer.status}")
    if answer.status != 200:
        message = (body.get("error") or {}).get("message", f"answered {answer.status}")
        raise InputError(f"{where}: {message}")
    return body


def _show(
    body: dict[str, Any], print_text: Callable[[dict[str, Any]], None], *, as_json: bool
) -> None:
    if as_json:
        print(json.dumps(body))
    else:
        print_text(body)


def _table(rows: Sequence[dict[str, Any]], columns: dict[str, str]) -> None:
    """Print the members of `columns` (member: heading), each as wide as it needs to be."""
    lines = [list(columns.values())]
    lines += [[_word(row.get(name)) for name in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip())


def _word(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


@app.command()
def status(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """Show whether it is ready, since when, with which configuration, and its records."""

    def text(body: dict[str, Any]) -> None:
        taken = body["configuration"]
        print(f"{body['state']}: {body['running']} running, {body['waiting']} waiting")
        print(f"version {body['version']}, process {body['pid']}, up {body['uptime']:.0f} s")
        failed = f"; the last reading failed: {taken['error']}" if taken["error"] else ""
        print(f"configuration: {taken['reloads']} times read anew{failed}")
        if taken["kept"]:
            print(f"kept until a restart: {', '.join(taken['kept'])}")
        if body["records"] is not None:
            written = body["records"]
            print(f"records: {written['written']} written, {written['dropped']} lost")
        if body["held"] is not None:
            print(f"scaling: {'held' if body['held'] else 'by itself'}")
        for told in body.get("portfolio", ()):
            print(f"portfolio of {told['pool']} {told['result']}: {told['why']}")

    _show(_ask(url, token_file, "status"), text, as_json=as_json)


@app.command()
def replicas(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """List the replicas: whether each is ready, serves, what is on it, and what it says itself."""
    columns = {
        "id": "ID", "model": "MODEL", "state": "STATE", "ready": "READY", "in_flight": "RUNNING",
        "limit": "LIMIT", "kv_reserved": "KV", "kv_tokens": "KV SIZE", "drained": "DRAINED",
        "dialect": "ENGINE", "waiting": "IT SAYS: WAITING", "running": "RUNNING", "kv_used": "KV",
    }  # fmt: skip
    body = _ask(url, token_file, "replicas")
    _show(body, lambda b: _table(list(map(_with_signals, b["replicas"])), columns), as_json=as_json)


@app.command()
def sessions(
    url: _Url = _HERE,
    token_file: _TokenFile = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="How many are listed.")] = 20,
    *,
    as_json: _Json = False,
) -> None:
    """List the sessions that burn most tokens, by a hash of their ids."""
    columns = {
        "session": "SESSION", "tenant": "TENANT", "tokens_per_second": "TOKENS/S",
        "here": "REQUESTS", "served": "SERVED", "begun": "BEGUN", "idle": "IDLE S",
    }  # fmt: skip
    body = _ask(url, token_file, f"sessions?top={top}")
    _show(body, lambda b: _table(b["sessions"], columns), as_json=as_json)


def _with_signals(row: dict[str, Any]) -> dict[str, Any]:
    """Put what an engine says of itself beside the rest; what it does not say is unknown."""
    said = row.get("signals") or {}
    names = ("waiting", "running", "kv_used")
    return row | {name: "unknown" if said.get(name) is None else said[name] for name in names}


@app.command()
def tenants(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """List the tenants: tier, weight, what is left of their quotas, and how requests ended.

    Below a tenant stand those of its keys and models that have limits of their own.
    """
    columns = {
        "tenant": "TENANT", "tier": "TIER", "weight": "WEIGHT", "running": "RUNNING",
        "queued": "WAITING", "requests_left": "REQUESTS LEFT", "tokens_left": "TOKENS LEFT",
        "concurrent_left": "AT ONCE LEFT",
        "completed": "COMPLETED", "refused": "REFUSED", "failed": "FAILED",
        "abandoned": "ABANDONED",
    }  # fmt: skip
    body = _ask(url, token_file, "tenants")
    _show(body, lambda b: _table(_with_levels(b["tenants"]), columns), as_json=as_json)


def _with_levels(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put a tenant's levels below it; what is left of the tenant itself stands in its own row."""
    shown = []
    for row in rows:
        shown.append(row)
        for level in row["levels"]:
            names = [f"{what} {level[what]}" for what in ("key", "model") if level[what]]
            if names:
                shown.append(level | {"tenant": f"  {', '.join(names)}"})
    return shown


@app.command()
def queue(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """Show what waits and what runs, by tenant; those served first stand first."""
    columns = {
        "tenant": "TENANT", "tier": "TIER", "waiting": "WAITING", "waiting_tokens": "TOKENS",
        "oldest": "OLDEST (S)", "running": "RUNNING", "running_tokens": "TOKENS",
    }  # fmt: skip
    body = _ask(url, token_file, "queue")
    _show(body, lambda b: _table(b["tenants"], columns), as_json=as_json)


@app.command()
def learned(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """Show what it has learnt of each model: answers' length, speed, limits, and how surely."""

    def text(body: dict[str, Any]) -> None:
        for row in body["models"]:
            print(row["text"])
        if not body["models"]:
            print("nothing yet: no model is known")

    _show(_ask(url, token_file, "learned"), text, as_json=as_json)


@app.command()
def shadow(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """Show what admission in shadow would have refused and reordered since the start."""

    def text(body: dict[str, Any]) -> None:
        print(body["text"])
        if body["refused"]:
            _table(body["refused"], {"tenant": "TENANT", "reason": "REASON", "count": "REFUSED"})

    _show(_ask(url, token_file, "shadow"), text, as_json=as_json)


@app.command()
def drain(
    replica: _Replica,
    url: _Url = _HERE,
    token_file: _TokenFile = None,
    *,
    as_json: _Json = False,
) -> None:
    """Send a replica no more requests; its streams go on to their end."""
    body = _ask(url, token_file, f"replicas/{quote(replica, safe='/:')}/drain", method="POST")
    rest = "and nothing runs on it" if body["drained"] else "what runs on it may end"
    _show(body, lambda _: print(f"{replica} gets no more requests, {rest}"), as_json=as_json)


@app.command()
def resume(
    replica: _Replica,
    url: _Url = _HERE,
    token_file: _TokenFile = None,
    *,
    as_json: _Json = False,
) -> None:
    """Send a drained replica requests again."""
    body = _ask(url, token_file, f"replicas/{quote(replica, safe='/:')}/resume", method="POST")
    rest = "" if body["ready"] else " as soon as it is ready"
    _show(body, lambda _: print(f"{replica} gets requests again{rest}"), as_json=as_json)


@app.command()
def hold(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """Hold the fleet's size as it is: scaling is decided and written, not acted on.

    A replica that dies is replaced. It holds until `release`, or a restart.
    """
    body = _ask(url, token_file, "hold", method="POST")
    _show(body, lambda _: print("scaling is held"), as_json=as_json)


@app.command()
def release(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """Let scaling go on by itself after `hold`."""
    body = _ask(url, token_file, "release", method="POST")
    _show(body, lambda _: print("scaling goes on by itself"), as_json=as_json)


@app.command()
def reload(url: _Url = _HERE, token_file: _TokenFile = None, *, as_json: _Json = False) -> None:
    """Have the gateway read its configuration and keys anew, and say what became of it."""

    def text(body: dict[str, Any]) -> None:
        print("taken")
        if body["kept"]:
            print(f"kept until a restart: {', '.join(body['kept'])}")

    _show(_ask(url, token_file, "reload", method="POST"), text, as_json=as_json)
