"""The example configuration: every setting with its default, unit and reason.

Made from the Specs, so nothing is left out; read by `load`, it gives the defaults.
"""

from __future__ import annotations

import textwrap
from typing import Final

from surgetank.config.fields import REQUIRED, Field, about, fields_of
from surgetank.config.tree import Config

_HEAD = """\
# Surgetank's settings. Each stands here with its default: keep the lines you change, drop the rest.
# Times are numbers of seconds. Sizes are bytes, or a whole number with KiB, MiB or GiB: 16MiB.
# Paths of files start at the folder the command runs in. Text is taken as it stands: no variables.
# Check a file with: surgetank config check FILE
"""
# What a list's example entry says where a setting has no default, or one that is of no use.
_SAMPLES: Final = {
    "replicas.url": "http://127.0.0.1:8080",
    "ladder.fallbacks.model": "my-model",
    "ladder.fallbacks.to": "my-small-model",
    "tenants.name": "acme",
    "tenants.keys.name": "nightly",
    "tenants.keys.models.name": "my-model",
    "tenants.models.name": "my-model",
    "autoscaler.calendar.name": "launch",
    "autoscaler.calendar.start": "2026-12-01T10:00",
    "autoscaler.calendar.length": "3600",
    "autoscaler.calendar.factor": "5",
    "autoscaler.pools.model": "my-model",
    "autoscaler.pools.max_replicas": "4",
    "autoscaler.pools.process.command": "vllm serve my-model --port {port}",
    "autoscaler.pools.process.environment.name": "CUDA_VISIBLE_DEVICES",
}
_WIDTH: Final = 100


def example() -> str:
    """Write the whole file."""
    blocks = (_block(field, field.name, _WIDTH) for field in fields_of(Config))
    return _HEAD + "".join("\n" + "".join(f"{line}\n" for line in block) for block in blocks)


def _block(field: Field, path: str, width: int) -> list[str]:
    """Write one setting with its comment. `path`: where it stands, without indices."""
    comment = _comment(_sentence(field), width)
    if field.section is not None:
        return [*comment, f"{field.name}:", *_indented(_mapping(field, path, width - 2), "  ")]
    value = _SAMPLES.get(path, field.default_text)
    lines = [*comment, f"{field.name}: {value}"]
    if field.entry is not None:
        entry = [f"{field.name}:", *_entry(_mapping(field, path, width - 6))]
        lines += _indented(entry, "# ")  # without the `# ` it is valid YAML
    return lines


def _mapping(field: Field, path: str, width: int) -> list[str]:
    return [line for inner in field.inner for line in _block(inner, f"{path}.{inner.name}", width)]


def _entry(lines: list[str]) -> list[str]:
    """Make a mapping the entry of a list: a dash before its first setting."""
    first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return [
        *_indented(lines[:first], "  "),
        f"  - {lines[first]}",
        *_indented(lines[first + 1 :], "    "),
    ]


def _indented(lines: list[str], indent: str) -> list[str]:
    return [indent + line for line in lines]


def _sentence(field: Field) -> str:
    """Reason, then unit or choices in brackets; a section without a reason says what it is."""
    if field.section is not None:
        return field.why or about(field.section)
    kind = field.unit or ("" if field.kind in {str, bool} or field.entry else field.type_text)
    if field.default_text == REQUIRED:
        kind = f"{kind}, {REQUIRED}" if kind else REQUIRED
    return f"{field.why} [{kind}]" if kind else field.why


def _comment(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="# ", subsequent_indent="# ")
