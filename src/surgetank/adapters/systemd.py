"""What a service manager hands in and is told: listening sockets, and the states of our life.

Rule: without a manager nothing happens. After sd_listen_fds(3) and sd_notify(3), which are a few
lines each: three variables of the environment, and datagrams to a socket.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

from surgetank.errors import ConfigError

log = logging.getLogger("surgetank")

_FIRST: Final = 3  # descriptor of the first socket handed in
_VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def handed_in(environ: MutableMapping[str, str]) -> dict[str, socket.socket]:
    """Take the listening sockets that were handed in, by name; none for another process's.

    The variables are taken out, so that no child takes the sockets for its own. Sockets without a
    name, or of a name given twice, are called by their number, from 0. Raises ConfigError for what
    is no listening TCP socket.
    """
    pid, number, names = (environ.pop(name, "") for name in _VARIABLES)
    if pid != str(os.getpid()) or not number.isdigit():
        return {}
    named = names.split(":") if names else []
    found: dict[str, socket.socket] = {}
    for index in range(int(number)):
        name = named[index] if index < len(named) else ""
        if name in {"", "unknown"} or name in found:
            name = str(index)
        found[name] = _listening(_FIRST + index, name)
    return found


def _listening(descriptor: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
        stream = sock.family in {socket.AF_INET, socket.AF_INET6}
        if stream and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            sock.setblocking(False)
            return sock
        sock.detach()
    except OSError as error:
        raise ConfigError(
            f"LISTEN_FDS: descriptor {descriptor} ({name}): {error.strerror}"
        ) from error
    raise ConfigError(f"LISTEN_FDS: descriptor {descriptor} ({name}): is no listening TCP socket")


class Notifier:
    """Tells the service manager of $NOTIFY_SOCKET how we are; nobody, when there is none."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        # A name beginning with @ is of Linux's abstract namespace, which begins with a NUL.
        self._address = "\0" + address[1:] if address.startswith("@") else address

    def ready(self, status: str) -> None:
        self._tell(f"READY=1\nSTATUS={_line(status)}\nMAINPID={os.getpid()}")

    def reloading(self) -> None:
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell(f"RELOADING=1\nMONOTONIC_USEC={now}")

    def stopping(self, status: str) -> None:
        self._tell(f"STOPPING=1\nSTATUS={_line(status)}")

    def _tell(self, state: str) -> None:
        if not self._address:
            return
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
                sock.setblocking(False)
                sock.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("NOTIFY_SOCKET: %s", error.strerror)


def _line(text: str) -> str:
    return " ".join(text.split())
