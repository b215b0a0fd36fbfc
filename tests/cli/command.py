"""A command in the test's own process: what it would print and how it would end."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from surgetank import cli


@dataclass(frozen=True, slots=True)
class Done:
    """As subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def surgetank(*arguments: str, cwd: Path | None = None) -> Done:
    """Run `surgetank` with these arguments: a process of its own would load for half a second.

    No setting of the tester's own shell counts.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SURGETANK_")}
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        patch.object(sys, "argv", ["surgetank", *arguments]),
        patch.dict(os.environ, environment, clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(cwd or "."),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    return Done(code, out.getvalue(), err.getvalue())
