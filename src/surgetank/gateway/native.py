"""Which engines have the routes beside completions: embeddings, responses, messages.

Rule: asked when a request first wants such a route, and remembered until the engine joins anew. A
route is served when every replica of the model has it, since any of them may get the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from surgetank.adapters.engines import has_route
from surgetank.policy.flow import ANY_MODEL

if TYPE_CHECKING:
    from surgetank.gateway.fleet import Target


class NativeRoutes:
    """What is known of the routes of a fleet's engines. `timeout`: seconds for one answer."""

    def __init__(self, targets: Iterable[Target], *, timeout: float) -> None:
        self._targets = targets
        self._timeout = timeout
        self._asking: dict[tuple[str, str], asyncio.Task[bool]] = {}

    def known(self, model: str, route: str) -> bool | None:
        """Whether a model's replicas have a route; None when that has to be asked.

        Without a replica there is nothing to ask: FlowControl says what is wrong then.
        """
        answers = [target.routes.get(route) for target in self._serving(model)]
        if False in answers:
            return False
        return None if None in answers else True

    async def ask(self, model: str, route: str) -> bool:
        """Ask those replicas of a model that were not asked; however many want to know, once."""
        key = model, route
        task = self._asking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask_all(model, route))
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return await asyncio.shield(task)

    async def _ask_all(self, model: str, route: str) -> bool:
        unknown = [t for t in self._serving(model) if route not in t.routes]
        await asyncio.gather(*(self._ask(target, route) for target in unknown))
        return self.known(model, route) is not False  # who does not answer is asked by the request

    async def _ask(self, target: Target, route: str) -> None:
        headers = [] if target.authorization is None else [(b"authorization", target.authorization)]
        has = await has_route(
            target.url, route, timeout=self._timeout, headers=headers, tls=target.tls
        )
        if has is not None:
            target.routes[route] = has

    def _serving(self, model: str) -> list[Target]:
        return [t for t in self._targets if t.serving and t.model in {model, ANY_MODEL}]
