"""`python -m surgetank.dashboard`: the live page of one gateway."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit

from surgetank.dashboard.server import DashboardSpec, run
from surgetank.errors import ConfigError, SurgetankError

_DEFAULT: Final = DashboardSpec(source="")


class _Parser(argparse.ArgumentParser):
    """Bad input is one line and exit 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"surgetank: {message}\n")


def _arguments() -> argparse.Namespace:
    parser = _Parser(prog="python -m surgetank.dashboard", description=__doc__)
    parser.add_argument(
        "--source", required=True, help="a gateway's admin listener, http://HOST:PORT"
    )
    parser.add_argument("--token-file", type=Path, help="a file with the listener's token")
    parser.add_argument("--host", default=_DEFAULT.host, help="address to listen on")
    parser.add_argument(
        "--port", type=int, default=_DEFAULT.port, help="port to listen on; 0 takes a free one"
    )
    parser.add_argument("--with-parent", action="store_true", help="end when standard input closes")
    return parser.parse_args()


def _spec(given: argparse.Namespace) -> DashboardSpec:
    parts = urlsplit(given.source)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"--source {given.source}: must be http://HOST:PORT")
    if not 0 <= given.port <= 65535:
        raise ConfigError(f"--port {given.port}: must be 0 to 65535")
    return DashboardSpec(
        source=given.source,
        token=None if given.token_file is None else _token(given.token_file),
        host=given.host,
        port=given.port,
        with_parent=given.with_parent,
    )


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"--token-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--token-file {path}: must hold a token in ASCII, on one line") from None
    if not token or not token.isprintable():
        raise ConfigError(f"--token-file {path}: must hold a token, on one line")
    return token


def _ready(address: str) -> None:
    sys.stdout.write(f"READY {address}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the page. Exits 2 on bad input."""
    try:
        run(_spec(_arguments()), _ready)
    except SurgetankError as error:
        sys.stderr.write(f"surgetank: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
