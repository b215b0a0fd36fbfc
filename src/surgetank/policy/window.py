"""What happened lately: rates, slopes and integrals over sliding windows.

Rule: a window that has seen nothing answers None, never 0; time that runs backwards is held.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from math import floor


def least_squares(points: Iterable[tuple[float, float]]) -> float | None:
    """Slope of y over x; None with fewer than two different x."""
    known = list(points)
    if len(known) < 2:
        return None
    fsum, n = math.fsum, len(known)
    ys = [y for _, y in known]
    mean_x, mean_y = fsum([x for x, _ in known]) / n, fsum(ys) / n
    away = [x - mean_x for x, _ in known]
    spread = fsum([x**2 for x in away])
    if spread <= 0.0:
        return None
    return fsum([x * (y - mean_y) for x, y in zip(away, ys, strict=True)]) / spread


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
        self._filled: float = -math.inf  # index of the newest bucket in which there may be anything
        self._first: float | None = None
        self._last = -math.inf

    def add(self, amount: float, now: float, *, since: float | None = None) -> None:
        """Count `amount`, which happened in (since, now], or just now."""
        now = max(now, self._last)
        start = now if since is None else min(since, now)
        if self._first is None:
            self._first = start
            self._newest = floor(start / self._width)
        self._roll(now)
        self._last = now
        if not amount:
            return
        self._filled = self._newest
        ring, size, width, newest = self._ring, self._size, self._width, self._newest
        if start >= now:
            ring[newest % size] += amount
            return
        span = now - start
        for index in range(max(newest - size + 1, floor(start / width)), newest + 1):
            low, high = index * width, (index + 1) * width
            if low < start:
                low = start
            if high > now:
                high = now
            if high > low:
                ring[index % size] += amount * (high - low) / span

    def total(self, seconds: float, now: float) -> float:
        """Amount of the last `seconds` (at most the span)."""
        if self._first is None:
            return 0.0
        ring, size, width, newest = self._ring, self._size, self._width, self._newest
        if now < self._last:
            now = self._last
        start = now - (seconds if seconds < self._span else self._span)
        first = max(floor(start / width), newest - size + 1)
        if first > newest or first > self._filled:
            return 0.0
        low = first * width
        if start <= low:
            part = 1.0
        else:
            high = low + width
            if now < high:
                high = now
            part = 0.0 if start >= high else (high - start) / (high - low)
        oldest = ring[first % size] * part
        if first == newest:
            return oldest + 0.0
        begin, end = (first + 1) % size, newest % size
        if begin <= end:
            return oldest + sum(ring[begin : end + 1])
        return oldest + (sum(ring[begin:]) + sum(ring[: end + 1]))

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
        current = floor(max(now, self._last) / self._width)
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
        current = floor(now / self._width)
        if current <= self._newest:
            return
        ring, size = self._ring, self._size
        for index in range(max(self._newest + 1, current - size + 1), current + 1):
            ring[index % size] = 0.0
        self._newest = current


class Slope:
    """Least-squares slope of samples over the last `window` seconds (unit per second).

    None with fewer than `points` samples, or when they span less than `spread` of the window: three
    samples within 10 ms have a slope, and it means nothing.
    """

    def __init__(self, window: float, *, points: int = 4, spread: float = 0.4) -> None:
        self._window = window
        self._least = points
        self._spread = spread * window
        self._samples: deque[tuple[float, float]] = deque()
        self._latest = -math.inf

    def add(self, value: float, at: float) -> None:
        """Take a sample; times may come slightly out of order."""
        self.extend([(at, value)])

    def extend(self, points: Iterable[tuple[float, float]]) -> None:
        """Take samples, (when, value)."""
        samples = self._samples
        known = [point for point in points if math.isfinite(point[1])]
        if not known:
            return
        samples += known
        self._latest = max(self._latest, max(known)[0])
        over = self._latest - self._window
        while samples and samples[0][0] <= over:
            samples.popleft()

    def recent(self, now: float) -> list[tuple[float, float]]:
        """Give the samples of the window that ends now."""
        since = now - self._window
        return [point for point in self._samples if since < point[0] <= now]

    def value(self, now: float) -> float | None:
        """Slope of the window that ends now."""
        return self.of(self.recent(now))

    def of(self, recent: Sequence[tuple[float, float]]) -> float | None:
        """Slope of what `recent` gave."""
        return least_squares(recent) if self.known(recent) else None

    def known(self, recent: Sequence[tuple[float, float]]) -> bool:
        """Whether what `recent` gave has a slope."""
        if len(recent) < self._least:
            return False
        times = [at for at, _ in recent]
        return max(times) - min(times) >= self._spread


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
