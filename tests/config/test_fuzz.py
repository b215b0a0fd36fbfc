"""Whatever stands in a file, loading it gives a Config or a ConfigError of one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from surgetank.config import Config, Field, example, fields_of, parse
from surgetank.errors import ConfigError


def names(fields: Sequence[Field]) -> set[str]:
    return {field.name for field in fields}.union(*(names(field.inner) for field in fields))


KEYS = sorted(names(fields_of(Config)))
EXAMPLE = example().encode()

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["http://a:1", "16MiB", "127.0.0.1", "standard", "vllm", "wait", "both"])
    | st.sampled_from(["run {port}", "'", "m"])
)
keys = st.sampled_from(KEYS) | st.text(max_size=8) | st.integers()
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=25,
)


def mappings(fields: Sequence[Field], most: int = 3) -> st.SearchStrategy[Any]:
    """Mappings whose keys are right at every depth, with any scalars in them.

    Lists within lists have one entry at most, or trees grow too large to draw quickly.
    """
    return st.fixed_dictionaries({}, optional={field.name: values(field, most) for field in fields})


def values(field: Field, most: int) -> st.SearchStrategy[Any]:
    if field.section:
        return mappings(field.inner, most)
    if field.item:
        entries = mappings(field.inner, 1) if field.entry else scalars
        return st.lists(entries, max_size=most)
    return scalars


plausible = mappings(fields_of(Config))


def check(data: bytes) -> None:
    try:
        config = parse(data)
    except ConfigError as error:
        config, message = Config(), str(error)
    else:
        message = ""
    assert isinstance(config, Config)
    assert message.isprintable()


@given(trees | plausible)
def test_any_tree_is_a_config_or_a_config_error(tree: object) -> None:
    check(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_config_or_a_config_error(data: bytes) -> None:
    check(data)


@given(st.text(alphabet="&*!%@[]{}:,-?|>'\"#<~ \n\tab01.e\\U", max_size=60))
def test_any_punctuation_is_a_config_or_a_config_error(text: str) -> None:
    check(text.encode())


@given(st.integers(0, len(EXAMPLE) - 1), st.binary(max_size=4), st.integers(0, 40))
def test_a_damaged_example_is_a_config_or_a_config_error(at: int, new: bytes, cut: int) -> None:
    check(EXAMPLE[:at] + new + EXAMPLE[at + cut :])
