"""Start, watch and stop llama.cpp's server in a process of its own.

Rule: entered means its /health said ok; left means it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from surgetank.adapters.child import Child, StartError

_HEALTH_INTERVAL: Final = 0.02  # seconds; a tiny model is ready 0.1 s after its spawn
_MODULE: Final = "surgetank.adapters.llamacpp.server"


class LlamaServer:
    """llama.cpp serving one model on the loopback interface; an asynchronous context manager.

    `context` is tokens of KV over all `slots`; with `unified` they share it, else each has its
    part. Times in seconds. `url`, `port` and `pid` are known once it is entered.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        slots: int = 8,
        context: int = 2048,
        unified: bool = True,
        alias: str = "tiny",
        port: int = 0,
        start_timeout: float = 30.0,
        stop_timeout: float = 3.0,
    ) -> None:
        self._model = str(model)
        self._options = {
            "--parallel": str(slots),
            "--ctx": str(context),
            "--kv": "unified" if unified else "split",
            "--alias": alias,
        }
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._child: Child | None = None
        self.host = "127.0.0.1"
        self.port = port

    @property
    def url(self) -> str:
        """The address to send to, without a trailing slash."""
        return f"http://{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        return None if self._child is None else self._child.pid

    @property
    def errors(self) -> str:
        """The last lines of its standard error."""
        return "" if self._child is None else self._child.errors

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Spawn it and return once /health says ok. Raises StartError, leaving nothing."""
        words = [sys.executable, "-m", _MODULE, "--port", str(self.port)]
        words += [word for option in self._options.items() for word in option]
        self._child = child = Child(
            "llama.cpp",
            [*words, "--", self._model],
            start_timeout=self._start_timeout,
            stop_timeout=self._stop_timeout,
        )
        address, *_ = await child.start()
        self.port = int(address.rpartition(":")[2])
        try:
            async with asyncio.timeout(self._start_timeout):
                # The server offers no event to wait for: its /health is what there is to ask.
                while (await self.get("/health"))[0] != 200:  # noqa: ASYNC110  (another process)
                    await asyncio.sleep(_HEALTH_INTERVAL)
        except (TimeoutError, OSError) as error:
            await child.stop()
            raise StartError(
                child.complaint(f"was not healthy in {self._start_timeout:g} s")
            ) from error
        except BaseException:
            await child.stop()
            raise

    async def stop(self) -> None:
        """End it: SIGTERM, and SIGKILL when it does not go. Does nothing when it is gone."""
        if self._child is not None:
            await self._child.stop()

    async def restart(self) -> None:
        """Put a fresh process on the same port: no slot, queue or cache of the old one is left."""
        await self.stop()
        await self.start()

    async def props(self) -> dict[str, Any]:
        """Ask /props, which `kv_layout` reads."""
        status, body = await self.get("/props")
        if status != 200:
            raise StartError(f"{self.url}/props answered {status}")
        answer = json.loads(body)
        assert isinstance(answer, dict)  # noqa: S101  (llama.cpp's own answer)
        return answer

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of one GET on a connection of its own. Raises OSError."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            head = f"GET {path} HTTP/1.1\r\nhost: {self.host}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.read(-1)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        top, _, body = answer.partition(b"\r\n\r\n")
        return int(top.split(b" ", 2)[1] or 0) if top.startswith(b"HTTP/") else 0, body
