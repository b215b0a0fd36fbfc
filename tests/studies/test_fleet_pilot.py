"""The pilot: the second act's fleet in virtual time, with the live decisions."""

from __future__ import annotations

import pytest

from surgetank.policy.request import Outcome
from surgetank.studies.fleet_demo.pilot import Foretold, Pilot
from surgetank.studies.fleet_demo.pulse import NOISY, QUIET, Pulse, pulse
from surgetank.studies.fleet_demo.setup import OBJECTIVE, FleetSetup


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_the_demos_burst_is_followed_and_the_quiet_tenant_kept_whatever_the_seed(seed: int) -> None:
    setup, schedule = FleetSetup(), pulse(Pulse(), seed)
    pilot = Pilot(setup, schedule)
    foretold = pilot.run()
    quiet = [s.id for s in schedule.shots if s.tenant == QUIET]
    in_time = sum(pilot.first_tokens.get(name, 99.0) <= OBJECTIVE for name in quiet)
    assert in_time >= 0.99 * len(quiet)
    assert set(pilot.outcomes) == {shot.id for shot in schedule.shots}
    noisy = [s.id for s in schedule.shots if s.tenant == NOISY]
    done = sum(pilot.outcomes[name] is Outcome.COMPLETED for name in noisy)
    assert done == len(noisy)
    assert max(s.serving for s in pilot.samples) == setup.max_replicas
    last = pilot.samples[-1]
    assert (last.serving, last.standby) == (setup.base, setup.standbys)
    assert foretold.least_fixed == 6


def test_a_pilot_says_the_same_twice() -> None:
    schedule = pulse(Pulse(base=5.0, burst=5.0, recovery=5.0), 1)
    assert Pilot(FleetSetup(), schedule).run() == Pilot(FleetSetup(), schedule).run()


def test_the_fixed_number_is_rounded_up_with_a_margin() -> None:
    assert Foretold(400.0, 100.0).least_fixed == 5
    assert Foretold(450.0, 100.0).least_fixed == 5
    assert Foretold(460.0, 100.0).least_fixed == 6
