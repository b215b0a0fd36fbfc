"""Writes the generated parts of docs/concepts/scaling.md: `python -m tests.policy.scaling_doc`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.policy.published_rule import PublishedRule

from surgetank.policy.lifecycle import mermaid
from surgetank.policy.scaling import Observation, ScalePlan, ScalePolicy, ScaleSpec

DOC: Final = Path(__file__).parents[2] / "docs" / "concepts" / "scaling.md"

INPUTS: Final = (  # replicas, TTFT in ms, prompt tokens per second
    (4, 300.0, 9000.0),
    (4, 320.0, 12000.0),
    (4, 900.0, 15000.0),
    (5, 2200.0, 30000.0),
    (8, 2300.0, 41000.0),
    (24, 1500.0, 20000.0),
    (45, 500.0, 8000.0),
    (45, 450.0, 2000.0),
)
PERIOD: Final = 5.0
UNLOADED: Final = 0.3  # seconds of TTFT with an empty queue: the rest of it was waiting
LULL: Final = 72  # more ticks of the last row: beyond the scale-down delay of 300 s


@dataclass(frozen=True)
class Row:
    at: float
    replicas: int
    ttft_ms: float
    tokens: float
    published: int
    plan: ScalePlan


def _observation(
    at: float, replicas: int, before_ms: float, ttft_ms: float, tokens: float
) -> Observation:
    """Both rules see the same; TTFT between two rows moves in a straight line, once a second."""
    points = tuple(
        (at - PERIOD + k, (before_ms + (ttft_ms - before_ms) * k / PERIOD) / 1e3)
        for k in range(1, 6)
    )
    return Observation(
        serving=replicas,
        starting=0,
        standby=2,
        as_of=at,
        since=at - PERIOD,
        prompt_tokens=tokens * PERIOD,
        ttft_points=points,
        queue_age=max(0.0, ttft_ms / 1e3 - UNLOADED),
    )


def walk() -> list[Row]:
    """Send the inputs through both rules; then the last again until ours has let go."""
    published, ours = (
        PublishedRule(),
        ScalePolicy(ScaleSpec(prompt_tokens_per_replica=4000.0, hindsight=False)),
    )
    rows: list[Row] = []
    before = INPUTS[0][1]
    for tick, (replicas, ttft_ms, tokens) in enumerate((*INPUTS, *INPUTS[-1:] * LULL), 1):
        at = tick * PERIOD
        plan = ours.tick(_observation(at, replicas, before, ttft_ms, tokens), at)
        answer = published.evaluate(replicas, ttft_ms, tokens)
        rows.append(Row(at, replicas, ttft_ms, tokens, answer, plan))
        before = ttft_ms
    return rows


def table() -> str:
    lines = [
        "| time | replicas | TTFT | prompt tokens/s | published | ours | ours, in its own words |",
        "|---:|---:|---:|---:|---:|---:|---|",
    ]
    rows = walk()
    for row in (*rows[: len(INPUTS)], rows[-1]):
        why = "; ".join(f"**{r.signal}** {r.text}" for r in row.plan.reasons)
        lines.append(
            f"| {row.at:g} s | {row.replicas} | {row.ttft_ms:g} ms | {row.tokens:,.0f} "
            f"| {row.published} | {row.plan.replicas} | {why} |"
        )
    return "\n".join(lines)


def sections() -> dict[str, str]:
    return {"table": table(), "diagram": f"```mermaid\n{mermaid()}\n```"}


def written(text: str) -> str:
    """Give the page with its generated parts as they should be."""
    for name, body in sections().items():
        start, end = f"<!-- {name}: generated -->\n", f"\n<!-- {name}: end -->"
        head, found, rest = text.partition(start)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{DOC.name}: the markers of '{name}' are missing")
        text = f"{head}{start}{body}{end}{tail}"
    return text


if __name__ == "__main__":
    DOC.write_text(written(DOC.read_text(encoding="utf-8")), encoding="utf-8")
