"""A run of some seconds of the kill harness, which ``make torture`` runs for minutes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from haproc.ring.local import LocalRing
from tests.fault.torture.history import Level
from tests.fault.torture.plan import Scheme, Target, plan
from tests.fault.torture.run import Options, torture
from tests.rig import Rig

pytestmark = [pytest.mark.fault, pytest.mark.thorough]

KILLS = 6
PACE_S = 5.0
TARGETS = (Target.HAPROC, Target.BROKER)
"""No Spark: until one is back on two busy cores, nothing else would happen."""
RENEWALS = (Scheme.REPAIR,)
ENOUGH = 10
"""Among so many acknowledged writes one, at least, comes after a failover. Chosen."""
MINUTES_MAX = 4.0
"""A limit that two free cores never need: the plan has its kills within 30 s."""


def begins_with_repair(seed: int, ring: LocalRing) -> bool:
    """True if the first fault in the plan of a seed is the repair of a table."""
    faults = plan(
        seed,
        ring.names,
        list(ring.brokers),
        ("any",),
        PACE_S,
        targets=TARGETS,
        renewals=RENEWALS,
    )
    return next(faults).scheme == Scheme.REPAIR


def test_ring_under_seeded_kills_keeps_all_promises(rig: Rig, tmp_path: Path) -> None:
    seed = next(seed for seed in itertools.count() if begins_with_repair(seed, rig.ring))
    options = Options(
        seed,
        tmp_path / "torture",
        minutes=MINUTES_MAX,
        kills=KILLS,
        pace_s=PACE_S,
        targets=TARGETS,
        programs=2,
        renewals=RENEWALS,
    )
    print(f"make torture SEED={seed}: more of it, and with everything killed")
    verdict = torture(options, rig.ring)
    assert verdict.violations == (), str(verdict)
    assert verdict.figures["kills_total"] >= KILLS
    assert sum(verdict.figures["renewals"]["repair"].values()) > 0
    acknowledged = sum(each.get("ack", 0) for each in verdict.figures["operations"].values())
    assert acknowledged > 0
    levels = {name.partition(" ")[0]: each for name, each in verdict.figures["levels"].items()}
    # All are asked for; how many have an answer between two kills depends on the machine.
    assert levels.keys() == set(Level)
    assert sum(each["writes"] for each in verdict.figures["programs"].values()) > 0
    # Where a slow machine had next to no answers, none had to come from elsewhere.
    if acknowledged >= ENOUGH:
        assert sum(verdict.figures["failovers"].values()) > 0
