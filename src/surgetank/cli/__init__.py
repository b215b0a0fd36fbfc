"""The command line: one module per command; parse, compose, print.

Rule: the only place that builds object graphs. Exit codes: 0 done, 1 the answer is "no",
2 bad input. A command's module is imported when the command is used, so that one never pays for
what another needs.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from typing import Annotated, Any, Final, Never

import typer
from typer.core import TyperGroup

import surgetank
from surgetank.errors import SurgetankError

# Command: module below surgetank.cli, whose `app` is a typer.Typer (one command, or a group).
COMMANDS: Final = {
    "demo": "demo",
    "serve": "serve",
    "admin": "admin",
    "autoscale": "autoscale",
    "load": "load",
    "replay": "replay",
    "simulate": "simulate",
    "compare": "compare",
    "engine": "engine",
    "profiles": "profiles",
    "calibrate": "calibrate",
    "keys": "keys",
    "analyze": "analyze",
    "anonymize": "anonymize",
    "forecast": "forecast",
    "plan": "plan",
    "portfolio": "portfolio",
    "explain": "explain",
    "config": "config",
    "conformance": "conformance",
}


class _LazyGroup(TyperGroup):
    """Commands of the table above, each loaded at its first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *(n for n in super().list_commands(ctx) if n not in COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        if cmd_name not in self.commands:
            loaded: typer.Typer = importlib.import_module(f"surgetank.cli.{module}").app
            loaded._add_completion = False  # noqa: SLF001 - only the root installs shell completion
            command = typer.main.get_command(loaded)
            command.name = cmd_name
            self.commands[cmd_name] = command
        return self.commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load all for a mistyped command: it is compared with every name."""
        if args and args[0] not in COMMANDS:
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="surgetank",
    cls=_LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:  # noqa: FBT001 - Typer calls it
    if value:
        print(f"surgetank {surgetank.__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    _show: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Keep an LLM fleet standing when traffic comes in bursts."""


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit 2."""
    if sys.stdout is None:  # the shell's >&-: told now, not after an hour's work
        _fail("standard output is closed: there is nowhere to write the result to")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here a full disk can still be told; at exit it cannot
    except SurgetankError as error:
        _fail(str(error))
    except OSError as error:
        if error.errno not in {*_FULL, errno.EPIPE}:
            raise
        _forget_output()
        if error.errno == errno.EPIPE:  # as for what is written while the command runs
            sys.exit(1)
        _fail(f"{error.filename or 'the output'}: cannot be written: {error.strerror}")


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def _fail(why: str) -> Never:
    """End with one line: names of files and columns in it must not steer the terminal."""
    line = "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in why
    )
    print(f"surgetank: {line}", file=sys.stderr)
    sys.exit(2)


def _forget_output() -> None:
    """Let what could not be written go nowhere, or Python tries it again at its exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
