"""A base load that rises to a peak again and again: the workload of a rehearsal.

Rule: arrivals are Poisson at the rate of their moment; the same seed gives the same requests,
whatever the policy. Each period is calm, pulse, calm: what follows a pulse is its recovery.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from surgetank.errors import InputError
from surgetank.simulation.workload import Workload
from surgetank.traffic import arrivals
from surgetank.traffic.pulse import Pulse
from surgetank.traffic.tokencounts import Lengths
from surgetank.traffic.trace import Seconds

BASE: Final = "base"
PEAK: Final = "peak"
RECOVERY: Final = "recovery"
PHASES: Final = (BASE, PEAK, RECOVERY)


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant of a pulse: a share of it, or a constant rate (requests/s) beside it."""

    name: str
    share: float = 0.0
    rate: float = 0.0


def parse_senders(texts: str | None) -> tuple[Sender, ...]:
    """Read `NAME[*COUNT][=SHARE|=RATE/s],...`. Raises InputError."""
    form = "NAME[*COUNT][=SHARE | =RATE/s], such as quiet=2/s,noisy or team*8"
    found: list[Sender] = []
    for text in (texts or "default").split(","):
        match = re.fullmatch(r"\s*([^\s=*,]+)(?:\*(\d+))?(?:=([\d.]+)(/s)?)?\s*", text)
        try:
            value = float(match[3]) if match and match[3] else 1.0
        except ValueError:
            match = None
        if match is None or not value > 0:
            raise InputError(f"--tenants {text}: must be {form}")
        share, rate = (0.0, value) if match[4] else (value, 0.0)
        count = int(match[2]) if match[2] else 0
        names = [f"{match[1]}{i + 1}" for i in range(count)] if count else [match[1]]
        found += [Sender(name, share / len(names), rate) for name in names]
    if len({sender.name for sender in found}) < len(found):
        raise InputError(f"--tenants {texts}: each name once")
    return tuple(found)


def draw_pulse(
    pulse: Pulse,
    prompt: Lengths,
    output: Lengths,
    *,
    senders: tuple[Sender, ...],
    model: str,
    seed: int,
) -> Workload:
    """Draw the requests of a pulse. Raises InputError when none falls into its duration."""
    rng = np.random.default_rng(seed)
    at = arrivals.pulse(
        rng,
        pulse.base,
        pulse.peak,
        pulse.width,
        pulse.period,
        pulse.duration,
        offset=pulse.onset,
    )
    shares = np.array([sender.share for sender in senders])
    times, who = [], []
    if shares.sum() > 0:
        times.append(at)
        who.append(rng.choice(len(senders), len(at), p=shares / shares.sum()).astype(np.int32))
    for i, sender in enumerate(senders):
        if sender.rate:
            own = arrivals.poisson(rng, sender.rate, pulse.duration)
            times.append(own)
            who.append(np.full(len(own), i, np.int32))
    arrived = np.concatenate(times)
    order = np.argsort(arrived, kind="stable")
    arrived = arrived[order]
    if not len(arrived):
        raise InputError("--pulse: no request falls into its duration: make it longer")
    return Workload(
        arrived=arrived,
        prompt=prompt.draw(len(arrived), rng),
        output=output.draw(len(arrived), rng),
        tenant=np.concatenate(who)[order],
        tenants=tuple(sender.name for sender in senders),
        model=np.zeros(len(arrived), np.int32),
        models=(model,),
        phase=_phases(pulse, arrived),
        phases=PHASES,
        span=pulse.duration,
    )


def _phases(pulse: Pulse, at: Seconds) -> NDArray[np.int8]:
    """Give the index into PHASES of each moment; a recovery is as long as its pulse."""
    after = at % pulse.period - pulse.onset
    phase = np.where(after < 0, 0, np.where(after < pulse.width, 1, 2))
    return np.where(after >= 2 * pulse.width, 0, phase).astype(np.int8)
