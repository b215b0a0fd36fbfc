"""Example, schema and reference are made from the Specs, and leave no setting out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from itertools import takewhile
from typing import Any

import pytest
import yaml

from surgetank.adapters.processes import VariableSpec
from surgetank.config import Config, Field, about, example, fields_of, parse, schema
from surgetank.config.bounds import bound_of
from surgetank.config.fields import size_of, size_text
from surgetank.policy.plan import ScaleSpec


def settings(fields: Sequence[Field], path: str = "") -> Iterator[tuple[str, Field]]:
    """All settings by path, sections and lists before what they hold."""
    for field in fields:
        yield path + field.name, field
        yield from settings(field.inner, f"{path}{field.name}.")


SETTINGS = dict(settings(fields_of(Config)))
LISTS = [path for path, field in SETTINGS.items() if field.entry]


def test_settings_are_found_at_every_depth() -> None:
    assert {"listen.port", "tenants.name", "autoscaler.pools.process.environment.name"} <= set(
        SETTINGS
    )


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_says_why(path: str) -> None:
    field = SETTINGS[path]
    said = field.why or (about(field.section) if field.section else "")
    assert said, f"{path}: put a comment beside the field"


@pytest.mark.parametrize("path", [p for p, f in SETTINGS.items() if f.kind is float])
def test_every_decimal_number_has_a_unit_or_is_a_ratio(path: str) -> None:
    field = SETTINGS[path]
    ratio = {
        "weight",
        "theta",
        "kv_fill",
        "min_share",
        "prefill_weight",
        "decode_weight",
        "ttft_ratio_limit",
        "surge_factor",
        "factor",
        "attainment",
        "standby_cost",
        "burst_factor",
        "decode_share",
        "token_gap_tolerance",
        "utilisation",
        "direction_tolerance",
        "kept_sessions",
        "retry_ratio",
        "prefill_share",
    }
    assert field.unit or field.name in ratio


@pytest.mark.parametrize("path", [p for p, f in SETTINGS.items() if f.number])
def test_every_default_is_within_its_bounds(path: str) -> None:
    default = SETTINGS[path].default
    assert default in {None, MISSING} or bound_of(SETTINGS[path].name).problem(default) is None


def test_the_example_gives_the_defaults() -> None:
    assert parse(example().encode()) == Config()


def uncommented(text: str, name: str) -> str:
    """Put the commented entry of a list in place of its `[]`."""
    found = re.search(rf"^( *){name}: \[\]\n(?=\1# {name}:\n)", text, re.MULTILINE)
    assert found is not None, name
    indent = found[1]
    lines = text[found.end() :].splitlines(keepends=True)
    entry = list(
        takewhile(lambda line: line.startswith((f"{indent}# {name}", f"{indent}#  ")), lines)
    )
    whole = "".join(indent + line.removeprefix(f"{indent}# ") for line in entry)
    return text[: found.start()] + whole + "".join(lines[len(entry) :])


def example_with_entries() -> str:
    text = example()
    for path in LISTS:
        text = uncommented(text, path.rsplit(".", 1)[-1])
    return text


def test_the_example_leaves_no_setting_out() -> None:
    def written(value: Any, path: str = "") -> Iterator[str]:
        for name, inner in (value if isinstance(value, dict) else {}).items():
            yield path + name
            yield from written(
                inner[0] if isinstance(inner, list) and inner else inner, f"{path}{name}."
            )

    assert list(written(yaml.safe_load(example_with_entries()))) == list(SETTINGS)


def test_the_commented_entries_of_the_example_are_valid() -> None:
    config = parse(example_with_entries().encode())
    assert [len(config.replicas), len(config.tiers), len(config.tenants)] == [1, 1, 1]
    assert config.tenants[0].name == "acme"
    (pool,) = config.autoscaler.pools
    assert pool.scale == ScaleSpec()
    assert pool.process.environment == (VariableSpec("CUDA_VISIBLE_DEVICES"),)


def test_the_schema_describes_every_setting_and_forbids_others() -> None:
    tree = schema()

    def check(described: dict[str, Any], fields: Sequence[Field]) -> None:
        assert described["additionalProperties"] is False
        assert list(described["properties"]) == [field.name for field in fields]
        for field in fields:
            one = described["properties"][field.name]
            assert one["description"] if field.why else field.section
            if field.inner:
                reference = (one["items"] if field.entry else one)["$ref"]
                check(tree["$defs"][reference.rsplit("/", 1)[1]], field.inner)

    check(tree, fields_of(Config))
    port = tree["$defs"]["ListenSpec"]["properties"]["port"]
    assert (port["minimum"], port["maximum"], port["default"]) == (0, 65535, 8000)
    pool = tree["$defs"]["PoolConfig"]
    assert (pool["required"], pool["properties"]["role"]["default"]) == (
        ["model", "max_replicas"],
        "both",
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("16MiB", 16 << 20), ("1 GiB", 1 << 30), ("0KiB", 0), ("16MB", None), ("1.5MiB", None)],
)
def test_a_size_is_exact_or_no_size(text: str, size: int | None) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("size", [1 << 10, 3 << 20, 5 << 30, 1536 << 10])
def test_a_size_is_written_as_it_is_read(size: int) -> None:
    assert size_of(size_text(size)) == size
