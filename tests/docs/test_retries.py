"""The examples of docs/guides/retries.md run as they stand, against the mock engine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "retries.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """An engine that refuses its first two requests, so that the examples have to try again."""
    command = [sys.executable, "-m", "surgetank", "engine", "--profile", "tiny-fast", "--port", "0"]
    fault = ["--model", "tiny", "--fault", "status:status=429,times=2"]
    with subprocess.Popen([*command, *fault], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.terminate()


@pytest.mark.parametrize(
    "number",
    [0, *(pytest.param(n, marks=pytest.mark.heavy) for n in range(1, len(EXAMPLES)))],
)
def test_an_example_runs_as_it_stands(engine: str, number: int) -> None:
    code = EXAMPLES[number].replace("http://127.0.0.1:8000", engine)
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    if "surgetank.load" in code:
        assert "'completed': 40" in shown.stdout or "Lag(" in shown.stdout
    elif "print" in code:
        assert shown.stdout.strip()
