"""A configuration file becomes Specs, or one error with the setting, the line and the cure."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from surgetank.adapters.processes import ProcessSpec, VariableSpec
from surgetank.config import Config, fields_of, load, parse
from surgetank.config.source import Source
from surgetank.config.validate import _spec
from surgetank.errors import ConfigError
from surgetank.gateway.spec import GatewaySpec, ReplicaSpec
from surgetank.policy.plan import ScaleSpec
from surgetank.policy.replica import Role
from surgetank.policy.tenant import KeyLimits, ModelLimits, Tenant, Tier


def error_of(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text.encode())
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_fills_the_specs() -> None:
    config = parse(b"""
listen: {port: 9000, max_body_bytes: 2MiB}
replicas:
  - {url: "http://10.0.0.5:8000", dialect: vllm, slots: 64}
tiers:
  - {name: core, priority: 0, min_share: 0.5}
tenants:
  - {name: acme, tier: core, weight: 2, tokens_per_minute: 60000}
drain_timeout: 5
""")
    assert config.listen.port == 9000
    assert config.listen.max_body_bytes == 2 << 20
    assert config.replicas == (ReplicaSpec("http://10.0.0.5:8000", dialect="vllm", slots=64),)
    assert config.tiers == (Tier("core", priority=0, min_share=0.5),)
    assert config.tenants == (Tenant("acme", "core", weight=2.0, tokens_per_minute=60000.0),)
    assert config.gateway.drain_timeout == 5.0
    assert config.gateway.replicas is config.replicas


def test_limits_stand_on_the_tenant_its_keys_and_models_of_either() -> None:
    config = parse(b"""
tiers:
  - {name: standard, max_output_tokens: 4000, when_above: refuse}
tenants:
  - name: acme
    tokens_per_minute: 600000
    reserve: expected
    keys:
      - name: nightly
        max_concurrent: 4
        models: [{name: llama-70b, output_tokens_per_minute: 20000, burst_seconds: 10}]
    models:
      - {name: llama-70b, requests_per_minute: 300}
