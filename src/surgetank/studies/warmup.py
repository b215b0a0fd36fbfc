"""Wait until a first request is served.

Rule: whatever listens already may not serve yet; only an answer in full says that it does.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from surgetank.adapters.child import StartError
from surgetank.loadtest.client import Call, Client
from surgetank.policy.request import Outcome

_WITHIN: Final = 20.0  # seconds
_INTERVAL: Final = 0.1


async def served(client: Client, call: Call) -> None:
    """Send `call` again and again until it is served. Raises StartError after 20 s."""
    last = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_WITHIN):
            while True:
                exchange = await client.send(call)
                if exchange.outcome is Outcome.COMPLETED:
                    return
                last = exchange.reason
                await asyncio.sleep(_INTERVAL)
    raise StartError(f"no request was served within {_WITHIN:g} s: {last}")
