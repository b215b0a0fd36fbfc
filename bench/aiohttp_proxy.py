"""A plain streaming proxy in aiohttp: what one gets without thinking about the data plane.

usage: aiohttp_proxy.py UPSTREAM_URL; prints READY http://127.0.0.1:PORT
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

_UPSTREAM = web.AppKey("upstream", str)
_SESSION = web.AppKey("session", aiohttp.ClientSession)
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "upgrade", "host", "trailer"}


async def proxy(request: web.Request) -> web.StreamResponse:
    headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
    url = request.app[_UPSTREAM] + request.path_qs
    body = await request.read()
    session = request.app[_SESSION]
    async with session.request(request.method, url, headers=headers, data=body) as upstream:
        response = web.StreamResponse(
            status=upstream.status,
            headers={k: v for k, v in upstream.headers.items() if k.lower() not in _HOP_BY_HOP},
        )
        await response.prepare(request)
        async for data in upstream.content.iter_any():
            await response.write(data)
        await response.write_eof()
        return response


async def session(app: web.Application) -> AsyncIterator[None]:
    app[_SESSION] = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
    )
    yield
    await app[_SESSION].close()


async def main() -> None:
    app = web.Application(client_max_size=16 << 20)
    app[_UPSTREAM] = sys.argv[1]
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", proxy)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    print(f"READY http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
