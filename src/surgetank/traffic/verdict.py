"""The four shapes of an IDC curve, told from the curve, its windows and the stamps' step.

    flat ~ 1            poisson     nothing to see: independent users
    flat above 1        clumps      requests come in handfuls: retries, agent fan-out, batch jobs
    rising              pulses      the rate itself changes: bursts, drift, the day
    high, then falling  quantised   an artefact: stamps cut to steps coarser than the windows

Rule: "above 1" means above 1.5 and well above the 99 % Poisson band (1.3 times as far from 1: eight
windows are looked at). A curve rises when its excess at the widest reliable window (20 of them in
the log) is at least twice that at the clump scale, the window of about 20 expected requests. Clumps
are a few dozen requests at most; what still grows beyond is a change of rate.

A verdict is confident with 100 requests and 20 windows of some width; with less it is a guess, and
says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from surgetank.traffic.analysis import WINDOWS, Dispersion, Verdict
from surgetank.traffic.binned import Binned

PRACTICAL: Final = 1.5
BEYOND: Final = 1.3
RISING: Final = 2.0
TOLD: Final = 8  # windows from which an IDC is quoted
RELIABLE: Final = 20  # windows: the IDC of a Poisson stream is then within a third, mostly
CLUMP: Final = 20.0  # expected requests
ENOUGH: Final = 100  # requests, from which a verdict is more than a guess
HANDFULS: Final = "requests come in handfuls, at a steady rate"
LIKE_THIS: Final = "; retries, agents that fan out, and batch jobs look like this"
TOO_LITTLE: Final = "too few requests, or too short a log,"  # before "to ..."


def judge(binned: Binned, idc: Dispersion, step: float | None, finest: int) -> Verdict:
    """Give the verdict; `finest` is the narrowest window (s) that the stamps allow."""
    curve = {
        w: v - _aliasing(binned, w, step or 0.0)
        for w in WINDOWS
        if w >= finest and (v := idc.requests[str(w)]) is not None
    }
    if binned.requests < 3 or not curve:
        return Verdict(
            "poisson", "poisson", f"{TOO_LITTLE} to tell it from Poisson", confident=False
        )
    confident = binned.requests >= ENOUGH and max(idc.windows.values()) >= RELIABLE
    beneath, text = _shape(binned, idc, curve)
    shape = beneath
    if step and finest > 1 and binned.covered > 0 and step * binned.requests > binned.covered:
        shape = "quantised"
        text = (
            f"time stamps come in steps of about {step:.3g} s: what happens below {finest} s is not"
            f" in this log, and clusters there are an artefact. From {finest} s on: {text}"
        )
    else:
        text += _tokens(idc)
    if not confident:
        text = f"{TOO_LITTLE} to be sure. As far as it goes: {text}"
    return Verdict(shape, beneath, text, confident=confident)


def with_rhythm(verdict: Verdict, period: float) -> Verdict:
    """Call clumps pulses when a pulse was fitted: where few requests come, both look alike."""
    if verdict.beneath != "clumps":
        return verdict
    shape = "pulses" if verdict.shape == "clumps" else verdict.shape
    text = verdict.text.replace(HANDFULS, f"the rate itself changes, every {period:.3g} s")
    return replace(verdict, shape=shape, beneath="pulses", text=text.replace(LIKE_THIS, ""))


def _shape(binned: Binned, idc: Dispersion, curve: dict[int, float]) -> tuple[str, str]:
    """Tell the shape from the curve without what steps add; what is quoted is what is reported."""
    told = {w: v for w in curve if (v := idc.requests[str(w)]) is not None}
    narrowest = min(curve)
    raised = {w: v for w, v in curve.items() if v > max(PRACTICAL, _high(idc, w))}
    widest = max((w for w in curve if idc.windows[str(w)] >= TOLD), default=narrowest)
    if not raised:
        low = [w for w, v in curve.items() if v < _low(idc, w) and v < 0.7]
        steady = len(low) > len(curve) / 2
        digits = ".2g" if steady else ".2f"
        seen = f"IDC {told[narrowest]:{digits}} at {narrowest} s"
        if widest > narrowest:
            seen += f" and {told[widest]:{digits}} at {widest} s"
        if steady:
            return "poisson", (
                f"steadier than independent users: {seen} (1 for Poisson); nothing bursty"
            )
        return "poisson", f"like independent users (Poisson): {seen}, where 1 is expected"
    rate = binned.requests / binned.covered
    clump = next((w for w in curve if w * rate >= CLUMP), max(curve))
    top = _rises_to(idc, curve, raised, clump)
    if top is not None:
        return "pulses", (
            f"the rate itself changes: IDC {_climb(told, narrowest, top)} (1 for Poisson)"
        )
    quoted = clump if clump in raised else max(raised, key=lambda w: raised[w])
    also = f" and {told[widest]:.3g} at {widest} s" if widest != quoted else ""
    return "clumps", (
        f"{HANDFULS}: IDC {told[quoted]:.3g} at {quoted} s{also} (1 for Poisson){LIKE_THIS}"
    )


def _rises_to(
    idc: Dispersion, curve: dict[int, float], raised: dict[int, float], clump: int
) -> int | None:
    """Give the window up to which the curve rises beyond the clump scale; None: it does not."""
    beyond = [w for w in curve if w > clump]
    at_clump = curve[clump]
    reliable = [w for w in beyond if idc.windows[str(w)] >= RELIABLE]
    wide = max(reliable, key=lambda w: curve[w], default=None)
    if wide is not None and curve[wide] - 1 >= RISING * max(at_clump - 1, PRACTICAL - 1):
        # Wider windows may lie higher still: few of them, so they are quoted, not judged by.
        return max((w for w in beyond if w in raised), key=lambda w: raised[w], default=wide)
    if at_clump <= max(PRACTICAL, _high(idc, clump)):
        return max((w for w in beyond if w in raised), key=lambda w: raised[w], default=None)
    return None


def _climb(told: dict[int, float], low: int, high: int) -> str:
    verb = "climbs from" if told[high] > told[low] else "goes from"
    return f"{verb} {told[low]:.3g} at {low} s to {told[high]:.3g} at {high} s"


def _tokens(idc: Dispersion) -> str:
    """Say so when prompt tokens are burstier than their requests explain."""
    if idc.prompt_tokens is None or idc.prompt_tokens_band is None:
        return ""
    beyond = {}
    for w, value in idc.prompt_tokens.items():
        band, requests = idc.prompt_tokens_band[w], idc.requests[w]
        if value is None or band is None or requests is None or idc.windows[w] < TOLD:
            continue
        # Requests that are bursty themselves bring E[X] (IDC - 1) more.
        expected = band[1] * max(requests, 1.0)
        if value > PRACTICAL * expected:
            beyond[w] = value / (idc.prompt_tokens_reference or 1.0)
    if not beyond:
        return ""
    worst = max(beyond, key=lambda w: beyond[w])
    return (
        f". Prompt tokens are burstier than that: at {worst} s their IDC is {beyond[worst]:.3g}"
        " times that of independent prompts; long prompts come together"
    )


def _aliasing(binned: Binned, window: int, step: float) -> float:
    """What steps add to the IDC: windows that hold now one step more, now one less.

    With a part f of a step left over, counts of rate x step requests come with variance f (1 - f).
    """
    if not step or not binned.covered:
        return 0.0
    left = window / step % 1.0
    rate = binned.requests / binned.covered
    return rate * step * step * left * (1 - left) / window


def _high(idc: Dispersion, window: int) -> float:
    band = idc.requests_band[str(window)]
    return 1.0 + BEYOND * (band[1] - 1.0) if band else 0.0


def _low(idc: Dispersion, window: int) -> float:
    band = idc.requests_band[str(window)]
    return band[0] if band else 0.0
