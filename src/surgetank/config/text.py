"""What a setting's text may be: names, addresses, variables, paths.

Rule: each check raises ConfigError through the Source, so that it names the setting and its line.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from surgetank.config.source import Path, Source, shown

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:/-]{0,127}")
_NAME_TEXT: Final = "use letters, digits and . _ @ : / - (128 at most, a letter or digit first)"
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_host(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        # Digits and dots alone are a mistyped address, never a name.
        return _HOST.fullmatch(host) is not None and re.fullmatch(r"[0-9.]+", host) is None
    return True


def is_variable(name: str) -> bool:
    """Tell whether it can name an environment variable."""
    return _VARIABLE.fullmatch(name) is not None


def check_url(url: str, path: Path, source: Source) -> str:
    """Return the address in one spelling. It is http(s)://HOST:PORT and nothing else."""
    example = "must be http://HOST:PORT or https://HOST:PORT, such as http://10.0.0.5:8000"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        source.refuse(path, f"= {shown(url)}: {example}")
    # What urlsplit forgives (white space, an upper-case scheme) is refused by building it anew.
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    built = f"{parts.scheme}://{authority}"
    known = parts.scheme in {"http", "https"}
    if not known or url.lower().rstrip("/") != built or not port or not is_host(host):
        source.refuse(path, f"= {shown(url)}: {example}")
    return authority


def check_printable(name: str | None, path: Path, source: Source) -> None:
    if name is not None and (not name.strip() or not name.isprintable()):
        source.refuse(path, f"= {shown(name)}: must be a printable name")


def check_file(name: str, path: Path, source: Source) -> None:
    if not name.strip() or "\0" in name:
        source.refuse(path, f"= {shown(name)}: must be a path")


def check_key_variable(name: str | None, path: Path, source: Source) -> None:
    """Refuse what names no variable without repeating it: it may be the secret itself."""
    if name is not None and not is_variable(name):
        source.refuse(path, "must be the name of an environment variable, not the key itself")


def is_name(name: str) -> bool:
    """Tell whether a tenant may be called so."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str, path: Path, source: Source) -> None:
    if not is_name(name):
        source.refuse(path, f"= {shown(name)}: {_NAME_TEXT}")


def check_names(section: str, names: Iterable[str], source: Source) -> None:
    names = list(names)
    for i, name in enumerate(names):
        check_name(name, (section, i, "name"), source)
    check_unique((section,), ("name",), names, source)


def check_unique(above: Path, below: Path, values: Iterable[str], source: Source) -> None:
    """`above` is the list's path, `below` the setting's within an entry."""
    first: dict[str, int] = {}
    for i, value in enumerate(values):
        if value in first:
            line = source.line((*above, first[value], *below))
            where = f", on line {line}" if source.numbered else ""
            here = (*above, i, *below)
            source.refuse(here, f"= {shown(value)}: is taken already{where}")
        first[value] = i
