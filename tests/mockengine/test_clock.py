"""Engine time: as fast as it was told, without a jump where that changes."""

from __future__ import annotations

from surgetank.mockengine.clock import EngineClock


def test_a_slower_stretch_slows_what_is_due_and_no_time_is_lost() -> None:
    at = 50.0
    engine = EngineClock(2.0, lambda: at)
    at = 51.0
    assert engine.now() == 2.0
    assert engine.until(5.0) == 1.5
    engine.slow(4.0)
    assert engine.now() == 2.0
    assert engine.until(5.0) == 6.0
    at = 53.0
    assert engine.now() == 3.0
    engine.slow(1.0)
    assert engine.until(5.0) == 1.0
