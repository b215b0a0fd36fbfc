"""What a service manager hands in, and what it is told."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from surgetank.adapters.systemd import Notifier, handed_in

BECOME = """
import os, sys
given = [int(word) for word in sys.argv[1:] if word.isdigit()]
for number in given:  # out of the way first
    os.dup2(number, 100 + number)
for place, number in enumerate(given):
    os.dup2(100 + number, 3 + place)
command = sys.argv[1 + len(given) :]
os.execv(command[0], command)
"""
TAKE = """
import os
from surgetank.adapters.systemd import handed_in
from surgetank.errors import ConfigError
os.environ["LISTEN_PID"] = os.environ.get("WHOSE") or str(os.getpid())
try:
    found = handed_in(os.environ)
except ConfigError as error:
    print(error)
else:
    print({name: sock.getsockname()[1] for name, sock in sorted(found.items())})
    print(any(name.startswith("LISTEN_") for name in os.environ), os.get_inheritable(3))
"""


def handed_to(*sockets: socket.socket, **environ: str) -> list[str]:
    """Start a process with these sockets as its descriptors from 3 on."""
    numbers = [sock.fileno() for sock in sockets]
    done = subprocess.run(
        [sys.executable, "-c", BECOME, *map(str, numbers), sys.executable, "-c", TAKE],
        env={**os.environ, **environ},
        pass_fds=numbers,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.splitlines()


def test_sockets_are_taken_by_name_and_the_variables_are_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("::1", 0),
                                            family=socket.AF_INET6) as two:  # fmt: skip
        ports = one.getsockname()[1], two.getsockname()[1]
        said = handed_to(one, two, LISTEN_FDS="2", LISTEN_FDNAMES="gateway:admin")
        assert said == [str({"admin": ports[1], "gateway": ports[0]}), "False False"]


def test_what_is_for_another_process_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        assert handed_to(one, LISTEN_FDS="1", WHOSE="1")[0] == "{}"


def test_what_is_no_listening_socket_is_refused() -> None:
    with socket.socket() as one:
        (line,) = handed_to(one, LISTEN_FDS="1")
        assert line == "LISTEN_FDS: descriptor 3 (0): is no listening TCP socket"


def test_without_a_manager_there_are_no_sockets_and_nobody_is_told() -> None:
    assert handed_in({}) == {}
    Notifier({}).ready("well")


@pytest.mark.parametrize("abstract", [False, True])
def test_the_manager_is_told_each_state(tmp_path: Path, *, abstract: bool) -> None:
    name = f"surgetank-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name if abstract else name)
        environ = {"NOTIFY_SOCKET": "@" + name if abstract else name}
        notifier = Notifier(environ)
        assert environ == {}  # no child of ours may speak in our name
        notifier.ready("two\nlines")
        assert manager.recv(999) == f"READY=1\nSTATUS=two lines\nMAINPID={os.getpid()}".encode()
        notifier.reloading()
        state, _, since = manager.recv(999).partition(b"\nMONOTONIC_USEC=")
        assert (state, since.isdigit()) == (b"RELOADING=1", True)
        notifier.stopping("draining")
        assert manager.recv(999) == b"STOPPING=1\nSTATUS=draining"


def test_a_manager_that_is_gone_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("well")
    assert "NOTIFY_SOCKET: No such file" in caplog.text
