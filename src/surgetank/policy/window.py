"""What happened lately: rates, slopes and integrals over sliding windows.

Rule: a window that has seen nothing answers None, never 0; time that runs backwards is held.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable


def least_squares(points: Iterable[tuple[float, float]]) -> float | None:
    """Slope of y over x; None with fewer than two different x."""
    known = list(points)
    if len(known) < 2:
        return None
    mean_x = math.fsum(x for x, _ in known) / len(known)
    mean_y = math.fsum(y for _, y in known) / len(known)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in known)
    if spread <= 0.0:
        return None
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in known) / spread


class RateWindow:
    """Amounts per second over the last `span` seconds, in a ring of `buckets`.

    An amount counted over an interval is spread evenly over it, so that one reading every 5 s does
    not look like a burst of one second. The oldest bucket counts in part: a steady rate reads as
    itself at any time. Memory and cost: `buckets`.
    """

    def __init__(self, span: float, buckets: int = 20) -> None:
        self._span = span
        self._width = span / buckets
        self._size = buckets + 2  # the current one is partly full, the oldest partly out
        self._ring = [0.0] * self._size
        self._newest = 0  # index of the newest bucket since time 0
        self._first: float | None = None
        self._last = -math.inf

    def add(self, amount: float, now: float, *, since: float | None = None) -> None:
        """Count `amount`, which happened in (since, now], or just now."""
        now = max(now, self._last)
        start = now if since is None else min(since, now)
        if self._first is None:
            self._first = start
            self._newest = math.floor(start / self._width)
        self._roll(now)
        self._last = now
        if start >= now:
            self._ring[self._newest % self._size] += amount
            return
        oldest = self._newest - self._size + 1
        for index in range(max(oldest, math.floor(start / self._width)), self._newest + 1):
            low = max(start, index * self._width)
            high = min(now, (index + 1) * self._width)
            self._ring[index % self._size] += amount * max(0.0, high - low) / (now - start)

    def total(self, seconds: float, now: float) -> float:
        """Amount of the last `seconds` (at most the span)."""
        now = max(now, self._last)
        start = now - min(seconds, self._span)
        first = max(math.floor(start / self._width), self._newest - self._size + 1)
        if self._first is None or first > self._newest:
            return 0.0
        oldest = self._ring[first % self._size] * self._part_after(start, first, now)
        return oldest + self._sum(first + 1, self._newest)

    def rate(self, now: float) -> float | None:
        """Amount per second; over the time observed while that is shorter than the span."""
        if self._first is None:
            return None
        seen = max(now, self._last) - self._first
        return self.total(self._span, now) / min(self._span, max(seen, self._width))

    def gradient(self, now: float) -> float | None:
        """Change of the rate, amount per second squared: least squares over complete buckets.

        None before three complete buckets were observed.
        """
        if self._first is None:
            return None
        current = math.floor(max(now, self._last) / self._width)
        begun = math.ceil(self._first / self._width - 1e-9)
        indices = range(max(begun, current - self._size + 2), current)
        if len(indices) < 3:
            return None
        kept = range(self._newest - self._size + 1, self._newest + 1)
        return least_squares(
            (i * self._width, (self._ring[i % self._size] if i in kept else 0.0) / self._width)
            for i in indices
        )

    def _roll(self, now: float) -> None:
        current = math.floor(now / self._width)
        for index in range(max(self._newest + 1, current - self._size + 1), current + 1):
            self._ring[index % self._size] = 0.0
        self._newest = max(self._newest, current)

    def _sum(self, first: int, last: int) -> float:
        """Sum of the buckets first..last, by at most two slices of the ring."""
        if first > last:
            return 0.0
        low, high = first % self._size, last % self._size
        if low <= high:
            return sum(self._ring[low : high + 1])
        return sum(self._ring[low:]) + sum(self._ring[: high + 1])

    def _part_after(self, start: float, index: int, now: float) -> float:
        low = index * self._width
        high = min(low + self._width, now)
        if start <= low:
            return 1.0
        if start >= high:
            return 0.0
        return (high - start) / (high - low)


class Slope:
    """Least-squares slope of samples over the last `window` seconds (unit per second).

    None with fewer than `points` samples, or when they span less than `spread` of the window: three
    samples within 10 ms have a slope, and it means nothing. `gated` adds the queue's word: a slow
    sample while nobody has waited for long is one slow request, not a burst.
    """

    def __init__(self, window: float, *, points: int = 4, spread: float = 0.4) -> None:
        self._window = window
        self._least = points
        self._spread = spread * window
        self._samples: deque[tuple[float, float]] = deque()
        self._latest = -math.inf

    def add(self, value: float, at: float) -> None:
        """Take a sample; times may come slightly out of order."""
        if not math.isfinite(value):
            return
        self._samples.append((at, value))
        self._latest = max(self._latest, at)
        while self._samples and self._samples[0][0] <= self._latest - self._window:
            self._samples.popleft()

    def recent(self, now: float) -> list[tuple[float, float]]:
        """Give the samples of the window that ends now."""
        return [(at, v) for at, v in self._samples if now - self._window < at <= now]

    def value(self, now: float) -> float | None:
        """Slope, whatever the queue says."""
        recent = self.recent(now)
        if len(recent) < self._least:
            return None
        times = [at for at, _ in recent]
        if max(times) - min(times) < self._spread:
            return None
        return least_squares(recent)

    def gated(self, queue_age: float | None, least_age: float, now: float) -> float | None:
        """Slope, only while the oldest waiting request is older than `least_age` seconds."""
        if queue_age is None or queue_age < least_age:
            return None
        return self.value(now)


class InfluxIntegral:
    """Prompt tokens of the last `window` seconds, and the KV blocks their decode will need.

    blocks = (prompt + expected output) / block_size + requests / 2: the last block of a sequence is
    half empty on average. It runs ahead of every engine signal: the blocks are not allocated yet.
    """

    def __init__(self, window: float, block_size: int) -> None:
        self._window = window
        self._block_size = block_size
        self._prompt = RateWindow(window)
        self._output = RateWindow(window)
        self._requests = RateWindow(window)

    def add(
        self, prompt: float, output: float, requests: float, now: float, *, since: float | None
    ) -> None:
        """Count arrivals of (since, now]: prompt tokens, expected output tokens, requests."""
        self._prompt.add(prompt, now, since=since)
        self._output.add(output, now, since=since)
        self._requests.add(requests, now, since=since)

    def prompt_rate(self, now: float) -> float | None:
        """Prompt tokens per second; None before anything was counted."""
        return self._prompt.rate(now)

    def output_per_request(self, now: float) -> float | None:
        """Give the expected output tokens of one arrival; None without arrivals in the window."""
        requests = self._requests.total(self._window, now)
        return self._output.total(self._window, now) / requests if requests > 1e-9 else None

    def blocks(self, now: float) -> float:
        """KV blocks that the window's arrivals will need at their end."""
        tokens = self._prompt.total(self._window, now) + self._output.total(self._window, now)
        return tokens / self._block_size + self._requests.total(self._window, now) / 2
