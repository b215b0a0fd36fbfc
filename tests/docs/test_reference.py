"""The committed reference pages are what the code says of itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from surgetank.cli.reference import pages
from surgetank.config import comments_of, fields_of, parse
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import ENDINGS, Outcome

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_what_the_code_generates(name: str) -> None:
    committed = (FOLDER / name).read_text(encoding="utf-8")
    assert committed == PAGES[name], "run `make docs` and commit what it wrote"


def test_every_outcome_has_an_ending_and_says_when() -> None:
    assert set(ENDINGS) == set(Outcome)
    assert all(comments_of(Outcome).get(outcome.name) for outcome in Outcome)


def test_every_field_of_the_record_says_what_it_is() -> None:
    assert all(field.why for field in fields_of(RequestRecord))


def test_every_option_says_what_it_does() -> None:
    rows = [line for line in PAGES["cli.md"].splitlines() if line.startswith("| `")]
    assert rows
    assert not [row for row in rows if row.endswith("|  |")]


def test_the_pages_do_not_depend_on_the_terminal(tmp_path: Path) -> None:
    for width in ("40", "200"):
        subprocess.run(
            [sys.executable, "-m", "surgetank.cli.reference", str(tmp_path)],
            env=os.environ | {"COLUMNS": width, "TERMINAL_WIDTH": width, "FORCE_COLOR": "1"},
            timeout=60,
            check=True,
        )
        assert (tmp_path / "cli.md").read_text(encoding="utf-8") == PAGES["cli.md"]


PROSE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDES = [
    page for page in PROSE if page.name != "architecture.md"
]  # it names methods so: flow.join


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.name)
def test_configurations_shown_in_pages_are_valid(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"```yaml\n# surgetank\.yaml\n(.*?)```", text, re.DOTALL):
        parse(block.encode(), page.name)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_settings_named_in_pages_exist(page: Path) -> None:
    settings = set(re.findall(r"^\| `(\w+)` \|", PAGES["configuration.md"], re.MULTILINE))
    sections = (
        r"listen|admin|flow|auth|records|journal|upstream|page|autoscaler(?:\.\w+)*|process|scale"
    )
    named = re.findall(rf"`(?:{sections})\.(\w+)`", page.read_text(encoding="utf-8"))
    lists = {"pools", "environment"}  # they have headings
    assert set(named) - {"jsonl"} <= settings | lists  # records.jsonl is a file
