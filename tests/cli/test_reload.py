"""Reading the configuration anew: taken as a whole or not at all, and told either way."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from surgetank import config as configuration
from surgetank.cli.config import app as config_app
from surgetank.cli.credentials import Credentials, read_credentials
from surgetank.cli.reload import Reloader, shown_settings
from surgetank.cli.serve import app as serve_app
from surgetank.errors import ConfigError, InputError, SurgetankError
from surgetank.gateway.keys import read_private

BEFORE = "listen: {port: 8001}\nrecords: {path: a.jsonl}\nflow: {max_queued: 5}\n"


def reloader(
    path: Path,
    applied: list[configuration.Config],
    *,
    refuse: str = "",
    fault: type[Exception] = ValueError,
    bound: float = 10.0,
) -> Reloader:
    def read(
        adjust: Callable[[configuration.Config], configuration.Config],
    ) -> configuration.Config:
        return configuration.load(path, adjust=adjust)

    def apply(settings: configuration.Config, _: Credentials) -> None:
        if refuse:
            raise fault(refuse)
        applied.append(settings)

    return Reloader(
        configuration.load(path),
        read,
        lambda found: read_credentials(found, {}),
        apply,
        bound=bound,
    )


def test_what_can_change_is_taken_and_the_rest_is_kept_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "surgetank.yaml"
    path.write_text(BEFORE)
    applied: list[configuration.Config] = []

    async def test() -> None:
        found = reloader(path, applied)
        path.write_text(
            "listen: {port: 9, idle_timeout: 5}\nrecords: {path: b.jsonl}\nflow: {max_queued: 7}\n"
            "tenants: [{name: acme}]\n"
        )
        with caplog.at_level(logging.INFO):
            status = await found.reload()
        assert (status.reloads, status.failures, status.error) == (1, 0, "")
        assert status.kept == ("listen.port", "records.path")
        assert found.running is applied[0]

    asyncio.run(test())
    (taken,) = applied
    assert (taken.listen.port, taken.listen.idle_timeout) == (8001, 5)
    assert (taken.records.path, taken.flow.max_queued) == ("a.jsonl", 7)
    (said,) = caplog.messages
    assert said.startswith("the configuration was taken: listen.idle_timeout, flow.max_queued, ten")
    assert said.endswith("tenants changed; kept until a restart: listen.port, records.path")


@pytest.mark.parametrize(
    ("text", "refuse", "why"),
    [
        ("flow: {max_queud: 7}\n", "", "is not a setting; did you mean max_queued?"),
        ("auth: {keys_file: missing.txt, hmac_secret_file: x}\n", "", "cannot be read"),
        ("tenants: [{name: a, tier: gold}]\n", "", "no such tier"),
        ("flow: {max_queued: 7}\n", "they do not fit", "they do not fit"),
    ],
)
def test_what_is_of_no_use_changes_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, refuse: str, why: str
) -> None:
    path = tmp_path / "surgetank.yaml"
    path.write_text(BEFORE)
    applied: list[configuration.Config] = []

    async def test() -> None:
        found = reloader(path, applied, refuse=refuse)
        before, loaded_at = found.running, found.status.loaded_at
        path.write_text(text)
        with pytest.raises(SurgetankError, match=why.replace("?", r"\?")):
            await found.reload()
        assert found.running is before
        assert (found.status.failures, found.status.loaded_at) == (1, loaded_at)
        assert why in found.status.error
        assert "the one before stays" in caplog.text
        assert why in caplog.text

    asyncio.run(test())
    assert applied == []


def test_a_fault_while_applying_is_no_reload_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "surgetank.yaml"
    path.write_text(BEFORE)
    found = reloader(path, [], refuse="too large", fault=OverflowError)
    before = found.running
    with pytest.raises(SurgetankError, match="in force in part"):
        asyncio.run(found.reload())
    assert found.running is before
    assert (found.status.failures, found.status.reloads) == (1, 0)
    assert "OverflowError: too large" in found.status.error
    assert "reload the one before" in caplog.text


def test_without_keys_it_goes_on_serving_this_machine_only(tmp_path: Path) -> None:
    """It listens everywhere: the file may not take its keys away, whatever address it names now."""
    path, keys, secret = (tmp_path / name for name in ("surgetank.yaml", "keys", "secret"))
    for file, text in ((keys, ""), (secret, "ab" * 32)):
        file.write_text(text)
        file.chmod(0o600)
    path.write_text(
        f"listen: {{host: 0.0.0.0}}\nauth: {{keys_file: {keys}, hmac_secret_file: {secret}}}\n"
    )

    async def test() -> None:
        found = reloader(path, [])
        path.write_text("listen: {host: 127.0.0.1}\n")
        with pytest.raises(SurgetankError, match="without API keys only this machine"):
            await found.reload()

    asyncio.run(test())


def test_keys_are_not_given_up_by_a_reload_even_on_this_machine(tmp_path: Path) -> None:
    """A proxy may stand before it, and the file may be half written."""
    path, keys, secret = (tmp_path / name for name in ("surgetank.yaml", "keys", "secret"))
    for file, text in ((keys, ""), (secret, "ab" * 32)):
        file.write_text(text)
        file.chmod(0o600)
    path.write_text(f"auth: {{keys_file: {keys}, hmac_secret_file: {secret}}}\n")
    applied: list[configuration.Config] = []

    async def test() -> None:
        found = reloader(path, applied)
        path.write_text("listen: {host: 127.0.0.1}\n")
        with pytest.raises(SurgetankError, match=r"auth\.keys_file is left out"):
            await found.reload()

    asyncio.run(test())
    assert applied == []


def test_files_that_never_answer_fail_one_reload_and_no_later_one(tmp_path: Path) -> None:
    """Nor do they keep the process from ending: the loop ends here while one is still read."""
    path, never = tmp_path / "surgetank.yaml", tmp_path / "never"
    path.write_text(BEFORE)
    applied: list[configuration.Config] = []

    async def test() -> None:
        found = reloader(path, applied, bound=0.2)
        path.rename(tmp_path / "kept")
        os.mkfifo(path)  # opening it waits for a writer
        with pytest.raises(
            SurgetankError, match=r"not read within 0\.2 s: they must be plain files"
        ):
            await found.reload()
        path.rename(never)
        (tmp_path / "kept").rename(path)
        status = await found.reload()
        assert (status.reloads, status.failures, status.error) == (1, 1, "")

    asyncio.run(test())
    assert len(applied) == 1
    with never.open("wb"):  # lets the thread that reads go
        pass


def test_a_fifo_in_place_of_keys_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "keys", 0o600)
    with pytest.raises(InputError, match="is not a regular file"):
        read_private(tmp_path / "keys")


def test_a_file_that_was_just_emptied_takes_no_replicas_away(tmp_path: Path) -> None:
    path = tmp_path / "surgetank.yaml"
    path.write_text("replicas: [{url: 'http://127.0.0.1:9'}]\n")
    applied: list[configuration.Config] = []

    async def test() -> None:
        found = reloader(path, applied)
        path.write_text("")  # an editor is about to write it anew
        with pytest.raises(SurgetankError, match="all replicas are left out"):
            await found.reload()

    asyncio.run(test())
    assert applied == []


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "listen: {port: 0}\n"])
def test_a_configuration_that_could_serve_nobody_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "surgetank.yaml"
    path.write_text(text)
    ended = CliRunner().invoke(serve_app, ["-c", str(path)])
    assert isinstance(ended.exception, ConfigError)
    assert "names no replicas, no autoscaler.pools" in str(ended.exception)


def test_all_that_a_configuration_names_is_looked_for(tmp_path: Path) -> None:
    def read(text: str, environ: dict[str, str]) -> Credentials:
        return read_credentials(configuration.parse(text.encode()), environ)

    engine = "replicas: [{url: 'http://h:1', api_key_env: ENGINE_KEY}]"
    with pytest.raises(ConfigError, match=r"replicas\[0\]\.api_key_env: .* ENGINE_KEY, which"):
        read(engine, {})
    read(engine, {"ENGINE_KEY": "x"})
    token = tmp_path / "token"
    named = f"admin: {{token_file: {token}}}"
    with pytest.raises(InputError, match="cannot be read"):
        read(named, {})
    token.write_text("two words\n")
    token.chmod(0o600)
    with pytest.raises(InputError, match="must hold a token"):
        read(named, {})
    token.write_text("word\n")
    assert read(named, {}).admin_token == "word"
    token.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read(named, {})
    assert read("", {"SURGETANK_ADMIN_TOKEN": "word"}).admin_token == "word"
    assert read("", {}) == Credentials(None, None)


def test_settings_are_shown_without_what_may_be_a_secret() -> None:
    pool = {
        "command": "vllm serve m --port {port} --api-key hunter2 --max-num-batched-tokens 9",
        "environment": [{"name": "HF_TOKEN", "value": "hunter2"}],
    }
    settings = configuration.parse(
        f"autoscaler: {{pools: [{{model: m, max_replicas: 2, process: {pool}}}]}}".encode()
    )
    text = str(shown_settings(settings))
    assert "hunter2" not in text
    assert "--api-key (hidden)" in text.replace("'(hidden)'", "(hidden)").replace("\\", "")
    assert "--max-num-batched-tokens 9" in text


def test_config_check_finds_missing_keys_unless_told_to_look_at_the_text_only(
    tmp_path: Path,
) -> None:
    path, keys, secret = (tmp_path / name for name in ("surgetank.yaml", "keys.txt", "secret"))
    path.write_text(f"auth: {{keys_file: {keys}, hmac_secret_file: {secret}}}\n")
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    missing = CliRunner().invoke(config_app, ["check", str(path)])
    assert f"{keys}: cannot be read" in str(missing.exception)
    assert CliRunner().invoke(config_app, ["check", str(path), "--text-only"]).exit_code == 0
    keys.write_text(f"acme hmac-sha256:{'0' * 64}\n")
    keys.chmod(0o600)
    found = CliRunner().invoke(config_app, ["check", str(path)])
    assert found.exit_code == 0
    assert found.stdout.endswith("0 pools, 1 keys)\n")
