"""What is to be sent, and when: requests as columns, drawn before the first one leaves.

Rule: a schedule knows nothing of the target. Two runs of one schedule differ by the target alone,
and its fingerprint says whether two runs had the same one.

Words of a prompt: `root` names an endless stream of words, and a request begins with the first
`shared` tokens of it; the rest are its own. Requests of one root share a prefix: a system prompt,
or the history of a session, which grows from turn to turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from surgetank.loadtest.phases import Phase
from surgetank.loadtest.shot import Shot
from surgetank.traffic.trace import Codes, Counts, Labels, Seconds

MOST_REQUESTS: Final = 5_000_000  # beyond that a typing error is likelier than a wish
NO_ROOT: Final = -1

Index = NDArray[np.intp] | NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Requests in the order in which they are due; all columns are of one length.

    `at`: seconds from the run's start. `max_tokens`: output tokens asked for. `session`: number of
    the session, or -1. `duration`: seconds that the arrivals stand for. `description`: parameters
    and seed by name, as they go into reports.
    """

    at: Seconds
    tenant: Labels
    prompt_tokens: Counts
    max_tokens: Counts
    root: Codes
    shared: Counts
    session: Codes
    phases: tuple[Phase, ...]
    duration: float
    description: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.at)

    @property
    def fingerprint(self) -> str:
        """Digest of arrival times (to 1 ms), tenants and sizes."""
        digest = hashlib.sha256(b"surgetank schedule 1\n")
        digest.update("\n".join(self.tenant.names).encode())
        for column in (np.rint(self.at * 1000), self.tenant.codes, *self._sizes):
            digest.update(np.ascontiguousarray(column, "<i8").tobytes())
        return digest.hexdigest()[:16]

    @property
    def _sizes(self) -> tuple[NDArray[Any], ...]:
        return self.prompt_tokens, self.max_tokens, self.root, self.shared

    @property
    def peak_rate(self) -> float:
        """Requests in the busiest whole second, requests/s."""
        if not len(self):
            return 0.0
        return float(np.bincount(self.at.astype(np.int64)).max())

    @property
    def shots(self) -> list[Shot]:
        """Its requests without a body, for `surgetank.load` and a function that makes its own."""
        names = self.tenant.names
        return [
            Shot(
                at,
                tenant=names[tenant] if tenant >= 0 else "",
                id=f"{row:06d}",
                session=f"s{session}" if session >= 0 else "",
                max_tokens=output,
            )
            for row, (at, tenant, session, output) in enumerate(
                zip(
                    self.at.tolist(),
                    self.tenant.codes.tolist(),
                    self.session.tolist(),
                    self.max_tokens.tolist(),
                    strict=True,
                )
            )
        ]

    def take(self, index: Index, *, duration: float | None = None) -> Schedule:
        """Keep the requests that `index` selects."""
        columns = ("at", "prompt_tokens", "max_tokens", "root", "shared", "session")
        kept: dict[str, Any] = {name: getattr(self, name)[index] for name in columns}
        return replace(
            self,
            **kept,
            tenant=self.tenant.take(index),
            duration=self.duration if duration is None else duration,
        )

    def clipped(self, *, prompt: int | None, output: int | None) -> Schedule:
        """Bound the tokens of each request."""
        prompts = self.prompt_tokens if prompt is None else np.minimum(self.prompt_tokens, prompt)
        outputs = self.max_tokens if output is None else np.minimum(self.max_tokens, output)
        return replace(
            self,
            prompt_tokens=prompts,
            max_tokens=outputs,
            shared=np.minimum(self.shared, prompts),
        )


def merged(parts: Sequence[Schedule], description: Mapping[str, Any]) -> Schedule:
    """Lay schedules of different tenants over each other; phases are those of the first.

    Roots and sessions are numbered anew, so that no two parts share one.
    """
    roots = sessions = 0
    columns: dict[str, list[NDArray[Any]]] = {"root": [], "session": []}
    for part in parts:
        columns["root"].append(np.where(part.root < 0, part.root, part.root + roots))
        columns["session"].append(np.where(part.session < 0, part.session, part.session + sessions))
        roots += int(part.root.max(initial=-1)) + 1
        sessions += int(part.session.max(initial=-1)) + 1
    at = np.concatenate([part.at for part in parts])
    order = np.argsort(at, kind="stable")
    names = tuple(dict.fromkeys(name for part in parts for name in part.tenant.names))
    codes = [np.array([names.index(n) for n in p.tenant.names], np.int32) for p in parts]
    tenant = np.concatenate([to[p.tenant.codes] for to, p in zip(codes, parts, strict=True)])

    def column(name: str) -> NDArray[Any]:
        joined = columns.get(name) or [getattr(part, name) for part in parts]
        return np.concatenate(joined)[order]

    return Schedule(
        at=at[order],
        tenant=Labels(tenant[order], names),
        prompt_tokens=column("prompt_tokens"),
        max_tokens=column("max_tokens"),
        root=column("root").astype(np.int32),
        shared=column("shared"),
        session=column("session").astype(np.int32),
        phases=parts[0].phases,
        duration=max(part.duration for part in parts),
        description=description,
    )