""")
    small = ModelLimits("llama-70b", output_tokens_per_minute=20_000.0, burst_seconds=10.0)
    assert config.tenants == (
        Tenant(
            "acme",
            tokens_per_minute=600_000.0,
            reserve="expected",
            keys=(KeyLimits("nightly", max_concurrent=4, models=(small,)),),
            models=(ModelLimits("llama-70b", requests_per_minute=300.0),),
        ),
    )
    assert config.tiers == (Tier(max_output_tokens=4000, when_above="refuse"),)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("keys: [{name: a}, {name: a}]", "tenants[0].keys[1].name = 'a': is taken already"),
        ("models: [{name: a}, {name: a}]", "tenants[0].models[1].name = 'a': is taken already"),
        (
            "keys: [{name: a, models: [{name: m}, {name: m}]}]",
            "tenants[0].keys[0].models[1].name = 'm': is taken already",
        ),
        ("keys: [{name: 'a b'}]", "tenants[0].keys[0].name = 'a b': use letters"),
        ("keys: [{name: a, max_concurrent: 0}]", "max_concurrent = 0: must be >= 1"),
        ("models: [{name: ''}]", "tenants[0].models[0].name = '': must be a printable name"),
        ("keys: [{name: a, tier: gold}]", "tenants[0].keys[0].tier is not a setting"),
        ("reserve: nothing", "tenants[0].reserve = 'nothing': must be most or expected"),
        ("limits: {}", "tenants[0].limits is not a setting"),
    ],
)
def test_a_level_that_cannot_be_is_named(entry: str, problem: str) -> None:
    assert problem in error_of(f"tenants:\n  - name: t\n    {entry}\n")


def test_an_api_key_in_the_place_of_its_name_is_not_repeated() -> None:
    message = error_of("tenants: [{name: t, keys: [{name: sk-st-abcdef}]}]")
    assert message.startswith("tenants[0].keys[0].name must be the name of the key, not the key")
    assert "abcdef" not in message


def test_the_tree_holds_all_of_the_gateway_with_its_defaults() -> None:
    assert Config().gateway == GatewaySpec()
    assert {f.name for f in fields(GatewaySpec)} < {f.name for f in fields(Config)}


@pytest.mark.parametrize("text", ["", "# nothing\n", "flow:\n  # all defaults\ntenants:\n"])
def test_what_is_left_empty_means_the_defaults(text: str) -> None:
    assert parse(text.encode()) == Config()


def test_an_unknown_key_names_its_path_and_the_nearest_setting() -> None:
    assert error_of("flow:\n  max_queud: 3\n") == (
        "flow.max_queud is not a setting; did you mean max_queued? (surgetank.yaml line 2)"
    )


def test_a_key_in_the_wrong_section_names_the_right_one() -> None:
    assert "did you mean flow.queue_timeout?" in error_of("queue_timeout: 3")
    assert "did you mean tenants at the top level?" in error_of("flow: {tenants: []}")


def test_a_bound_names_setting_value_cure_and_line() -> None:
    assert error_of("\n\nflow:\n  max_queued: -3\n") == (
        "flow.max_queued = -3: must be >= 0 (surgetank.yaml line 4)"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("flow: 3", "flow = 3: must be a mapping"),
        ("[1]", "the file must be a mapping"),
        ("replicas: {}", "replicas = a mapping: must be a list"),
        ("replicas: [{}]", "replicas[0].url is missing"),
        ("tenants: [{name: 5}]", "tenants[0].name = 5: must be text: quote it"),
        ("listen: {port: 65536}", "must be <= 65535"),
        ("listen: {port: true}", "listen.port = true: must be a whole number"),
        ("listen: {port: 80.5}", "listen.port = 80.5: must be a whole number"),
        ("listen: {port: null}", "listen.port = null: must be a whole number"),
        ("flow: {queue_timeout: 30s}", "flow.queue_timeout = '30s': must be a number"),
        ("flow: {queue_timeout: 0}", "must be > 0 seconds"),
        ("flow: {queue_timeout: 9000000}", "must be <= 86400 seconds"),
        ("flow: {queue_timeout: .inf}", "must be a number"),
        ("flow: {queue_timeout: 1e999}", "the number is too large"),
        ("flow: {when_full: drop}", "flow.when_full = 'drop': must be wait or refuse"),
        ("listen: {max_body_bytes: 16MB}", "must be bytes, or a size such as 16MiB"),
        ("listen: {max_head_bytes: 10}", "must be >= 1024"),
        ("listen: {host: a b}", "must be an address or host name"),
        ("listen: {host: 127.0.0.300}", "must be an address or host name"),
        ("admin: {port: 8000}", "is listen.port too"),
        ("tiers: [{name: a, min_share: 2}]", "must be <= 1"),
        ("tiers: [{name: a, min_share: .6}, {name: b, min_share: .6}]", "add up to 1.2"),
        ("tiers: [{name: a}, {name: a}]", "tiers[1].name = 'a': is taken already, on line 1"),
        ("tenants: [{name: a}, {name: a}]", "tenants[1].name = 'a': is taken already"),
        ("tenants: [{name: a, tier: gold}]", "no such tier; there are standard"),
        ("tenants: [{name: a, weight: 0}]", "must be > 0"),
        ("tiers: [{name: a, degrades: never}]", "must be core, standard or batch"),
        ("ladder: {kept_sessions: 2}", "must be <= 1"),
        ("ladder: {fallbacks: [{model: a, to: a}]}", "must be another model"),
        ("ladder: {fallbacks: [{model: '', to: a}]}", "must be a printable name"),
        ("replicas: [{url: 'http://a:1', batching: static}]", "needs slots"),
        ("sessions: {header: Authorization}", "may be a secret"),
        ("tenants: [{name: a, tokens_per_minute: 1.0e+308}]", "must be <= 1e+15"),
        ("tenants: [{name: a, weight: 1.0e-320}]", "must be >= 1e-06"),
        ("flow: {batching_window: 1.0e+308}", "must be <= 86400"),
        ("flow: {slack_bucket: 1.0e-320}", "must be >= 1e-06"),
        ("tenants: [{name: 'a b'}]", "use letters, digits"),
        ("replicas: [{url: 'ftp://a:1'}]", "must be http://HOST:PORT or https://HOST:PORT"),
        ("replicas: [{url: 'http://a:1', ca_file: x.pem}]", "is for https replicas"),
        ("replicas: [{url: 'http://a'}]", "must be http://HOST:PORT"),
        ("replicas: [{url: 'http://a:1/v1'}]", "must be http://HOST:PORT"),
        ("replicas: [{url: 'http://u:p@a:1'}]", "must be http://HOST:PORT"),
        ("replicas: [{url: 'http://a:99999'}]", "must be http://HOST:PORT"),
        ("replicas: [{url: ' http://a:1'}]", "must be http://HOST:PORT"),
        ("replicas: [{url: 'http://a:1'}, {url: 'http://A:1/'}]", "is taken already"),
        ("replicas: [{url: 'http://a:1', api_key_env: sk-live}]", "not the key itself"),
        ("records: {path: x}\njournal: {path: x}", "is the file of records.path too"),
        ("a: 1\na: 2", "line 2: 'a' stands here twice, first on line 1"),
        ("a: !!python/object/apply:os.system [id]", "no tags are supported"),
        ("a: &a {b: 1}\nc: {<<: *a}", "merge keys (<<) are not supported"),
        ("a: *b", "*b refers to no anchor above it"),
        ("a: &a [*a]", "nested more than 16 deep"),
        ("a: " + "[" * 50, "nested more than 16 deep"),
        ("--- {}\n--- {}", "a second document"),
        ("1: 2", "a key must be text"),
        ("? [a]\n: b", "a key must be text"),
        ("listen: {port: 1", "is not YAML"),
        ("a: " + "[" * 100_000, "nest"),
        ('a: "\\UFFFFFFFF"', "is not YAML"),
        ("a: \x00", "is not YAML"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_right(text: str, says: str) -> None:
    assert says in error_of(text)


POOLED = """autoscaler:
  pools:
    - model: m
      max_replicas: 3
      process:
        command: run --port {port}
