"""`python -m surgetank.cli.reference DIR`: write the reference pages from the code.

Rule: nothing here knows a setting, an option or an outcome by name; what the code does not say of
itself is missing from the pages, and a test compares them with the committed ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import typer

from surgetank import cli, config
from surgetank.cli import analysis_schema, simulation_schema
from surgetank.config import Field, about, comments_of, fields_of
from surgetank.errors import InputError
from surgetank.policy.record import RequestRecord
from surgetank.policy.request import ENDINGS, Outcome

_NOTE: Final = "<!-- Written by `make docs` from the code: change it there. -->\n"


def pages() -> dict[str, str]:
    """Write all pages, by file name."""
    return {
        "analysis.schema.json": json.dumps(analysis_schema.schema(), indent=1) + "\n",
        "cli.md": _page("Commands", _CLI, _commands()),
        "configuration.md": _page("Configuration", _CONFIGURATION, _settings()),
        "outcomes.md": _page("Outcomes", _OUTCOMES, _outcomes()),
        "record.md": _page("The request record", _RECORD, _record()),
        "simulation.schema.json": json.dumps(simulation_schema.schema(), indent=1) + "\n",
        "surgetank.example.yaml": config.example(),
    }


def _page(title: str, introduction: str, lines: Iterable[str]) -> str:
    return f"{_NOTE}# {title}\n\n{introduction}\n" + "".join(f"{line}\n" for line in lines)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


# Commands.

_CLI: Final = """\
Every command ends with 0 when it is done, 1 when the answer is "no", and 2 when what it was given
cannot be used; then one line on standard error says what was wrong, where, and what would be right.
`surgetank --install-completion` sets up the shell's completion; `surgetank --version` prints the
version."""


def _commands() -> Iterator[str]:
    root: Any = typer.main.get_command(cli.app)
    context = typer.Context(root, info_name="surgetank")
    for name in root.list_commands(context):
        yield from _command(f"surgetank {name}", root.get_command(context, name), context, 2)


def _command(name: str, command: Any, context: Any, level: int) -> Iterator[str]:
    if command.hidden:
        return
    yield f"\n{'#' * level} {name}\n"
    yield " ".join((command.help or "").split())
    if hasattr(command, "list_commands"):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            yield from _command(f"{name} {inner}", found, context, level + 1)
        return
    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    if shown:
        yield from _table(("argument or option", "default", "meaning"), map(_parameter, shown))
    if command.epilog:
        yield f"\n{command.epilog}"


def _parameter(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
    else:
        flag = parameter.is_flag
        name = ", ".join([*parameter.opts, *parameter.secondary_opts])
        name += "" if flag else f" {parameter.metavar or parameter.name.upper()}"
    default = "required" if parameter.required else _default(parameter.default)
    return _code(name), default, " ".join((parameter.help or "").split())


def _default(value: object) -> str:
    if value is None or value is False or value == "" or callable(value):
        return ""
    items = value if isinstance(value, list | tuple) else [value]
    return ", ".join(_code("on" if item is True else str(item)) for item in items)


# Configuration.

_CONFIGURATION: Final = """\
One YAML file, given to `surgetank serve -c FILE`. What it does not set has the default below.
`surgetank config example` prints all of it to start from, `surgetank config check FILE` says what
is wrong with a file, and `surgetank config schema` prints a JSON schema for your editor.

- Times are numbers of seconds. Sizes are bytes, or a whole number with a unit: `16MiB` (KiB, MiB,
  GiB; powers of 1024).
- An unknown or repeated setting is an error, never ignored.
- Text is taken as it stands: there are no variables in it. Secrets are named (a file, an
  environment variable), not written into the file.
- Paths of files start at the folder the command runs in.
- Words such as `yes`, `no` or `on` are text; `true` and `false` are the two truth values. YAML
  tags and merge keys are refused; a file holds 1 MiB at most."""


def _settings() -> Iterator[str]:
    fields = fields_of(config.Config)
    for field in fields:
        yield from _part(field, field.name, 2)
    yield "\n## Top level"
    yield from _table(_HEAD, map(_setting, filter(_is_plain, fields)))


def _part(field: Field, path: str, level: int) -> Iterator[str]:
    """Write a section or list, and below it what stands in it."""
    if _is_plain(field):
        return
    yield f"\n{'#' * level} {path}\n"
    yield _introduction(field)
    plain = [inner for inner in field.inner if _is_plain(inner)]
    if plain:
        yield from _table(_HEAD, map(_setting, plain))
    for inner in field.inner:
        yield from _part(inner, f"{path}.{inner.name}", level + 1)


def _is_plain(field: Field) -> bool:
    return field.section is None and field.entry is None


def _introduction(field: Field) -> str:
    if field.entry is not None:
        return f"{about(field.entry)} A list: {field.why}."
    assert field.section is not None  # noqa: S101 - it is not plain
    return f"{field.why[0].upper()}{field.why[1:]}." if field.why else about(field.section)


_HEAD: Final = ("setting", "type", "unit", "default", "why")


def _setting(field: Field) -> tuple[str, ...]:
    default = field.default_text
    return (
        _code(field.name),
        field.type_text,
        field.unit,
        default if default == "required" else _code(default),
        field.why,
    )


# Outcomes.

_OUTCOMES: Final = """\
Every request ends in exactly one of these. A refusal carries a truthful `Retry-After` where a retry
can help; `code` is the error's code in the OpenAI form, the outcome is the label in metrics and
records. 499 is never sent: it stands in records when the client had left."""


def _outcomes() -> Iterator[str]:
    comments = comments_of(Outcome)
    rows = (
        (
            _code(outcome),
            ending.kind.value,
            str(ending.status),
            _code(ending.type),
            _code(ending.code),
            comments[outcome.name],
        )
        for outcome, ending in ENDINGS.items()
    )
    yield from _table(("outcome", "counts as", "status", "type", "code", "when"), rows)


# The record.

_RECORD: Final = """\
One JSON object a line for every request, made with mode 0600, without any text of a prompt or an
answer. A field that did not happen, or has its default, is left out. `v` is the version of this
form. The gateway, the load test and the simulation write the same."""


def _record() -> Iterator[str]:
    rows = (
        (_code(f.name), f.type_text.removesuffix(", or null"), _record_unit(f), f.why)
        for f in fields_of(RequestRecord)
    )
    yield from _table(("field", "type", "unit", "meaning"), rows)


def _record_unit(field: Field) -> str:
    return "Unix seconds" if field.kind is float and not field.unit else field.unit


def main() -> None:
    """Write the pages into the folder named on the command line."""
    if len(sys.argv) != 2:
        print("usage: python -m surgetank.cli.reference DIR", file=sys.stderr)
        sys.exit(2)
    folder = Path(sys.argv[1])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in pages().items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    main()
