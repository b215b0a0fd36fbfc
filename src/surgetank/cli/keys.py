"""`surgetank keys`: make, list and revoke API keys."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from surgetank.gateway import keys
from surgetank.gateway.spec import AuthSpec

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.")

_KeysFile = Annotated[Path, typer.Option("--keys-file", help="File with the keys' digests.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def new(
    tenant: Annotated[str, typer.Argument(help="Tenant the key belongs to.")],
    keys_file: _KeysFile = Path("keys.txt"),
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            help="File with the secret, made when absent. Without it: $SURGETANK_HMAC_SECRET if "
            "set, else hmac.secret beside the keys file.",
        ),
    ] = None,
    comment: Annotated[str, typer.Option(help="Remark stored beside the digest.")] = "",
    name: Annotated[
        str,
        typer.Option(help="What limits and listings call it; keys of one name share its limits."),
    ] = "",
    *,
    as_json: _Json = False,
) -> None:
    """Make a key, print it once, and store its digest (the key itself is kept nowhere)."""
    environment = AuthSpec().hmac_secret_env
    if secret_file is None and not os.environ.get(environment):
        secret_file = keys_file.parent / "hmac.secret"
    spec = AuthSpec(hmac_secret_file=None if secret_file is None else str(secret_file))
    key = keys.new_key()
    made = secret_file if secret_file is not None and not secret_file.exists() else None
    if made is not None:
        keys.make_secret(made)
    try:
        secret = keys.read_secret(spec, os.environ)
        stored = keys.add_key(keys_file, tenant, key, secret, comment=comment, name=name)
    except BaseException:
        if made is not None:  # a secret without a key would only puzzle whoever finds it
            made.unlink()
        raise
    if made is not None:
        print(f"made the secret {made}: keep it, no key is valid without it", file=sys.stderr)
    if as_json:
        print(json.dumps({"tenant": tenant, "id": stored.id, "name": stored.name, "key": key}))
    else:
        print(key)
        print(f"stored as {stored.id} of {tenant} in {keys_file}", file=sys.stderr)


@app.command(name="list")
def list_keys(keys_file: _KeysFile = Path("keys.txt"), *, as_json: _Json = False) -> None:
    """List the keys: the id of each, its tenant, its name, its remark."""
    stored = keys.read_keys(keys_file)
    if as_json:
        rows = [
            {"id": key.id, "tenant": key.tenant, "name": key.name, "comment": key.comment}
            for key in stored
        ]
        print(json.dumps(rows))
        return
    for key in stored:
        print(f"{key.id}  {key.tenant}  {key.name or '-'}  {key.comment}".rstrip())


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="Id that `keys list` shows.")],
    keys_file: _KeysFile = Path("keys.txt"),
) -> None:
    """Take a key out of the file; a gateway that reads the file anew no longer knows it."""
    key = keys.revoke_key(keys_file, key_id)
    print(f"revoked {key.id} of {key.tenant}")
