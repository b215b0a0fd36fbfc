"""The configuration and the keys read anew while requests run: applied as a whole, or not at all.

Rule: what cannot be used changes nothing, and is told in the log, in metrics and to operators. What
cannot change while the process lives is kept, and named.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shlex
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import partial, reduce
from typing import Any, Final, TypeVar

from surgetank import config as configuration
from surgetank.cli.credentials import Credentials
from surgetank.errors import InputError, SurgetankError
from surgetank.policy.flow import FlowSettings

log = logging.getLogger("surgetank")

T = TypeVar("T")

FIXED: Final = (
    "listen.host",
    "listen.port",
    "admin.host",
    "admin.port",
    "page",
    "autoscaler",
    "records.path",
    "journal.path",
    "learned",
)
"""Settings that stay as they were at the start; others are taken."""

READ_BOUND: Final = 10.0
"""Seconds that reading the files may take: it is a FIFO without a writer, or a disk that hangs."""

Read = Callable[[Callable[[configuration.Config], configuration.Config]], configuration.Config]
Apply = Callable[[configuration.Config, Credentials], None]


@dataclass(slots=True)
class ReloadStatus:
    """How the last reading went. Times are Unix seconds; 0: not yet."""

    loaded_at: float = 0.0  # when what is in force was read
    tried_at: float = 0.0
    reloads: int = 0  # that were applied
    failures: int = 0  # that were not
    error: str = ""  # why the last one was not; "" when it was
    kept: tuple[str, ...] = ()  # settings that differ in the file, and need a restart


class Reloader:
    """Reads with `read`, which takes what to adjust before the check, then applies.

    `read` None: there is no file to read. `running`: the settings in force. `bound`: seconds that
    reading may take; then it has failed, and is left to itself.
    """

    def __init__(
        self,
        running: configuration.Config,
        read: Read | None,
        credentials: Callable[[configuration.Config], Credentials],
        apply: Apply,
        *,
        bound: float = READ_BOUND,
    ) -> None:
        self.running = running
        self.status = ReloadStatus(loaded_at=time.time())
        self._read = read
        self._credentials = credentials
        self._apply = apply
        self._bound = bound
        self._one = asyncio.Lock()

    async def reload(self) -> ReloadStatus:
        """Read and apply. Raises SurgetankError, with nothing changed, when it cannot be used."""
        async with self._one:
            status = self.status
            if self._read is None:
                return status
            status.tried_at = time.time()
            try:
                settings, found, kept = await _within(self._bound, partial(self._look, self._read))
                changed = differences(self.running, settings)
                self._apply(settings, found)
            except (SurgetankError, ValueError) as error:
                status.failures += 1
                status.error = str(error)
                log.error("the configuration was not taken, the one before stays: %s", error)  # noqa: TRY400
                raise SurgetankError(str(error)) from error
            except Exception as error:  # a fault of ours: nobody may take it for a reload
                status.failures += 1
                status.error = f"{type(error).__name__}: {error}"
                log.exception("the configuration may be in force in part: reload the one before")
                raise SurgetankError(
                    f"may be in force in part: reload the one before ({status.error})"
                ) from error
            self.running = settings
            status.loaded_at, status.error, status.kept = status.tried_at, "", kept
            status.reloads += 1
            log.info("the configuration was taken: %s", _words(changed, kept))
            return status

    def _look(self, read: Read) -> tuple[configuration.Config, Credentials, tuple[str, ...]]:
        wanted: list[configuration.Config] = []

        def keep(settings: configuration.Config) -> configuration.Config:
            wanted.append(settings)
            return reduce(self._keep, FIXED, settings)

        settings = read(keep)
        if self.running.auth.keys_file is not None and settings.auth.keys_file is None:
            raise InputError(
                "auth.keys_file is left out: without keys anyone is served; restart to have it so"
            )
        if self.running.replicas and not settings.replicas and not settings.autoscaler.pools:
            raise InputError(
                "all replicas are left out: every request would be refused; restart to have it so"
            )
        kept = tuple(name for name in FIXED if _of(wanted[-1], name) != _of(settings, name))
        return settings, self._credentials(settings), kept

    def _keep(self, settings: configuration.Config, name: str) -> configuration.Config:
        section, _, setting = name.partition(".")
        value = _of(self.running, name)
        if setting:
            value = replace(getattr(settings, section), **{setting: value})
        return replace(settings, **{section: value})


async def _within(bound: float, call: Callable[[], T]) -> T:
    """Call in a thread that nobody waits for beyond `bound` seconds, at an exit neither.

    A thread of the loop's own pool would be waited for when the loop ends: a file system that hangs
    would then keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return  # it came too late
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # a T when there is no error

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 (raised again by who waits)
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="reload", daemon=True).start()
    try:
        return await asyncio.wait_for(done, bound)
    except TimeoutError:
        raise InputError(
            f"the configuration and the keys were not read within {bound:g} s: "
            "they must be plain files, on a disk that answers"
        ) from None


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Name the settings, or lists of them, that differ."""
    found: list[str] = []
    for f in fields(before):
        one, other = getattr(before, f.name), getattr(after, f.name)
        if one == other:
            continue
        name = f"{path}.{f.name}" if path else f.name
        both = is_dataclass(one) and is_dataclass(other)
        found += differences(one, other, name) if both else [name]
    return found


def flow_settings(settings: configuration.Config) -> FlowSettings:
    """What FlowControl takes of a configuration."""
    models = [r.model for r in settings.replicas if r.model is not None]
    models += [pool.model for pool in settings.autoscaler.pools]
    return FlowSettings(
        settings.flow, settings.tenants, settings.tiers, tuple(models), settings.ladder
    )


def promised_models(settings: configuration.Config) -> list[str]:
    """Models without a replica of which the gateway is not ready; a pool may begin at none."""
    models = {r.model for r in settings.replicas if r.model is not None}
    models |= {pool.model for pool in settings.autoscaler.pools if pool.base}
    return sorted(models)


_SECRET_OPTION: Final = re.compile(r"-.*(?:key|token|secret|passw(?:or)?d)(?:-.*)?", re.IGNORECASE)
_HIDDEN: Final = "(hidden)"


def shown_settings(settings: configuration.Config) -> dict[str, Any]:
    """All settings, JSON-able, without what may be a secret.

    A configuration names secrets, and holds none; but the command and the environment of a replica
    are the operator's own words.
    """
    shown = asdict(settings)
    for pool in shown["autoscaler"]["pools"]:
        process = pool["process"]
        for variable in process["environment"]:
            variable["value"] = _HIDDEN
        process["command"] = _without_secrets(process["command"])
    return shown


def _without_secrets(command: str) -> str:
    """The command line, with the values of options that are named after a secret hidden."""
    try:
        words = shlex.split(command)
    except ValueError:
        return _HIDDEN
    shown: list[str] = []
    hide = False
    for word in words:
        option, equals, _ = word.partition("=")
        named = _SECRET_OPTION.fullmatch(option) is not None
        shown.append(_HIDDEN if hide else f"{option}={_HIDDEN}" if named and equals else word)
        hide = named and not equals
    return shlex.join(shown)


def _of(settings: configuration.Config, name: str) -> Any:
    return reduce(getattr, name.split("."), settings)


def _words(changed: list[str], kept: tuple[str, ...]) -> str:
    text = f"{', '.join(changed)} changed" if changed else "no setting changed, keys read anew"
    return f"{text}; kept until a restart: {', '.join(kept)}" if kept else text
