"""`surgetank config`: check a configuration file, print an example or the JSON schema."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from surgetank import config
from surgetank.cli.credentials import read_credentials

app = typer.Typer(no_args_is_help=True, help="Check a configuration, or print one to start from.")


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Configuration file.")],
    *,
    text_only: Annotated[
        bool,
        typer.Option(
            "--text-only", help="Do not look for the files and variables with keys that it names."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a configuration file: exit 0 when it is valid, 2 with the first mistake when not.

    Keys, secrets and tokens are looked for where `serve` would find them, so check on the machine
    and as the user that serves.
    """
    loaded = config.load(file)
    found = None if text_only else read_credentials(loaded, os.environ)
    counts = {
        "replicas": len(loaded.replicas),
        "tiers": len(loaded.tiers),
        "tenants": len(loaded.tenants),
        "pools": len(loaded.autoscaler.pools),
    }
    if found is not None and found.keys is not None:
        counts["keys"] = len(found.keys)
    if as_json:
        print(json.dumps({"file": str(file), "valid": True, **counts}))
    else:
        print(f"{file}: valid ({', '.join(f'{n} {what}' for what, n in counts.items())})")


@app.command()
def example() -> None:
    """Print an example configuration: every setting with its default, unit and reason."""
    print(config.example(), end="")


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration file."""
    print(json.dumps(config.schema(), indent=2))
