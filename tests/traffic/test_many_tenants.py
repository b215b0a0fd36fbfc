"""Parts with more tenants than a table holds at first."""

from __future__ import annotations

import numpy as np

from surgetank.traffic.burstiness import Accumulator
from surgetank.traffic.trace import Batch, Labels


def test_a_part_with_many_tenants_merges_into_an_empty_one() -> None:
    rng = np.random.default_rng(1)
    names = tuple(f"tenant-{i}" for i in range(100))
    batch = Batch(
        np.sort(rng.uniform(0, 600, 5000)),
        prompt_tokens=rng.integers(1, 100, 5000),
        output_tokens=rng.integers(1, 100, 5000),
        tenant=Labels(rng.integers(0, 100, 5000).astype(np.int32), names),
    )
    part, whole = Accumulator(), Accumulator()
    part.add(batch)
    whole.merge(part)
    assert whole.analyse().tenants == part.analyse().tenants
    assert sum(t.requests for t in whole.analyse().tenants) < 5000  # 50 are told one by one
