"""A mix of tenants in YAML: what it says is sent, and an error names the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from surgetank.errors import InputError
from surgetank.loadtest.mixfile import Mix, parse_prefix, read_mix
from surgetank.loadtest.sessions import SessionSpec
from surgetank.loadtest.shapes import Pulses, Steady
from surgetank.loadtest.tenants import Prefix
from surgetank.traffic.tokencounts import Lengths

DEFAULTS = {"prompt": "500", "output": "200"}


def read(tmp_path: Path, text: str, duration: float | None = None) -> Mix:
    file = tmp_path / "mix.yaml"
    file.write_text(text)
    return read_mix(file, DEFAULTS, duration=duration)


def test_tenants_have_their_own_shapes_sizes_and_sessions(tmp_path: Path) -> None:
    mix = read(
        tmp_path,
        "duration: 120\nseed: 7\ndefaults: {output: 50}\ntenants:\n"
        "  quiet: {rate: 2, prompt: 'uniform:10,20'}\n"
        "  noisy: {shape: pulse, base: 1, peak: 9, width: 5, period: 30, prefix: '100:2'}\n"
        "  agents: {shape: steady, rate: 0.5, turns: 4, think: 2, fan_out: 3}\n",
    )
    quiet, noisy, agents = mix.tenants
    assert (mix.duration, mix.seed) == (120, 7)
    assert quiet.shape == Steady(2, 120)
    assert quiet.prompt == Lengths("uniform", 10, 20)
    assert quiet.output == Lengths("fixed", 50)
    assert noisy.shape == Pulses(1, 9, 5, 30, 120)
    assert noisy.prompt == Lengths("fixed", 500)
    assert noisy.prefix == Prefix(100, 2)
    assert agents.sessions == SessionSpec(4, 2, 3)


def test_a_count_makes_so_many_tenants_alike(tmp_path: Path) -> None:
    mix = read(tmp_path, "tenants: {team: {rate: 1, count: 3}}")
    assert [tenant.name for tenant in mix.tenants] == ["team1", "team2", "team3"]


def test_the_duration_of_the_command_line_goes_before_the_files(tmp_path: Path) -> None:
    mix = read(tmp_path, "duration: 5\ntenants: {a: {rate: 1}}", duration=9)
    assert mix.tenants[0].shape.duration == 9


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants: {a: {rat: 1}}", "tenants.a: rat: unknown key; known are shape, count, rate"),
        ("tenant: {}", "tenant: unknown key; known are duration, seed, defaults, tenants"),
        ("tenants: {a: {rate: fast}}", "tenants.a: rate = 'fast': must be a number"),
        ("tenants: {a: {rate: true}}", "tenants.a: rate = True: must be a number"),
        ("tenants: {a: {shape: wave}}", "tenants.a: shape = 'wave': must be one of pulse"),
        ("tenants: {a: {rate: 1, prompt: many}}", "tenants.a: prompt many: must be N"),
        ("tenants: {a: {rate: 1, think: 3}}", "tenants.a: think: sessions need turns as well"),
        ("tenants: {a: {rate: 1, count: 0}}", "tenants.a: count = 0: must be from 1"),
        ("tenants: {a: {rate: 1, turns: 2, fan_out: 1.5}}", "fan_out = 1.5: must be a whole"),
        ("tenants: {a1: {rate: 1}, a: {rate: 1, count: 1}}", "two of them have one name"),
        ("seed: -1\ntenants: {a: {rate: 1}}", "seed = -1: must be a whole number >= 0"),
        ("tenants: {}", "tenants: must be a mapping"),
        ("[1, 2]", "the file: must be a mapping"),
        ("tenants: {a: [", "not YAML"),
    ],
)
def test_an_error_names_the_file_the_key_and_what_would_be_right(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(InputError, match=r"mix\.yaml: ") as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["x", "0", "10:0", "5:x", ""])
def test_a_prefix_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="TOKENS"):
        parse_prefix(text)
