"""API keys: what is stored, who may read it, and whom a presented key belongs to."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surgetank.cli.credentials import keys_missing
from surgetank.config import Config
from surgetank.errors import InputError
from surgetank.gateway.keys import (
    KeyRing,
    StoredKey,
    add_key,
    digest_of,
    make_secret,
    new_key,
    read_keys,
    read_private,
    read_secret,
    revoke_key,
)
from surgetank.gateway.spec import AuthSpec
from surgetank.policy.tenant import KeyLimits, Tenant
from tests.cli.command import surgetank

SECRET = bytes(range(32))
KEY = "sk-st-" + "a" * 32


def ring(*keys: tuple[str, str]) -> KeyRing:
    return KeyRing(SECRET, [StoredKey(t, digest_of(key, SECRET)) for t, key in keys])


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# The ring.


def test_a_key_belongs_to_its_tenant() -> None:
    keys = ring(("acme", KEY), ("acme", "second"), ("beta", "third"))
    assert keys.tenant(KEY.encode()) == "acme"
    assert keys.tenant(b"second") == "acme"
    assert keys.tenant(b"third") == "beta"
    assert len(keys) == 3
    assert keys.tenants == {"acme", "beta"}


@pytest.mark.parametrize("key", [b"", b"sk-st-", KEY[:-1].encode(), KEY.encode() + b"a", b"\xff"])
def test_another_key_belongs_to_nobody(key: bytes) -> None:
    assert ring(("acme", KEY)).tenant(key) is None


@given(st.binary(max_size=600))
def test_no_bytes_pass_without_being_a_key(key: bytes) -> None:
    assert ring(("acme", KEY)).tenant(key) is None
    assert ring().tenant(key) is None


def test_the_digest_itself_is_no_key() -> None:
    digest = digest_of(KEY, SECRET)
    keys = ring(("acme", KEY))
    assert keys.tenant(digest.encode()) is None
    assert keys.tenant(bytes.fromhex(digest)) is None


def test_a_very_long_key_is_not_even_hashed() -> None:
    long = "k" * 513
    assert ring(("acme", long)).tenant(long.encode()) is None
    assert ring(("acme", long[:512])).tenant(long[:512].encode()) == "acme"


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        (b"Bearer " + KEY.encode(), "acme"),
        (b"bearer  " + KEY.encode(), "acme"),
        (KEY.encode(), None),
        (b"Basic " + KEY.encode(), None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"", None),
        (None, None),
    ],
)
def test_the_header_carries_a_bearer_token(header: bytes | None, tenant: str | None) -> None:
    owner = ring(("acme", KEY)).authenticate(header)
    assert (None if owner is None else owner.tenant) == tenant


def test_a_key_is_known_by_its_name_or_its_id_and_never_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    add_key(path, "acme", KEY, SECRET, name="ci", comment="nightly")
    add_key(path, "acme", "second", SECRET, name="ci")  # the one that will take its place
    bare = add_key(path, "beta", "third", SECRET)
    keys = KeyRing(SECRET, read_keys(path))
    assert keys.owner(KEY.encode()) == keys.owner(b"second") == ("acme", "ci")
    assert keys.owner(b"third") == ("beta", bare.id)
    assert [key.name for key in read_keys(path)] == ["ci", "ci", ""]
    assert path.read_text().splitlines()[0].endswith(" name=ci  # nightly")


@pytest.mark.parametrize("name", ["a b", "-x", "a#b", "é", "x" * 129, KEY])
def test_a_name_that_would_not_be_read_back_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="name") as caught:
        add_key(tmp_path / "keys", "acme", KEY, SECRET, name=name)
    assert not name.startswith("sk-") or name not in str(caught.value)
    assert not (tmp_path / "keys").exists()


def test_limits_of_keys_that_do_not_exist_are_named_and_are_no_error() -> None:
    settings = Config(
        tenants=(
            Tenant("acme", keys=(KeyLimits("ci"), KeyLimits("gone"))),
            Tenant("beta", keys=(KeyLimits("ci"),)),
        )
    )
    found = KeyRing(SECRET, [StoredKey("acme", digest_of(KEY, SECRET), name="ci")])
    assert keys_missing(settings, found) == [
        "tenants[0].keys[1].name = gone: acme has no key of this name",
        "tenants[1].keys[0].name = ci: beta has no key of this name",
    ]
    assert len(keys_missing(settings, None)) == 3


def test_the_digest_is_hmac_sha256_as_any_tool_computes_it() -> None:
    expected = hmac.new(SECRET, KEY.encode(), hashlib.sha256).hexdigest()
    assert digest_of(KEY, SECRET) == expected


def test_keys_are_new_each_time_and_have_the_documented_form() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("sk-st-") and len(key) == 38 for key in keys)
    assert all(key[6:].replace("-", "a").replace("_", "a").isalnum() for key in keys)


# Files.


def test_a_new_key_is_stored_as_a_digest_in_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    stored = add_key(path, "acme", KEY, SECRET, comment="CI")
    assert mode(path) == 0o600
    assert path.read_text() == f"acme hmac-sha256:{digest_of(KEY, SECRET)}  # CI\n"
    assert read_keys(path) == (stored,)
    assert KEY not in path.read_text()


def test_adding_keeps_what_stands_in_the_file(tmp_path: Path) -> None:
    path = private(tmp_path / "keys.txt", f"# ours\n\nbeta hmac-sha256:{'0' * 64}")
    add_key(path, "acme", KEY, SECRET)
    assert path.read_text().startswith(f"# ours\n\nbeta hmac-sha256:{'0' * 64}\nacme ")
    assert [key.tenant for key in read_keys(path)] == ["beta", "acme"]
    assert list(tmp_path.iterdir()) == [path]


def test_no_key_is_added_to_a_file_that_a_gateway_would_refuse(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    add_key(path, "acme", KEY, SECRET)
    path.write_text(before := path.read_text() + "half a line")
    with pytest.raises(InputError, match="line 2: expected TENANT"):
        add_key(path, "acme", new_key(), SECRET)
    assert path.read_text() == before


def test_revoking_takes_out_one_line_only(tmp_path: Path) -> None:
    path = private(tmp_path / "keys.txt", "# ours\n")
    first = add_key(path, "acme", "one", SECRET)
    second = add_key(path, "acme", "two", SECRET)
    assert revoke_key(path, first.id) == first
    assert path.read_text() == "# ours\n" + second.to_line()
    with pytest.raises(InputError, match="no key's id begins"):
        revoke_key(path, first.id)
    with pytest.raises(InputError, match="no key's id begins"):
        revoke_key(path, "")


def test_an_ambiguous_id_revokes_nothing(tmp_path: Path) -> None:
    text = f"a hmac-sha256:{'0' * 64}\nb hmac-sha256:{'0' * 63}1\n"
    path = private(tmp_path / "keys.txt", text)
    with pytest.raises(InputError, match="the ids of 2 keys begin"):
        revoke_key(path, "000")
    assert path.read_text() == text


@pytest.mark.parametrize("bad", [0o644, 0o640, 0o604, 0o660, 0o620])
def test_a_file_others_may_access_is_refused(bad: int, tmp_path: Path) -> None:
    path = private(tmp_path / "keys.txt", "")
    path.chmod(bad)
    with pytest.raises(InputError, match=f"mode {bad:04o}.*chmod 600"):
        read_keys(path)
    with pytest.raises(InputError, match="chmod 600"):
        add_key(path, "acme", KEY, SECRET)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = private(tmp_path / "keys.txt", "")
    os.chown(path, 12345, -1)
    with pytest.raises(InputError, match="belongs to user 12345"):
        read_keys(path)


@pytest.mark.parametrize(
    "line",
    ["acme", "acme sk-st-secret", f"acme sha256:{'0' * 64}", f"acme hmac-sha256:{'0' * 63}"],
)
def test_a_malformed_line_is_named_but_not_shown(line: str, tmp_path: Path) -> None:
    path = private(tmp_path / "keys.txt", f"# fine\n{line}\n")
    with pytest.raises(InputError, match=r"keys\.txt, line 2: expected TENANT") as caught:
        read_keys(path)
    assert "sk-st-secret" not in str(caught.value)


def test_the_same_key_twice_is_refused(tmp_path: Path) -> None:
    line = f"hmac-sha256:{'0' * 64}\n"
    path = private(tmp_path / "keys.txt", f"acme {line}beta {line}")
    with pytest.raises(InputError, match="line 2: this key stands in the file twice"):
        read_keys(path)


@pytest.mark.parametrize("tenant", ["", "a b", "#a", "a\nb", "é", "a" * 129])
def test_a_tenant_is_a_plain_name(tenant: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use letters, digits"):
        add_key(tmp_path / "keys.txt", tenant, KEY, SECRET)
    assert not (tmp_path / "keys.txt").exists()


def test_a_comment_cannot_smuggle_a_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one line"):
        add_key(tmp_path / "k", "acme", KEY, SECRET, comment=f"x\nbeta hmac-sha256:{'0' * 64}")


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "hmac.secret"
    make_secret(path)
    assert mode(path) == 0o600
    secret = read_secret(AuthSpec(hmac_secret_file=str(path)), {})
    assert len(secret) == 32
    with pytest.raises(InputError, match="cannot be made: File exists"):
        make_secret(path)
    assert read_secret(AuthSpec(hmac_secret_file=str(path)), {}) == secret


def test_the_secret_may_come_from_the_environment() -> None:
    assert read_secret(AuthSpec(), {"SURGETANK_HMAC_SECRET": SECRET.hex()}) == SECRET
    assert read_secret(AuthSpec(hmac_secret_env="OURS"), {"OURS": SECRET.hex()}) == SECRET


@pytest.mark.parametrize("value", ["short", "g" * 64, "0" * 63, "0" * 65])
def test_a_weak_secret_is_refused_without_being_shown(value: str) -> None:
    with pytest.raises(InputError, match="SURGETANK_HMAC_SECRET: must be 64") as caught:
        read_secret(AuthSpec(), {"SURGETANK_HMAC_SECRET": value})
    assert value not in str(caught.value)


def test_without_a_secret_the_error_names_both_ways() -> None:
    with pytest.raises(InputError, match=r"auth\.hmac_secret_file.*SURGETANK_HMAC_SECRET"):
        read_secret(AuthSpec(), {})


def test_a_ring_is_loaded_from_its_files_or_not_at_all(tmp_path: Path) -> None:
    assert KeyRing.load(AuthSpec(), {}) is None
    make_secret(tmp_path / "secret")
    spec = AuthSpec(str(tmp_path / "keys"), str(tmp_path / "secret"))
    with pytest.raises(InputError, match="keys: cannot be read"):
        KeyRing.load(spec, {})
    add_key(tmp_path / "keys", "acme", KEY, read_secret(spec, {}))
    loaded = KeyRing.load(spec, {})
    assert loaded is not None
    assert loaded.tenant(KEY.encode()) == "acme"


# The command.


def test_the_command_makes_lists_and_revokes(tmp_path: Path) -> None:
    made = surgetank("keys", "new", "acme", "--name", "ci", "--comment", "CI", cwd=tmp_path)
    assert made.returncode == 0
    key = made.stdout.strip()
    spec = AuthSpec(str(tmp_path / "keys.txt"), str(tmp_path / "hmac.secret"))
    loaded = KeyRing.load(spec, {})
    assert loaded is not None
    assert loaded.tenant(key.encode()) == "acme"
    files = "".join(path.read_text() for path in tmp_path.iterdir())
    assert key not in files + made.stderr

    listed = surgetank("keys", "list", cwd=tmp_path).stdout.split()
    assert listed[1:] == ["acme", "ci", "CI"]
    assert surgetank("keys", "revoke", listed[0], cwd=tmp_path).returncode == 0
    assert surgetank("keys", "list", cwd=tmp_path).stdout == ""


@pytest.mark.parametrize("mistake", [["a b"], ["acme", "--keys-file", "missing/keys.txt"]])
def test_a_command_that_fails_leaves_no_file(mistake: list[str], tmp_path: Path) -> None:
    secret = ["--secret-file", "hmac.secret"]
    done = surgetank("keys", "new", *mistake, *secret, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "hmac.secret").exists()
    assert surgetank("keys", "new", "acme", *secret, cwd=tmp_path).returncode == 0
    kept = (tmp_path / "hmac.secret").read_text()
    assert surgetank("keys", "new", *mistake, *secret, cwd=tmp_path).returncode == 2
    assert (tmp_path / "hmac.secret").read_text() == kept


def test_two_commands_at_once_lose_no_key(tmp_path: Path) -> None:
    make_secret(tmp_path / "hmac.secret")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "surgetank", "keys", "new", f"t{i}"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i in range(4)
    ]
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert {key.tenant for key in read_keys(tmp_path / "keys.txt")} == {"t0", "t1", "t2", "t3"}


def test_a_mistake_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = surgetank("keys", "list", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "surgetank: keys.txt: cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("mode", "taken"), [(0o440, True), (0o640, True), (0o444, False), (0o460, False)]
)
def test_a_service_manager_s_credential_may_show_its_access_list_as_the_group_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, *, taken: bool
) -> None:
    path = tmp_path / "keys.txt"
    path.write_text("text")
    path.chmod(mode)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match="others may access it"):
        read_private(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    if taken:
        assert read_private(path) == "text"
    else:
        with pytest.raises(InputError, match="others may access it"):
            read_private(path)
