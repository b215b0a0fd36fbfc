"""Profiles of the property tests.

The default suite draws the same examples every time, so that it says the same of the same code.
`HYPOTHESIS_PROFILE=explore` draws fresh ones, twenty times as many.
"""

from __future__ import annotations

import os

from hypothesis import settings

# A busy machine is no failure: no deadline for an example.
settings.register_profile("steady", max_examples=50, deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
