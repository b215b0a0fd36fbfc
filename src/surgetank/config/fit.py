"""What settings must fit together."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from surgetank.config.fit_autoscaler import check_autoscaler
from surgetank.config.source import Path, Source, shown
from surgetank.config.text import (
    check_file,
    check_key_variable,
    check_name,
    check_names,
    check_printable,
    check_unique,
    check_url,
    is_host,
    is_loopback,
)
from surgetank.config.tree import Config
from surgetank.dashboard.spec import PageSpec
from surgetank.gateway.keys import PREFIX as API_KEY_PREFIX
from surgetank.gateway.spec import AdminSpec, ListenSpec
from surgetank.policy.tenant import ModelLimits, Tier


def check_fit(config: Config, source: Source) -> None:
    """Raise ConfigError for the first thing that does not fit."""
    _check_tiers(config, source)
    _check_tenants(config, source)
    _check_fallbacks(config, source)
    _check_replicas(config, source)
    check_autoscaler(config, source)
    _check_listeners(config, source)
    _check_files(config, source)


def _check_tiers(config: Config, source: Source) -> None:
    check_names("tiers", [tier.name for tier in config.tiers], source)
    total = 0.0
    for i, tier in enumerate(config.tiers):
        total += tier.min_share
        if total > 1 + 1e-9:
            source.refuse(
                ("tiers", i, "min_share"),
                f"= {tier.min_share:g}: the tiers' shares add up to {total:g}: must be <= 1",
            )


def _check_fallbacks(config: Config, source: Source) -> None:
    for i, fallback in enumerate(config.ladder.fallbacks):
        here: Path = ("ladder", "fallbacks", i)
        for setting, name in (("model", fallback.model), ("to", fallback.to)):
            check_printable(name, (*here, setting), source)
        if fallback.to == fallback.model:
            problem = f"= {shown(fallback.to)}: must be another model than the one it stands in for"
            source.refuse((*here, "to"), problem)


def _check_tenants(config: Config, source: Source) -> None:
    check_names("tenants", [tenant.name for tenant in config.tenants], source)
    tiers = {Tier().name, *(tier.name for tier in config.tiers)}
    for i, tenant in enumerate(config.tenants):
        if tenant.tier not in tiers:
            source.refuse(
                ("tenants", i, "tier"),
                f"= {shown(tenant.tier)}: no such tier; there are {', '.join(sorted(tiers))}",
            )
        here: Path = ("tenants", i)
        _check_models(tenant.models, here, source)
        check_unique((*here, "keys"), ("name",), [key.name for key in tenant.keys], source)
        for j, key in enumerate(tenant.keys):
            _check_key_name(key.name, (*here, "keys", j), source)
            _check_models(key.models, (*here, "keys", j), source)


def _check_models(models: Sequence[ModelLimits], here: Path, source: Source) -> None:
    for i, model in enumerate(models):
        check_printable(model.name, (*here, "models", i, "name"), source)
    check_unique((*here, "models"), ("name",), [model.name for model in models], source)


def _check_key_name(name: str, here: Path, source: Source) -> None:
    """Refuse an API key in the place of its name without repeating it."""
    if name.startswith(API_KEY_PREFIX):
        source.refuse((*here, "name"), "must be the name of the key, not the key itself")
    check_name(name, (*here, "name"), source)


def _check_replicas(config: Config, source: Source) -> None:
    addresses = []
    for i, replica in enumerate(config.replicas):
        here: Path = ("replicas", i)
        addresses.append(check_url(replica.url, (*here, "url"), source))
        check_printable(replica.model, (*here, "model"), source)
        check_printable(replica.id, (*here, "id"), source)
        if replica.batching == "static" and replica.slots is None:
            source.refuse((*here, "batching"), "= static: needs slots, the size of a batch")
        if replica.ca_file is not None:
            check_file(replica.ca_file, (*here, "ca_file"), source)
        if not replica.url.lower().startswith("https://"):
            for name in ("ca_file", "server_name"):
                if getattr(replica, name) is not None:
                    source.refuse((*here, name), "is for https replicas: this one's url is http")
        check_key_variable(replica.api_key_env, (*here, "api_key_env"), source)
    check_unique(("replicas",), ("url",), addresses, source)
    ids = [r.id or address for r, address in zip(config.replicas, addresses, strict=True)]
    check_unique(("replicas",), ("id",), ids, source)


def _check_listeners(config: Config, source: Source) -> None:
    sections: dict[str, ListenSpec | AdminSpec | PageSpec] = {
        "listen": config.listen,
        "admin": config.admin,
        "page": config.page,
    }
    for section, spec in sections.items():
        if not is_host(spec.host):
            problem = f"= {shown(spec.host)}: must be an address or host name"
            source.refuse((section, "host"), problem)
    if config.auth.keys_file is None and not is_loopback(config.listen.host):
        source.refuse(
            ("listen", "host"),
            f"= {shown(config.listen.host)}: without API keys only this machine may be served; "
            f"make one with 'surgetank keys new' and set auth.keys_file, or listen on 127.0.0.1",
        )
    for i, replica in enumerate(config.replicas):
        parts = urlsplit(replica.url)
        for section, spec in sections.items():
            if parts.port == spec.port and _reaches(parts.hostname or "", spec.host):
                problem = (
                    f"= {shown(replica.url)}: is this gateway's own {section}.port: change one"
                )
                source.refuse(("replicas", i, "url"), problem)
    taken: dict[tuple[str, int], str] = {}
    for section, spec in sections.items():
        if spec.port:
            other = taken.setdefault((spec.host, spec.port), section)
            if other != section:
                problem = f"= {spec.port}: is {other}.port too; give {section} its own"
                source.refuse((section, "port"), problem)


def _reaches(host: str, listening: str) -> bool:
    """Tell whether connecting to `host` surely meets a listener of this machine on `listening`."""
    everywhere = listening in {"0.0.0.0", "::"}
    if is_loopback(host) and (
        everywhere or (is_loopback(listening) and "localhost" in (host, listening))
    ):
        return True
    return host.lower() == listening.lower()


def _check_files(config: Config, source: Source) -> None:
    scaler = config.autoscaler
    files: list[tuple[Path, str | None]] = [
        (("records", "path"), config.records.path),
        (("journal", "path"), config.journal.path),
        (("auth", "keys_file"), config.auth.keys_file),
        (("auth", "hmac_secret_file"), config.auth.hmac_secret_file),
        (("admin", "token_file"), config.admin.token_file),
        (("autoscaler", "token_file"), scaler.token_file),
        (("learned", "state_dir"), config.learned.state_dir),
        (("autoscaler", "decisions"), scaler.decisions),
        (("autoscaler", "state_dir"), scaler.state_dir),
    ]
    taken: dict[str, Path] = {}
    for path, name in files:
        if name is None:
            continue
        check_file(name, path, source)
        other = taken.setdefault(name, path)
        # The two ends of one secret may well read it from one file.
        if other != path and {other[-1], path[-1]} != {"token_file"}:
            problem = f"= {shown(name)}: is the file of {'.'.join(map(str, other))} too"
            source.refuse(path, problem)
    largest, total = config.records.max_file_bytes, config.records.max_total_bytes
    if largest is not None and total is not None and total < largest:
        source.refuse(
            ("records", "max_total_bytes"),
            f"= {total}: must be >= records.max_file_bytes = {largest}",
        )
    check_key_variable(config.auth.hmac_secret_env, ("auth", "hmac_secret_env"), source)
    check_key_variable(config.admin.token_env, ("admin", "token_env"), source)
