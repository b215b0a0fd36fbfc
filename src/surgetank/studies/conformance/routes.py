"""Checks on what a client may reach: keys, routes, and what goes upstream with a request."""

from __future__ import annotations

from typing import Final

from surgetank.studies.conformance.client import post
from surgetank.studies.conformance.queues import require_shape
from surgetank.studies.conformance.settings import Settings, TenantLimits
from surgetank.studies.conformance.verdict import NotTestable, check
from surgetank.studies.conformance.world import World

_CONTROL: Final = (
    "POST /sleep", "POST /wake_up", "POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter",
    "POST /reset_prefix_cache", "POST /update_weights_from_disk", "POST /flush_cache",
    "POST /pause_generation", "GET /server_info", "GET /get_server_info", "GET /slots",
    "POST /collective_rpc", "POST //sleep", "POST /v1/../sleep", "POST /v1/%2e%2e/sleep",
    "POST /sleep?level=1", "POST /SLEEP",
)  # fmt: skip


@check(
    57,
    "An engine's control routes are out of reach",
    source="deny by default (vLLM's and SGLang's development routes)",
    right=(
        "sleep, weights, adapters, caches and server state, also by tricks of the path: 4xx, "
        "and nothing of it reaches the engine"
    ),
)
async def control_routes(world: World) -> None:
    world.replica.forget()
    for route in _CONTROL:
        method, _, path = route.partition(" ")
        line = await world.connect()
        message = world.getting(path, method=method)
        if method == "POST":
            message = post({"level": 1}, path=path, key=world.key(), host=world.host)
        call = await line.ask(message, method, limit=5.0).ending()
        world.require(not 200 <= call.status < 300, f"{route}: {call.shape}")
    known = {"GET /health", "GET /metrics", "GET /v1/models", "GET /version"}
    own = known | {"GET /server_info", "GET /get_server_info"}  # a gateway's own look at its engine
    reached = [path for path in world.replica.paths if path not in own]
    world.require(not reached, f"these reached the engine: {', '.join(reached)}")
    world.note(f"{len(_CONTROL)} routes were refused, none reached the engine")


@check(
    58,
    "The client's key and cookies do not go upstream",
    source="a gateway's own keys",
    right="Authorization and Cookie of the client are not in what the engine receives",
    given=Settings(tenants=(TenantLimits("acme"),)),
)
async def keys_upstream(world: World) -> None:
    headers = {"cookie": "session=secret-of-the-client"}
    call = await (await world.ask(headers=headers)).ending()
    world.require(call.ok, f"a request with a cookie: {call.shape}")
    received = world.replica.received[-1]
    told = [
        name
        for name in ("authorization", "cookie")
        if (value := received.header(name))
        and ("secret-of-the-client" in value or world.key() in value)
    ]
    world.require(not told, f"the engine received the client's {', '.join(told)}")
    world.note("the engine received neither the client's key nor its cookie")


@check(
    59,
    "Without a valid key nothing runs",
    source="of the kind of check 9",
    right=(
        "no key, a wrong one and another scheme: 401 in the OpenAI error shape, and nothing "
        "reaches the engine"
    ),
    given=Settings(tenants=(TenantLimits("acme"),)),
)
async def no_key(world: World) -> None:
    if not world.key():
        raise NotTestable("it has no keys")
    right = world.key()
    for what, told in (
        ("no key", None),
        ("a wrong key", f"Bearer {right[:-1]}{'a' if right[-1] != 'a' else 'b'}"),
        ("another scheme", f"Basic {right}"),
        ("an empty key", "Bearer "),
    ):
        headers = {} if told is None else {"authorization": told}
        line = await world.connect()
        message = post(world.chat(), headers=headers, host=world.host)
        call = await line.ask(message, limit=5.0).ending()
        world.note(f"{what}: {call.shape}")
        world.require(call.status in {401, 403}, world.evidence[-1])
        require_shape(world, call, what=what)
    world.require(world.total == 0, f"{world.total} of them reached the engine")


@check(
    60,
    "Nonsense gets a client error that clients understand",
    source="of the kind of check 33",
    right=(
        "no JSON, no object, no body, an unknown model: 400, 404 or 422 in the OpenAI error shape; "
        "a prompt above a tenant's whole limit: a 4xx at once, and not a wait"
    ),
    given=Settings(tenants=(TenantLimits("acme", tokens_per_minute=1000, burst=60),)),
    without=("tenants", "tokens_per_minute", "burst"),
)
async def nonsense(world: World) -> None:
    model = {**world.chat(), "model": "no-such-model"}
    for what, body, statuses in (
        ("no JSON", b"{no json", {400, 422}),
        ("no object", b"[1, 2]", {400, 422}),
        ("an empty body", b"", {400, 422}),
        ("an unknown model", model, {404, 400}),
    ):
        call = await (await world.ask(body, limit=5.0)).ending()
        world.note(f"{what}: {call.shape}")
        world.require(call.status in statuses, world.evidence[-1])
        require_shape(world, call, what=what)
    if world.settings.tenants and world.settings.tenants[0].tokens_per_minute is not None:
        text = "abcd " * 4000  # about 5000 tokens
        call = await (await world.ask(text=text, limit=5.0)).ending()
        world.note(f"a prompt of 5000 tokens on a limit of 1000: {call.shape}")
        world.require(400 <= call.status < 500 and call.took < 1.0, world.evidence[-1])
    world.note(f"{world.total} of them went on to the engine")
