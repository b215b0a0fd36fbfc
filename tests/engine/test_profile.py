"""Profiles: the built-in ones, and one clear line for each mistake in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from surgetank.engine import profile as profiles
from surgetank.errors import InputError

GOOD = """
name = "mine"
a_ms = 10
b_us = 50.0
c_ns = 1.0
d_us = 30.0
e_ns = 20.0
kv_blocks = 1000
"""


@pytest.mark.parametrize("name", profiles.builtin_names())
def test_every_builtin_profile_loads_and_says_where_it_comes_from(name: str) -> None:
    profile = profiles.find(name)
    assert profile.name == name
    assert profile.description
    assert profile.source
    assert profile.error


def test_the_real_profiles_are_the_fitted_ones() -> None:
    assert profiles.find("llama-3.1-8b-h100-tp1").kv_tokens == 27881 * 16
    assert profiles.find("llama-3.1-70b-h100-tp4").a_ms == pytest.approx(14.542, abs=1e-3)


def test_what_a_file_leaves_out_has_the_engines_default() -> None:
    profile = profiles.parse(GOOD, "mine.toml")
    assert (profile.block_size, profile.max_num_seqs, profile.max_queued) == (16, 256, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("kv_block = 3", "unknown key `kv_block`: did you mean `kv_blocks`?"),
        ("max_num_seqs = 0", "max_num_seqs = 0: must be >= 1"),
        ("max_num_seqs = 1.5", "max_num_seqs = 1.5: must be a whole number"),
        ("max_num_seqs = true", "max_num_seqs = True: must be a whole number"),
        ("f_ms = nan", "f_ms = nan: must be a number"),
        ("f_ms = -1", "f_ms = -1: must be >= 0"),
        ("full_prompt_gate = 1", "full_prompt_gate = 1: must be true or false"),
        ('scheduling = "lifo"', "scheduling = 'lifo': must be 'fcfs' or 'priority'"),
        ("max_queued = 0", "max_queued = 0: must be >= 1, or left out for no bound"),
        ("max_model_len = 20000", "must be <= kv_blocks * block_size = 16000"),
        ("a b", "mine.toml: not TOML"),
    ],
)
def test_a_mistake_is_one_line_with_file_key_and_what_is_right(change: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        profiles.parse(f"{GOOD}{change}\n", "mine.toml")
    assert message in str(raised.value)
    assert str(raised.value).startswith("mine.toml: ")
    assert "\n" not in str(raised.value)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(InputError, match=r"mine\.toml: kv_blocks is missing: add `kv_blocks"):
        profiles.parse(GOOD.replace("kv_blocks", "block_size"), "mine.toml")


def test_a_user_names_a_builtin_profile_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD, encoding="utf-8")
    assert profiles.find(str(file)).name == "mine"
    with pytest.raises(InputError, match=r"absent\.toml: cannot be read"):
        profiles.find(str(tmp_path / "absent.toml"))
    with pytest.raises(InputError, match=r"no engine profile `nope`: use one of .*tiny"):
        profiles.find("nope")
