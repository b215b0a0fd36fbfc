"""The service manager's units: valid, and in step with the command they start."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
COMMAND = "/usr/local/bin/surgetank"


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (FOLDER / "surgetank.service").read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_the_units_are_valid(tmp_path: Path) -> None:
    for unit in FOLDER.iterdir():
        text = unit.read_text(encoding="utf-8")
        assert unit.suffix == ".socket" or COMMAND in text
        program = shutil.which("true")
        assert program is not None
        (tmp_path / unit.name).write_text(text.replace(COMMAND, program))
    names = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(
        ["systemd-analyze", "verify", *names],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_is_told_of_and_confined_as_the_guide_says() -> None:
    given = settings()
    assert given["ExecStart"] == [f"{COMMAND} serve -c /etc/surgetank/surgetank.yaml"]
    assert given["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    for name, value in (
        ("Type", "notify"),
        ("DynamicUser", "yes"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("UMask", "0077"),
    ):
        assert given[name] == [value]
    loaded = {entry.split(":")[0] for entry in given["LoadCredential"]}
    assert loaded == {"keys.txt", "hmac.secret", "admin.token"}
