"""The proxies of the benchmark, each started as its users start it, in a temporary folder.

Rule: one worker each, on loopback, between the same client and the same upstream; a proxy is found
ready by its own word or by its port, and stopped by its process id.
"""

from __future__ import annotations

import importlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_READY = re.compile(rb"^READY http://[^\n]*?:(\d+)[^\n]*\n", re.MULTILINE)
HERE = Path(__file__).parent
START_SECONDS = 20.0
SERVE = [sys.executable, "-m", "surgetank", "serve", "-c"]  # and the path of the configuration


class CannotRunError(Exception):
    """A proxy that cannot be measured here; one line that says what would help."""


@dataclass(frozen=True, slots=True)
class Running:
    """A started proxy: the root of its processes, where it listens, and the key it wants."""

    pid: int
    port: int
    key: str = "none"


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
    try:
        keys = importlib.import_module("surgetank.gateway.keys")  # the other proxies do without
    except ImportError as error:
        raise CannotRunError(f"surgetank is not installed here (make install): {error}") from error
    secret, ring, key = folder / "hmac.secret", folder / "keys.txt", keys.new_key()
    keys.make_secret(secret)
    keys.add_key(ring, "bench", key, bytes.fromhex(secret.read_text().strip()))
    config = folder / "surgetank.yaml"
    config.write_text(_SURGETANK.format(upstream=upstream, folder=folder))
    return [*SERVE, str(config)], None, key


_SURGETANK = """\
listen: {{port: 0}}
admin: {{port: 0}}
auth: {{keys_file: "{folder}/keys.txt", hmac_secret_file: "{folder}/hmac.secret"}}
replicas:
  - {{url: "http://127.0.0.1:{upstream}", model: bench, dialect: vllm, slots: 4096}}
flow: {{max_in_flight: 4096, max_queued: 4096, request_timeout: 600}}
tenants:
  - {{name: bench, requests_per_minute: 1000000000, tokens_per_minute: 1000000000000}}
records: {{path: "{folder}/records.jsonl"}}
"""

Recipe = Callable[[Path, int], tuple[list[str], int | None, str]]
PROXIES: dict[str, Recipe] = {"nginx": _nginx, "aiohttp": _aiohttp, "surgetank": _surgetank}


@contextmanager
def running(name: str, folder: Path, upstream: int) -> Iterator[Running]:
    """Run one proxy in front of `upstream` (a port). Raises CannotRunError with its last words."""
    command, port, key = PROXIES[name](folder, upstream)
    errors = folder / "stderr"
    with errors.open("wb") as sink:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink)
    try:
        if port is None:
            port = _announced(process)
        else:
            _await_port(process, port)
        if port is None or process.poll() is not None:
            words = errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise CannotRunError(f"{name} did not start ({' '.join(command)}): {words[-1]}")
        yield Running(process.pid, port, key)
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


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
