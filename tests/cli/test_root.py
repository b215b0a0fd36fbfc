"""The command line as a whole: version, help, completion, lazy loading."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import surgetank as package
from surgetank.cli import COMMANDS
from surgetank.config import example
from tests.cli.command import surgetank


def test_the_version_is_printed() -> None:
    assert surgetank("--version").stdout == f"surgetank {package.__version__}\n"


def test_help_lists_every_command() -> None:
    shown = surgetank("--help").stdout
    assert all(command in shown for command in COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_installs_itself(shell: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "surgetank", "--install-completion", shell],
        # The switch makes Typer take the shell by name instead of asking for the parent process.
        env=os.environ
        | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    installed = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "_SURGETANK_COMPLETE" in installed


def test_completion_knows_the_commands() -> None:
    words = {"COMP_WORDS": "surgetank con", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "surgetank"],
        env=os.environ | words | {"_SURGETANK_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "config" in done.stdout.split()


def test_a_mistyped_command_is_told_its_neighbour() -> None:
    done = surgetank("kyes")
    assert done.returncode == 2
    assert "keys" in done.stderr


def test_the_version_loads_no_command() -> None:
    code = (
        "import sys, surgetank.cli as cli\n"
        "sys.argv = ['surgetank', '--version']\n"
        "try: cli.main()\n"
        "finally: print('pydantic' in sys.modules, 'surgetank.cli.keys' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("arguments", [["--help"], ["analyze", "--help"], ["anonymize", "--help"]])
def test_help_loads_no_numbers_and_no_database(arguments: list[str]) -> None:
    code = (
        "import sys, surgetank.cli as cli\n"
        f"sys.argv = ['surgetank', *{arguments!r}]\n"
        "try: cli.main()\n"
        "finally: print({'numpy', 'numba', 'duckdb', 'pyarrow'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1] == "set()"


def test_config_check_says_valid_or_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "surgetank.yaml"
    file.write_text(example())
    assert surgetank("config", "check", str(file)).stdout.startswith(f"{file}: valid (0 replicas")
    checked = json.loads(surgetank("config", "check", str(file), "--json").stdout)
    assert checked["valid"] is True
    file.write_text("flow:\n  max_queued: -3\n")
    done = surgetank("config", "check", str(file))
    assert done.returncode == 2
    assert done.stderr == f"surgetank: flow.max_queued = -3: must be >= 0 ({file} line 2)\n"


def test_config_prints_example_and_schema() -> None:
    assert surgetank("config", "example").stdout == example()
    assert json.loads(surgetank("config", "schema").stdout)["title"] == "surgetank.yaml"


def test_serve_leaves_gateways_to_the_controller_that_runs_alone(tmp_path: Path) -> None:
    file = tmp_path / "surgetank.yaml"
    file.write_text("autoscaler: {gateways: ['http://10.0.0.1:9000']}")
    done = surgetank("serve", "-c", str(file))
    assert done.returncode == 2
    assert done.stderr.startswith("surgetank: autoscaler.gateways is for 'surgetank autoscale'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--replica", "ftp://x"], "replicas[0].url = 'ftp://x': must be http://HOST:PORT"),
        (["--replica", "http://127.0.0.1:8000"], "is this gateway's own listen.port"),
        (["--replica", "http://a:1", "--replica", "http://a:1"], "is taken already"),
    ],
)
def test_a_mistake_on_the_command_line_has_no_line_number(arguments: list[str], wrong: str) -> None:
    done = surgetank("serve", *arguments)
    assert done.returncode == 2
    assert wrong in done.stderr
    assert done.stderr.endswith("(--replica)\n")


def test_ready_puts_an_ipv6_address_into_brackets(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this system has no IPv6")
    file = tmp_path / "surgetank.yaml"
    file.write_text(
        "listen: {host: '::1', port: 0}\nadmin: {host: '::1', port: 0}\n"
        "replicas: [{url: 'http://127.0.0.1:9'}]\n"
    )
    with _started("serve", "-c", str(file)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.fullmatch(r"READY http://\[::1\]:\d+ admin=http://\[::1\]:\d+\n", line)


@pytest.mark.parametrize("moment", ["while it loads", "while it runs"])
def test_an_interrupt_is_quiet(moment: str, tmp_path: Path) -> None:
    """An audit hook stands for a user's finger: it interrupts at an exact moment."""
    stop = ("import", "typer") if moment == "while it loads" else ("open", "keys.txt")
    hook = (
        "import sys\n"
        "def hook(event, arguments):\n"
        f"    if (event, str(arguments and arguments[0])) == {stop!r}: raise KeyboardInterrupt\n"
        "sys.addaudithook(hook)\n"
        "from surgetank.__main__ import main\n"
        "sys.argv = ['surgetank', 'keys', 'list']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", hook],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


@contextmanager
def _started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "surgetank", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


COMMANDS_THAT_PRINT = [
    ["--version"],
    ["simulate", "--pulse", "1:2:1:4:4", "--engine", "tiny", "--policy", "static", "--json"],
]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", COMMANDS_THAT_PRINT, ids=lambda a: a[0])
def test_a_full_disk_behind_standard_output_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "surgetank", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if not line.startswith("compiling")]
    assert told == ["surgetank: the output: cannot be written: No space left on device"]


def test_a_closed_standard_output_is_told_before_the_work() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "surgetank", "load"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == (
        "surgetank: standard output is closed: there is nowhere to write the result to\n"
    )


def test_a_reader_that_has_seen_enough_is_no_fault() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "surgetank", "profiles", "--json"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
