"""The gateway's settings: sockets, replicas, keys, records.

Rule: times in seconds, sizes in bytes; the comment beside a field is its documentation, and the
configuration reference, the JSON schema and the example file are made from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from surgetank.errors import ConfigError
from surgetank.policy.replica import Batching

# Headers that hold secrets, or that every request of a client has alike.
_TAKEN: Final = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"),
        *("host", "connection", "upgrade", "te", "trailer", "expect", "transfer-encoding"),
        *("content-length", "content-type", "content-encoding"),
        *("accept", "accept-encoding", "user-agent"),
    }
)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")

Dialect = Literal["auto", "vllm", "sglang", "llamacpp", "trtllm", "tgi", "openai"]


@dataclass(frozen=True, slots=True)
class ListenSpec:
    """Where clients connect, and how much one client may hold."""

    host: str = "127.0.0.1"  # address; other than loopback only with API keys (auth.keys_file)
    port: int = 8000  # 0 takes a free one and prints it
    max_connections: int = 4096  # more get a 503; lowered, with a word, to what `ulimit -Hn` allows
    idle_timeout: float = 75.0  # between two requests; above the 60 s of common load balancers
    head_timeout: float = 10.0  # for a whole request head, and for the first byte of the first
    body_timeout: float = 60.0  # for a whole request body
    write_timeout: float = 60.0  # without progress in writing: ends a client that does not read
    max_head_bytes: int = 32 << 10  # request line and headers; more is 431
    max_body_bytes: int = 16 << 20  # one request body; more is 413. Images in prompts are large
    max_upload_bytes: int = 512 << 20  # bodies being received, of all clients; more gets 429
    max_buffered_bytes: int = 1 << 20  # per stream, unread by the client, before upstream is paused


@dataclass(frozen=True, slots=True)
class AdminSpec:
    """Health, metrics and the fleet's state, on a listener of their own: never for tenants."""

    host: str = "127.0.0.1"  # address; health and metrics are open to whoever reaches it
    port: int | None = None  # closed unless set; 0 takes a free one and prints it
    token_file: str | None = None  # holds a bearer token for all but health and metrics; mode 0600
    # Name of the environment variable with the token, read when there is no token_file.
    token_env: str = "SURGETANK_ADMIN_TOKEN"  # noqa: S105 - a variable's name


@dataclass(frozen=True, slots=True)
class UpstreamSpec:
    """How replicas are reached and watched."""

    connect_timeout: float = 2.0  # in one network an engine accepts in milliseconds, or is gone
    max_idle_connections: int = 256  # kept open per replica: a burst finds them ready
    idle_timeout: float = 4.0  # below the engines' own 5 s keep-alive, so none is found dead
    health_interval: float = 1.0  # between two health checks of a replica
    unresponsive_timeout: float = 30.0  # without an answer: an autoscaled replica is given up
    lost_grace: float = 3.0  # what waits for a model goes on waiting when its last replica is lost
    health_timeout: float = 2.0  # a busy engine answers late; a dead one refuses at once
    metrics_interval: float = 1.0  # between two scrapes; llama.cpp's averages reset at each scrape
    max_line_bytes: int = 1 << 20  # one line of a streamed response; more breaks the protocol


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One engine. What is left out is asked of the engine itself."""

    url: str  # http://HOST:PORT or https://HOST:PORT of the engine, without a path
    model: str | None = None  # the name clients use; otherwise learnt from its /v1/models
    id: str | None = None  # name in logs, metrics and records; otherwise HOST:PORT
    dialect: Dialect = "auto"  # whose metrics and habits it has; auto asks it
    slots: int | None = None  # requests it runs at once; otherwise learnt
    kv_tokens: int | None = None  # size of its KV cache; otherwise learnt
    block_size: int | None = None  # tokens in a KV block; otherwise learnt
    preempts: bool | None = None  # it survives a full KV cache; otherwise known from the dialect
    max_context: int | None = None  # tokens of one request, prompt and output; otherwise learnt
    batching: Batching = "continuous"  # static: whole batches of `slots`, which leave together
    api_key_env: str | None = None  # name of the environment variable with the engine's own key
    ca_file: str | None = None  # authorities its certificate may be from (PEM); else the system's
    server_name: str | None = None  # name its certificate must hold; otherwise the host of its url
    verify_certificate: bool = True  # false takes any certificate: whoever is between can read all


@dataclass(frozen=True, slots=True)
class RecordsSpec:
    """One JSON line for every request; no prompt text."""

    path: str | None = None  # file to append to, made with mode 0600; none are written unless set
    max_buffered: int = 100_000  # records waiting for a slow disk; more are dropped and counted
    max_file_bytes: int | None = 256 << 20  # then it is cut off, and renamed with the time
    rotation_interval: float | None = 86_400.0  # after which it is cut off as well; a day
    max_total_bytes: int | None = 4 << 30  # of all, cut off or not; beyond it the oldest goes


@dataclass(frozen=True, slots=True)
class JournalSpec:
    """Every input and effect of admission, so that a decision can be replayed."""

    path: str | None = None  # file to append to, made with mode 0600; none is written unless set


@dataclass(frozen=True, slots=True)
class LearnedSpec:
    """What the gateway learns of answers, speed and limits: where it is kept, and how often told.

    With autoscaler.pools it is kept in their state_dir.
    """

    state_dir: str | None = None  # folder that keeps it over a restart, made with mode 0700
    save_interval: float = 60.0  # between two writings
    log_interval: float = 600.0  # between two looks at whether there is something new to log


@dataclass(frozen=True, slots=True)
class AuthSpec:
    """API keys. Without a keys file everyone is one tenant, and only loopback is served."""

    keys_file: str | None = None  # made by `surgetank keys new`: digests only; mode 0600
    hmac_secret_file: str | None = None  # made by `surgetank keys new`; mode 0600
    # Name of the environment variable with the secret, read when there is no hmac_secret_file.
    hmac_secret_env: str = "SURGETANK_HMAC_SECRET"  # noqa: S105 - a variable's name


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """How a request tells its session: an agent's task, whose calls belong together."""

    header: str = "x-session-id"  # header with its id, which goes before the body's
    # Member of the body with its id; none: the header alone. A user is many sessions, or one.
    member: Literal["metadata.session_id", "user", "none"] = "metadata.session_id"

    def __post_init__(self) -> None:
        """Raise ConfigError for what is no header's name."""
        if not _TOKEN.fullmatch(self.header):
            raise ConfigError(f"sessions.header = {self.header!r}: must be a header's name")
        if self.header.lower() in _TAKEN:
            raise ConfigError(
                f"sessions.header = {self.header!r}: has a meaning of its own, and may be a secret "
                "that records must not hold: take another, such as x-session-id"
            )


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """All that one gateway process needs beside the flow's own settings."""

    listen: ListenSpec = ListenSpec()
    admin: AdminSpec = AdminSpec()
    upstream: UpstreamSpec = UpstreamSpec()
    replicas: tuple[ReplicaSpec, ...] = ()  # the engines behind this gateway
    records: RecordsSpec = RecordsSpec()
    journal: JournalSpec = JournalSpec()
    auth: AuthSpec = AuthSpec()
    learned: LearnedSpec = LearnedSpec()
    sessions: SessionSpec = SessionSpec()
    drain_timeout: float = 30.0  # after SIGTERM: running requests may end
