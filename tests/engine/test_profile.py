"""Profiles: the built-in ones, and one clear line for each mistake in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from surgetank.engine import profile as profiles
from surgetank.engine import written
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
    assert profiles.find("h100-llama-3.1-8b-bf16-tp1").kv_tokens == 27881 * 16
    assert profiles.find("h100-llama-3.1-70b-bf16-tp4").a_ms == pytest.approx(14.542, abs=1e-3)


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
        ("step = 3", "step = 3: must be a table of a_ms, b_us"),
        ("[step]\ng_ms = 1", "unknown key `step.g_ms`: known are a_ms"),
        ("[step]\na_ms = 1", "a_ms stands twice: keep the one in `step`"),
        ("cold_start = 'long'", "cold_start = 'long': must be seconds, or a table of stages"),
        ("cold_start.weights = {sigma = 1}", "cold_start.weights: median_s is missing"),
        ("cold_start.weights = {median = 1}", "cold_start.weights: unknown key `median`"),
        ("cold_start.weights = -1", "cold_start.weights.median_s = -1: must be a number >= 0"),
        ("cold_start.weights = nan", "cold_start.weights.median_s = nan: must be a number >= 0"),
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
    with pytest.raises(InputError, match=r"no engine profile `nope`: `surgetank profiles` lists"):
        profiles.find("nope")
    with pytest.raises(InputError, match=r"did you mean .*h100-llama-3\.1-8b-bf16-tp1"):
        profiles.find("h100-llama-3.1-8b-bf16")


YAML = """
name: mine
step: {a_ms: 10, b_us: 50.0, c_ns: 1.0, d_us: 30, e_ns: 20.0, f_ms: 2}
kv_blocks: 1000
block_size: 32
max_num_seqs: 64
max_num_batched_tokens: 1024
full_prompt_gate: false
scheduling: priority
cold_start:
  weights: {median_s: 40, sigma: 0.3}
  graphs: {median_s: 20, sigma: 0.2, again_s: 5}
wake_s: 2
"""


def test_a_users_own_yaml_file_gives_the_step_and_the_stages(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(YAML, encoding="utf-8")
    found = profiles.find(str(file))
    assert (found.a_ms, found.f_ms, found.kv_tokens) == (10, 2, 32000)
    assert found.cold_start == (
        profiles.Stage("weights", 40, 0.3, None),
        profiles.Stage("graphs", 20, 0.2, 5),
    )
    assert found.cold_start_s == 60
    assert found.wake_s == 2
    assert found.scheduling == "priority"


@pytest.mark.parametrize("text", ["- a\n", "a: [", "3", "1: 2", "[" * 5000])
def test_a_file_that_is_no_table_is_told_in_one_line(text: str) -> None:
    with pytest.raises(InputError, match=r"mine\.yaml: ") as raised:
        profiles.parse_yaml(text, "mine.yaml")
    assert "\n" not in str(raised.value)


def test_a_number_is_a_cold_start_of_one_stage() -> None:
    found = profiles.parse(f"{GOOD}cold_start = 7\n", "mine.toml")
    assert found.cold_start == (profiles.Stage("loading", 7),)
    assert profiles.parse(f"{GOOD}cold_start = 0\n", "mine.toml").cold_start == ()


@pytest.mark.parametrize("name", profiles.builtin_names())
def test_a_profile_written_out_is_read_back_equal(name: str) -> None:
    found = profiles.find(name)
    assert profiles.parse(written.toml(found), name) == found


def test_texts_of_any_kind_are_written_so_that_they_are_read_back() -> None:
    odd = replace(
        profiles.find("tiny"),
        name='a "b" \\ \x7f \n 中文',
        cold_start=(profiles.Stage("two words", 1.5), profiles.Stage("中", 2.0, 0.1, 1.0)),
    )
    assert profiles.parse(written.toml(odd), "odd") == odd


def test_the_experimental_rows_say_so() -> None:
    assert "EXPERIMENTAL" in profiles.find("l40s-llama-3.1-70b-bf16-tp4").error
    assert "EXPERIMENTAL" in profiles.find("b200-llama-3.1-8b-bf16-tp1").error
    assert "EXPERIMENTAL" not in profiles.find("h200-qwen3-32b-fp8-tp1").error


def test_a_mixture_of_experts_has_its_term() -> None:
    found = profiles.find("h100-qwen3-30b-a3b-bf16-tp1")
    assert found.f_ms > 0
    assert found.expert_share == 8 / 128
