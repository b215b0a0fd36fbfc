"""The proxies of the benchmark, each started as its users start it, in a temporary folder.

Rule: one worker each, on loopback, between the same client and the same upstream; a proxy is found
ready by its own word or by its port, and stopped by its process id. Each logs as it does by
default, to a file.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import peers

_READY = re.compile(rb"^READY http://[^\n]*?:(\d+)[^\n]*\n", re.MULTILINE)
HERE = Path(__file__).parent
START_SECONDS = 20.0
ALIASES = [f"127.0.1.{number}" for number in range(1, 201)]  # where the upstream listens too
SERVE = [sys.executable, "-m", "surgetank", "serve", "-c"]  # and the path of the configuration


class CannotRunError(Exception):
    """A proxy that cannot be measured here; one line that says what would help."""


@dataclass(frozen=True, slots=True)
class Running:
    """A started proxy: the root of its processes, where it listens, and the keys it wants."""

    pid: int
    port: int
    keys: Sequence[str] = ("none",)


def _nginx(folder: Path, upstream: int) -> tuple[list[str], int | None, str]:
    if shutil.which("nginx") is None:
        raise CannotRunError("nginx is missing: apt-get install nginx")
    port = _free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(port=port, upstream=upstream))
    folder.chmod(0o755)  # its worker gives up root where the benchmark has it
    for name in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
        (folder / name).mkdir()
    return ["nginx", "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"], port, "none"


_NGINX = """\
worker_processes 1;
daemon off;
pid nginx.pid;
error_log error.log warn;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
  uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  log_format json escape=json
    '{{"time":$msec,"request":"$request","status":$status,"bytes":$body_bytes_sent,'
    '"seconds":$request_time,"upstream":"$upstream_addr","first_byte":"$upstream_header_time"}}';
  access_log access.jsonl json;
  keepalive_requests 100000000;
  upstream engine {{
    server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    client_body_buffer_size 64k;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def _aiohttp(folder: Path, upstream: int) -> tuple[list[str], int | None, str]:
    del folder
    script = str(HERE / "aiohttp_proxy.py")
    return [sys.executable, script, f"http://127.0.0.1:{upstream}"], None, "none"


def _surgetank(folder: Path, upstream: int) -> tuple[list[str], int | None, str]:
    """Ours as it is meant to run: keys, buckets, queue, metrics and records on."""
    return _ours(folder, upstream, tenants=1, hosts=["127.0.0.1"])


def _many(folder: Path, upstream: int) -> tuple[list[str], int | None, str]:
    """Ours among many. Its replicas are one engine by 200 addresses."""
    return _ours(folder, upstream, tenants=100, hosts=ALIASES)


def _ours(
    folder: Path, upstream: int, *, tenants: int, hosts: Sequence[str]
) -> tuple[list[str], int | None, str]:
    try:
        ring = importlib.import_module("surgetank.gateway.keys")  # the other proxies do without
    except ImportError as error:
        raise CannotRunError(f"surgetank is not installed here (make install): {error}") from error
    secret, lines, settings = folder / "hmac.secret", folder / "keys.txt", folder / "surgetank.yaml"
    ring.make_secret(secret)
    salt = bytes.fromhex(secret.read_text().strip())
    keys = {f"tenant-{number}": ring.new_key() for number in range(tenants)}
    lines.touch(0o600)
    lines.write_text(
        "".join(ring.StoredKey(t, ring.digest_of(k, salt)).to_line() for t, k in keys.items())
    )
    told = {
        "listen": {"port": 0},
        "admin": {"port": 0},
        "auth": {"keys_file": str(lines), "hmac_secret_file": str(secret)},
        "replicas": [{"url": f"http://{host}:{upstream}"} | _ENGINE for host in hosts],
        "flow": {"max_in_flight": 4096, "max_queued": 4096, "request_timeout": 600},
        "tenants": [{"name": name} | _QUOTA for name in keys],
        "records": {"path": str(folder / "records.jsonl")},
    }
    settings.write_text(json.dumps(told))  # JSON is YAML
    return [*SERVE, str(settings)], None, " ".join(keys.values())


_ENGINE = {"model": "bench", "dialect": "vllm", "slots": 4096}
_QUOTA = {"requests_per_minute": 1_000_000_000, "tokens_per_minute": 1_000_000_000_000}

Recipe = Callable[[Path, int], tuple[list[str], int | None, str]]
"""Gives the command, the port (None: it says it), and the keys with blanks between."""


def _peer(name: str) -> Recipe:
    """Another gateway, from an environment of its own (see `peers`)."""

    def recipe(folder: Path, upstream: int) -> tuple[list[str], int | None, str]:
        python = peers.python_of(name)
        if not python.exists():
            raise CannotRunError(
                f"{name} is not in {python.parents[1]}: make peers PEERS={name} (or name the folder"
                " of its environment in SURGETANK_PEERS)"
            )
        port = _free_port()
        if name in peers.ROUTERS:
            return peers.router(name, upstream, port, _free_port()), port, "none"
        config = folder / "litellm.yaml"
        config.write_text(peers.litellm_config(upstream))
        command = ["env", *peers.LITELLM_ENVIRONMENT, str(python.with_name("litellm"))]
        command += ["--config", str(config), "--num_workers", "1"]
        command += ["--keepalive_timeout", str(peers.KEEP_ALIVE)]
        return [*command, "--host", "127.0.0.1", "--port", str(port)], port, peers.KEY

    return recipe


PROXIES: dict[str, Recipe] = {
    "nginx": _nginx,
    "aiohttp": _aiohttp,
    "surgetank": _surgetank,
    "surgetank-many": _many,
}
RECIPES: dict[str, Recipe] = PROXIES | {name: _peer(name) for name in peers.NAMES}


def version(name: str) -> str:
    """What was measured, in its own words; empty when it cannot tell."""
    if name == "nginx":
        done = subprocess.run(["nginx", "-v"], capture_output=True, text=True, check=False)
        return done.stderr.strip().rpartition("/")[2]
    if name in peers.NAMES:
        return peers.version_of(name)
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@contextmanager
def running(name: str, folder: Path, upstream: int, cores: set[int]) -> Iterator[Running]:
    """Run one proxy on `cores` in front of `upstream` (a port).

    Raises CannotRunError with its last words.
    """
    command, port, keys = RECIPES[name](folder, upstream)
    errors = folder / "stderr"
    own = os.sched_getaffinity(0)
    with errors.open("wb") as sink, (folder / "stdout").open("wb") as log:
        out = subprocess.PIPE if port is None else log  # a log in a pipe nobody reads would stop it
        os.sched_setaffinity(0, cores)  # inherited
        try:
            process = subprocess.Popen(command, stdout=out, stderr=sink)
        finally:
            os.sched_setaffinity(0, own)
    try:
        if port is None:
            port = _announced(process)
        else:
            seconds = peers.START_SECONDS if name in peers.NAMES else START_SECONDS
            if not _await_port(process, port, seconds) and process.poll() is None:
                raise CannotRunError(f"{name} did not listen within {seconds:g} s")
        if port is None or process.poll() is not None:
            words = errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise CannotRunError(f"{name} did not start ({' '.join(command)}): {words[-1]}")
        yield Running(process.pid, port, keys.split())
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _announced(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for the line READY http://127.0.0.1:PORT."""
    assert process.stdout is not None
    deadline = time.monotonic() + START_SECONDS
    said = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([process.stdout], [], [], left)[0]:
            break
        data = os.read(process.stdout.fileno(), 4096)
        said += data
        if ready := _READY.search(said):
            return int(ready[1])
        if not data:
            break
    return None


def _await_port(process: subprocess.Popen[bytes], port: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        except OSError:
            time.sleep(0.02)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