"""


def test_a_file_fills_what_stands_in_sections_and_lists_of_a_section() -> None:
    config = parse(b"""
autoscaler:
  interval: 0.5
  gateways: ["http://10.0.0.1:9000", "http://10.0.0.2:9000"]
  token_file: gateways.token
  pools:
    - model: m
      role: prefill
      max_replicas: 3
      base: 0
      process:
        command: run --port {port}
        max_log_bytes: 1MiB
        environment: [{name: CUDA_VISIBLE_DEVICES, value: "0"}]
      scale: {standbys: 1, utilisation: 0.7}
    - {model: m, role: decode, max_replicas: 2, process: {command: run, environment: [
        {name: PORT, value: "{port}"}]}}
""")
    spec = config.autoscaler
    assert (spec.interval, spec.gateways[1]) == (0.5, "http://10.0.0.2:9000")
    first, second = spec.pools
    assert (first.role, second.role) == (Role.PREFILL, Role.DECODE)
    assert first.process == ProcessSpec(
        "run --port {port}",
        max_log_bytes=1 << 20,
        environment=(VariableSpec("CUDA_VISIBLE_DEVICES", "0"),),
    )
    assert first.scale == ScaleSpec(standbys=1, utilisation=0.7)
    assert first.scale_spec().max_replicas == 3


@pytest.mark.parametrize("text", ["autoscaler:", "autoscaler:\n  pools:\n  gateways:\n"])
def test_what_is_left_empty_in_a_section_means_the_defaults(text: str) -> None:
    assert parse(text.encode()) == Config()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "      scale:\n        utilisation: 1.5\n",
            "autoscaler.pools[0].scale.utilisation = 1.5: must be <= 1 (surgetank.yaml line 8)",
        ),
        (
            "        stop_timeout: 30s\n",
            (
                "autoscaler.pools[0].process.stop_timeout = '30s': must be a number "
                "(surgetank.yaml line 7)"
            ),
        ),
        (
            "        environment: [{value: x}]\n",
            "autoscaler.pools[0].process.environment[0].name is missing (surgetank.yaml line 7)",
        ),
        (
            "        environment:\n          - name: 1A\n",
            (
                "autoscaler.pools[0].process.environment[0].name = '1A': use letters, digits and _ "
                "(no digit first) (surgetank.yaml line 8)"
            ),
        ),
        (
            "      role: brain\n",
            (
                "autoscaler.pools[0].role = 'brain': must be both, prefill or decode "
                "(surgetank.yaml line 7)"
            ),
        ),
        (
            "      base: 4\n",
            (
                "autoscaler.pools[0].base = 4: must be between 0 and max_replicas (3) "
                "(surgetank.yaml line 7)"
            ),
        ),
        (
            "      drain_timeout: 0\n",
            "autoscaler.pools[0].drain_timeout = 0.0: must be > 0 (surgetank.yaml line 7)",
        ),
        (
            "      scale:\n        standbys: 9\n",
            (
                "autoscaler.pools[0].scale.standbys = 9: must be between 0 and max_standbys (4) "
                "(surgetank.yaml line 8)"
            ),
        ),
        (
            "    - model: m\n      max_replicas: 1\n",
            (
                "autoscaler.pools[1]: two are of m/both: one model, one role each "
                "(surgetank.yaml line 7)"
            ),
        ),
        (
            "      scale:\n        standbies: 1\n",
            (
                "autoscaler.pools[0].scale.standbies is not a setting; did you mean standbys? "
                "(surgetank.yaml line 8)"
            ),
        ),
        (
            "        comand: x\n",
            (
                "autoscaler.pools[0].process.comand is not a setting; did you mean command? "
                "(surgetank.yaml line 7)"
            ),
        ),
        ("      command: x\n", "did you mean autoscaler.pools[0].process.command?"),
        ("      scale: {min_replicas: 2}\n", "did you mean autoscaler.pools[0].base?"),
        ("      scale: {max_replicas: 2}\n", "did you mean autoscaler.pools[0].max_replicas?"),
        ("  gateways: {}\n", "autoscaler.gateways = a mapping: must be a list"),
        ("  gateways: [1]\n", "autoscaler.gateways[0] = 1: must be text: quote it"),
        ("  gateways:\n    - http://a\n", "autoscaler.gateways[0] = 'http://a': must be http://H"),
        ("  gateways: ['http://a:1', 'http://A:1']\n", "gateways[1] = 'a:1': is taken already"),
        ("  pools2: []\n", "autoscaler.pools2 is not a setting; did you mean pools?"),
        (
            "replicas: [{url: 'http://a:1', model: m}]\n",
            "replicas[0].model = 'm': autoscaler.pools",
        ),
        ("  decisions: d\nrecords: {path: d}\n", "autoscaler.decisions = 'd': is the file of rec"),
        ("  state_dir: ''\n", "autoscaler.state_dir = '': must be a path"),
        ("page: {port: 8000}\n", "page.port = 8000: is listen.port too"),
        ("page: {host: a b}\n", "page.host = 'a b': must be an address or host name"),
        (
            '        environment: [{name: A, value: "\\0"}]\n',
            "value must not have a NUL",
        ),
        ("        cwd: ''\n", "autoscaler.pools[0].process.cwd = '': must be a path"),
    ],
)
def test_a_mistake_inside_a_section_names_its_whole_path_and_line(more: str, says: str) -> None:
    assert says in error_of(POOLED + more)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run", "= 'run': must have {port} where its port goes (surgetank.yaml line 6)"),
        ("'run \"{port}'", "no closing quotation: quote as in a shell"),
        ("''", "must be the program that starts a replica"),
        ("'\"\"'", "must have {port}"),
        ('"run {port} \\0"', "must be a command line"),
    ],
)
def test_a_command_that_cannot_start_a_replica_is_refused(command: str, says: str) -> None:
    message = error_of(POOLED.replace("run --port {port}", command))
    assert message.startswith("autoscaler.pools[0].process.command = ")
    assert says in message


@pytest.mark.parametrize("more", ["  advisory: true\n", "  gateways: ['http://10.0.0.1:9000']\n"])
def test_a_pool_that_starts_no_processes_here_needs_no_command(more: str) -> None:
    pool = "autoscaler:\n  pools: [{model: m, max_replicas: 2}]\n"
    assert parse((pool + more).encode()).autoscaler.pools[0].process.command == ""
    assert "line 2" in error_of(pool)


def test_in_advisory_mode_the_replicas_of_a_pool_are_others() -> None:
    text = f"{POOLED}  advisory: true\nreplicas: [{{url: 'http://a:1', model: m}}]\n"
    assert parse(text.encode()).replicas[0].model == "m"


def test_both_ends_of_a_token_may_read_one_file() -> None:
    text = "admin: {token_file: t}\nautoscaler: {token_file: t}\n"
    assert parse(text.encode()).autoscaler.token_file == "t"
    assert "is the file of admin.token_file too" in error_of(
        "admin: {token_file: t}\nautoscaler: {state_dir: t}\n"
    )


def test_what_a_spec_refuses_without_naming_a_setting_names_the_spec() -> None:
    @dataclass(frozen=True)
    class Shy:
        """A Spec that says nothing of its settings."""

        size: int = 1  # of it

        def __post_init__(self) -> None:
            raise ConfigError("no: this does not fit")

    source = Source("f.yaml", {}, {("shy",): 4})
    with pytest.raises(ConfigError, match=r"^shy: no: this does not fit \(f.yaml line 4\)$"):
        _spec({"size": 2}, Shy, fields_of(Shy), ("shy",), source)


def test_the_settings_of_the_autoscaler_load_nothing_heavy() -> None:
    code = (
        "import sys, surgetank.autoscaler.spec\n"
        "heavy = {'numba', 'numpy', 'pydantic', 'starlette', 'uvicorn', 'uvloop'}\n"
        "print(heavy & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


def test_an_api_key_written_where_its_variable_is_named_is_not_repeated() -> None:
    message = error_of("replicas: [{url: 'http://a:1', api_key_env: sk-live-1234}]")
    assert "1234" not in message


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_without_keys_loopback_is_served(host: str) -> None:
    assert parse(f"listen: {{host: '{host}'}}".encode()).listen.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gateway.internal"])
def test_without_keys_nothing_else_is_served(host: str) -> None:
    message = error_of(f"listen: {{host: '{host}'}}")
    assert "without API keys only this machine may be served" in message
    assert "surgetank keys new" in message
    with_keys = f"listen: {{host: '{host}'}}\nauth: {{keys_file: keys.txt}}"
    assert parse(with_keys.encode()).listen.host == host


def test_words_of_yaml_1_1_are_text() -> None:
    config = parse(b"tenants: [{name: no}, {name: on}, {name: 2026-01-01}]")
    assert [tenant.name for tenant in config.tenants] == ["no", "on", "2026-01-01"]


def test_an_alias_may_repeat_a_value_but_not_explode() -> None:
    config = parse(b"flow: {queue_timeout: &t 3.5, ttft_objective: *t}")
    assert config.flow.ttft_objective == 3.5
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 11)
    )
    assert "more than 50000 values" in error_of(bomb)


def test_a_large_or_binary_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        parse(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="line 2: is not UTF-8"):
        parse(b"# a\n\xff")


def test_a_file_is_loaded_and_named_in_its_errors(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("listen: {port: 1234}")
    assert load(file).listen.port == 1234
    file.write_text("listen:\n  prot: 1234")
    with pytest.raises(ConfigError, match=r"did you mean port\? \(.*my\.yaml line 2\)"):
        load(file)


@pytest.mark.parametrize("name", ["absent.yaml", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_a_config_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(f"{tmp_path}/{name}")


@pytest.mark.parametrize(
    ("listener", "url", "section"),
    [
        ("listen: {port: 8000}", "http://127.0.0.1:8000", "listen"),
        ("listen: {port: 8000}", "http://localhost:8000", "listen"),
        ("listen: {host: '::1', port: 8000}", "http://[::1]:8000", "listen"),
        (
            "auth: {keys_file: k}\nlisten: {host: 0.0.0.0, port: 8000}",
            "http://127.0.0.1:8000",
            "listen",
        ),
        ("admin: {port: 9000}", "http://127.0.0.1:9000", "admin"),
        ("page: {port: 9001}", "http://127.0.0.1:9001", "page"),
    ],
)
def test_a_gateway_is_not_its_own_replica(listener: str, url: str, section: str) -> None:
    with pytest.raises(ConfigError, match=rf"is this gateway's own {section}\.port"):
        parse(f"{listener}\nreplicas: [{{url: '{url}'}}]".encode())


def test_an_engine_on_the_same_port_of_another_address_is_no_gateway() -> None:
    parse(b"listen: {port: 8000}\nreplicas: [{url: 'http://127.0.0.2:8000'}]")
    parse(b"listen: {port: 8000}\nreplicas: [{url: 'http://10.0.0.5:8000'}]")


def test_what_the_command_line_sets_is_checked_to_fit_and_not_what_the_file_said() -> None:
    def adjust(config: Config) -> Config:
        return replace(config, listen=replace(config.listen, port=8001))

    for port in (8000, 8001):
        data = f"replicas: [{{url: 'http://127.0.0.1:{port}'}}]".encode()
        with pytest.raises(ConfigError, match="own listen") if port == 8001 else nullcontext():
            parse(data, adjust=adjust)


EVENT = "name: a, start: 2026-12-01 10:00, length: 9, factor: 2"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "records: {path: null}\nautoscaler: {portfolio: {engine: demo-fleet}}",
            "autoscaler.portfolio.engine = 'demo-fleet': is tried on records: set records.path",
        ),
        (
            "records: {path: r.jsonl}\nautoscaler: {portfolio: {engine: no-such}}",
            "autoscaler.portfolio.engine: ",
        ),
        (
            'autoscaler: {calendar: [{name: a, start: "9", repeat: daily, length: 60, factor: 2}]}',
            "autoscaler.calendar[0].start = 9: for daily must be like 09:00",
        ),
        (
            f"autoscaler: {{calendar: [{{{EVENT}, timezone: Mars}}]}}",
            "autoscaler.calendar[0].timezone: ",
        ),
    ],
)
def test_events_and_the_portfolio_must_fit(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text.encode())
    assert str(error.value).startswith(told)
