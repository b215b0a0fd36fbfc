"""ServeGen's clients: for each one and each window of 600 s a rate and a shape of the gaps.

Rule: a log of rates holds no arrivals, so they are drawn, with a seed; the source says "window".

In each window the gaps are a renewal process in equilibrium: Gamma or Weibull gaps of the shape
`a`, scaled so that their mean is 1/rate (the fitted scale `b` belongs to gaps that the window cut,
and misses the rate on the public files). The first gap is the forward recurrence time: uniform on a
length-biased gap (Cox, Renewal Theory, 1962), so the expected count is exactly rate x 600.
"""

from __future__ import annotations

from math import gamma
from typing import Final

import numpy as np

from surgetank.traffic.formats import cells, columns
from surgetank.traffic.formats.csvlog import header_of, separator_of
from surgetank.traffic.formats.lines import Lines
from surgetank.traffic.formats.reading import Account, Format, ReadOptions, UnreadableError
from surgetank.traffic.formats.table import Table
from surgetank.traffic.trace import BadRow, Batch, Labels, Seconds

WINDOW: Final = 600.0  # seconds
MOST_ARRIVALS: Final = 20_000_000  # of one log: some 500 MB
_LEAST_SHAPE: Final = {"gamma": 1e-3, "weibull": 0.1}  # CV of gaps 32 and 430; public least 0.02
_MOST_SHAPE: Final = 1e6
_NEEDED: Final = ("client", "t", "rate", "a")


class ServeGenReader:
    """Keeps the windows, and draws their arrivals at the end, sorted by time."""

    def __init__(self, options: ReadOptions) -> None:
        columns.refuse_given(options.columns, "servegen", "csv")
        self.account = Account()
        self.arrival_from = "window"
        self._options = options
        self._lines = Lines()
        self._table: Table | None = None
        self._windows: list[tuple[str, float, float, str, float]] = []
        self._expected = 0.0

    def feed(self, lines: bytes) -> Batch:
        """Take in windows. Raises UnreadableError without the needed columns."""
        block, numbers, bad = self._lines.take(lines)
        while self._table is None and block:
            first, _, block = block.partition(b"\n")
            numbers = numbers[1:]
            if first.strip():
                self._begin(first)
        if self._table is not None:
            found = self._table.split(block, numbers)
            bad += found.bad
            for row, line in zip(
                zip(*found.columns, strict=True), found.lines.tolist(), strict=True
            ):
                if not self._window(*row):
                    bad.append(BadRow(line, "no window of a client: t, rate, pattern or shape"))
        for row_ in sorted(bad, key=lambda r: r.line):
            self.account.skip(row_.line, row_.reason)
        return Batch(np.empty(0))

    def finish(self) -> Batch:
        """Draw the arrivals."""
        parts = []
        clients = []
        for i, (_, start, rate, pattern, shape) in enumerate(self._windows):
            rng = np.random.default_rng((self._options.seed, i))
            times = renewal(rng, rate=rate, shape=shape, weibull=pattern == "weibull")
            parts.append(start + times)
            clients.append(np.full(len(times), i))
        self.account.note(
            f"arrivals are drawn from rates (seed {self._options.seed}): {len(self._windows)}"
            " windows of 600 s, gaps of each one's shape; tenants are clients, tokens unknown"
        )
        if not parts:
            return Batch(np.empty(0))
        arrived = np.concatenate(parts)
        label = Labels.of([w[0] for w in self._windows])
        tenant = Labels(label.codes[np.concatenate(clients)], label.names)
        order = np.argsort(arrived, kind="stable")
        self.account.rows = len(arrived)
        return Batch(arrived + (self._options.start or 0.0), tenant=tenant).take(order)

    def _begin(self, header: bytes) -> None:
        text = header.decode("utf-8", "replace")
        separator = separator_of(text)
        names = [name.strip().lower() for name in text.split(separator)]
        pattern = "pattern" if "pattern" in names else "pat"
        missing = [name for name in (*_NEEDED, pattern) if name not in names]
        if missing:
            raise UnreadableError(
                f"no column {missing[0]!r}: ServeGen windows have client,t,rate,cv,pat,a,b"
            )
        wanted = [names.index(name) for name in ("client", "t", "rate", pattern, "a")]
        self._table = Table(len(names), separator, wanted)

    def _window(self, client: str, start: str, rate: str, pattern: str, shape: str) -> bool:
        kind = pattern.strip().lower()
        try:
            t, per_second, a = float(start), float(rate), float(shape)
        except ValueError:
            return False
        if kind not in {"gamma", "weibull"} or not (abs(t) < 1e10 and 0 <= per_second < 1e6):
            return False
        if not _LEAST_SHAPE[kind] <= a <= _MOST_SHAPE:
            return False
        if per_second > 0:
            self._expected += per_second * WINDOW
            if self._expected > MOST_ARRIVALS:
                raise UnreadableError(
                    f"its rates make more than {MOST_ARRIVALS} arrivals: read fewer windows"
                )
            self._windows.append((cells.name(client), t, per_second, kind, a))
        return True


def renewal(rng: np.random.Generator, *, rate: float, shape: float, weibull: bool) -> Seconds:
    """Times in [0, 600) of a renewal process in equilibrium; mean gap 1/`rate` seconds."""
    mean = 1.0 / rate
    if weibull:
        scale = mean / gamma(1.0 + 1.0 / shape)
        biased = scale * rng.gamma(1.0 + 1.0 / shape) ** (1.0 / shape)
    else:
        scale = mean / shape
        biased = scale * rng.gamma(shape + 1.0)
    drawn = int(rate * WINDOW * 1.2) + 30  # gaps at a time
    times = [np.array([rng.random() * biased])]
    while times[-1][-1] < WINDOW:
        gaps = scale * (rng.weibull(shape, drawn) if weibull else rng.gamma(shape, size=drawn))
        times.append(times[-1][-1] + np.cumsum(gaps))
    found = np.concatenate(times)
    return found[found < WINDOW]


def _detect(head: bytes, filename: str) -> bool:  # noqa: ARG001 - the content tells
    names = {name.lower() for name in header_of(head)}
    return names >= {*_NEEDED, "cv"} and bool(names & {"pat", "pattern"})


FORMATS: Final = (Format("servegen", "ServeGen client windows (CSV)", _detect, ServeGenReader),)
