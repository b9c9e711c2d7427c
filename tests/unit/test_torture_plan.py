"""Tests of the kill harness's plan: a seed determines it, and it mostly spares one cluster."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from haproc.node.node import VARIABLE, trace_from
from tests.fault.torture.plan import GUEST, Deed, Fault, Mode, Scheme, Target, plan

CLUSTERS = ("a", "b", "c")
RENEWALS = (Scheme.MEMBER, Scheme.REBUILD, Scheme.REPAIR)
BROKERS = ("broker1", "broker2", "broker3")
LINKS = ("clients-a", "a-spark", "a-b")


def faults(
    seed: int, count: int = 200, brokers: tuple[str, ...] = (), redis: bool = False
) -> list[Fault]:
    return list(itertools.islice(plan(seed, CLUSTERS, brokers, LINKS, redis=redis), count))


@pytest.mark.parametrize("brokers", [(), BROKERS])
def test_plan_is_determined_by_its_seed(brokers: tuple[str, ...]) -> None:
    assert faults(7, brokers=brokers) == faults(7, brokers=brokers)
    assert faults(7, brokers=brokers) != faults(8, brokers=brokers)


@pytest.mark.parametrize("seed", range(20))
def test_plan_is_in_order_and_at_its_pace(seed: int) -> None:
    times = [fault.at_s for fault in faults(seed)]
    assert times == sorted(times)
    assert 4.0 < times[-1] / len(times) < 10.0


@pytest.mark.parametrize("seed", range(20))
def test_plan_strikes_mostly_haprocs_and_every_target_sometimes(seed: int) -> None:
    planned = faults(seed, 600, BROKERS, redis=True)
    kills = Counter(
        target
        for fault in planned
        if fault.deed in (Deed.KILL, Deed.STEP)
        for target, _ in fault.victims
    )
    assert kills[Target.HAPROC] > 2 * kills[Target.SPARK] > 0
    assert kills[Target.BROKER] > 20
    assert kills[Target.REDIS] > 10
    assert {fault.scheme for fault in planned} == set(Scheme) - set(RENEWALS)
    assert {fault.mode for fault in planned if fault.deed is Deed.CUT} == set(Mode) - {Mode.PASS}
    assert {fault.link for fault in planned if fault.link} == set(LINKS)


def test_plan_without_brokers_and_redis_strikes_none() -> None:
    targets = {target for fault in faults(3) for target, _ in fault.victims}
    assert targets == {Target.HAPROC, Target.SPARK}


@pytest.mark.parametrize("only", [{Target.HAPROC}, {Target.HAPROC, Target.REDIS}, {Target.SPARK}])
def test_plan_strikes_only_its_allowed_targets(only: set[Target]) -> None:
    planned = plan(3, CLUSTERS, BROKERS, LINKS, redis=True, targets=only)
    struck = {target for f in itertools.islice(planned, 200) for target, _ in f.victims}
    assert struck == only


@pytest.mark.parametrize("seed", range(20))
def test_plan_spares_a_cluster_except_when_it_strikes_all(seed: int) -> None:
    lately: list[Fault] = []
    for fault in faults(seed, 400):
        lately = [each for each in lately if each.at_s + each.lasts_s > fault.at_s] + [fault]
        if not any(each.scheme is Scheme.ALL for each in lately):
            assert {name for each in lately for _, name in each.victims} != set(CLUSTERS)


def test_plan_contains_only_steps_that_a_haproc_knows() -> None:
    steps = {fault.step for fault in faults(5, 400) if fault.deed is Deed.STEP}
    assert len(steps) > 5
    for step in steps:
        trace_from({VARIABLE: f"{step}:kill"})


@pytest.mark.parametrize("seed", range(20))
def test_plan_kills_during_joins_rebuilds_and_repairs(seed: int) -> None:
    planned = list(itertools.islice(plan(seed, CLUSTERS, links=LINKS, renewals=RENEWALS), 400))
    assert [fault.at_s for fault in planned] == sorted(fault.at_s for fault in planned)
    for scheme in RENEWALS:
        mine = [fault for fault in planned if fault.scheme is scheme]
        positions = [n for n, fault in enumerate(mine) if fault.deed not in (Deed.KILL, Deed.STEP)]
        assert len(positions) > 3
        for first, after in itertools.pairwise(positions):
            ((_, name),) = mine[first].victims
            struck = [victim for fault in mine[first + 1 : after] for victim in fault.victims]
            assert (name == GUEST) == (scheme is Scheme.MEMBER)
            assert len(struck) >= 2 and struck[-1][1] == name
    ways = {
        f.step.partition(":")[0] for f in planned if f.scheme in RENEWALS if f.deed is Deed.STEP
    }
    assert ways == {"copied.table", "copied"}


def test_plan_for_haprocs_only_kills_no_spark_during_renewals() -> None:
    only, renewals = {Target.HAPROC}, (Scheme.REPAIR,)
    planned = list(itertools.islice(plan(1, CLUSTERS, targets=only, renewals=renewals), 200))
    assert {target for fault in planned for target, _ in fault.victims} == only
    assert any(fault.deed is Deed.REPAIR for fault in planned)
