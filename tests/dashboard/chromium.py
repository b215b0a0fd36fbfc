"""Headless Chromium over its debugging pipe: JSON messages that end with NUL, no library needed."""

from __future__ import annotations

import base64
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BOUND = 40.0  # seconds for any one answer; a cold start on a busy machine takes ten
EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One tab. `problems` are console errors, exceptions and log entries of level error."""

    def __init__(self, send: int, receive: int) -> None:
        self._send = send
        self._receive = receive
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self.requested: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + BOUND
        while True:
            got = self._next(deadline)
            if got.get("id") == self._number:
                assert "error" not in got, got
                return got["result"]
            self._note(got)

    def open(self, url: str) -> None:
        """Load a page; evaluate() afterwards waits for whatever it needs."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Value of an expression, awaited when it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> Any:
        """Wait in the page, frame by frame, until the expression is true; gives its value."""
        return self.evaluate(
            "new Promise((resolve, reject) => {"
            f" const end = performance.now() + {BOUND * 750};"
            " const look = () => {"
            f"  let value; try {{ value = ({condition}); }} catch {{ value = false; }}"
            "   if (value) resolve(value);"
            f"  else if (performance.now() > end) reject(new Error({json.dumps(condition)}));"
            "   else setTimeout(look, 20);"
            " }; look(); })"
        )

    def screen(self, width: int, height: int, *, dark: bool = False) -> None:
        """The viewport in CSS pixels, and what the system says of the theme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, *, whole: bool = False) -> bytes:
        """PNG of the viewport, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])

    def _next(self, deadline: float) -> Any:
        while b"\0" not in self._buffer:
            with selectors.DefaultSelector() as selector:
                selector.register(self._receive, selectors.EVENT_READ)
                assert selector.select(deadline - time.monotonic()), "chromium does not answer"
            data = os.read(self._receive, 1 << 16)
            assert data, "chromium ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: Any) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning"}:
            self.problems.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Run Chromium with a new profile folder until the block ends."""
    assert EXECUTABLE is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Chromium reads descriptor 3 and writes 4; the shell puts the pipes there.
    command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    with subprocess.Popen(
        ["bash", "-c", command, EXECUTABLE, *_FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(ours_out, ours_in)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its helpers too; the group is its own
            os.close(ours_out)
            os.close(ours_in)
