"""The conditions under which a write may be answered (docs/proofs/fences.md, "Write concern")."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.classify.model import WriteConcern
from haproc.replicate.agree.assurance import ConcernJudgement, Requirement

ONE, MAJORITY, ALL = WriteConcern
NAMES = "abcde"
SOME = st.frozensets(st.sampled_from(NAMES))


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    concern = draw(st.sampled_from(WriteConcern))
    return Requirement(concern, len(NAMES), draw(st.integers(1, len(NAMES))))


def judge(
    concern: WriteConcern, in_sync: str, applied: str, min_insync: int = 1
) -> ConcernJudgement:
    requirement = Requirement(concern, 3, min_insync)
    return requirement.judge(frozenset(in_sync), frozenset(applied))


def test_write_concerns_have_an_order() -> None:
    assert [ONE.at_least(each) for each in WriteConcern] == [ONE, MAJORITY, ALL]
    assert [ALL.at_least(each) for each in WriteConcern] == [ALL] * 3
    assert MAJORITY.at_least(None) is MAJORITY


def test_concern_one_waits_for_nobody_and_is_never_refused() -> None:
    assert judge(ONE, "abc", "a", min_insync=1).fulfilled
    assert Requirement(ONE, 3, 3).permits(frozenset())


@pytest.mark.parametrize(("clusters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_majority_counts_all_clusters_of_the_ring(clusters: int, needed: int) -> None:
    requirement = Requirement(MAJORITY, clusters)
    assert requirement.needed == needed
    assert not requirement.permits(frozenset(NAMES[: needed - 1]))
    assert requirement.permits(frozenset(NAMES[:needed]))


def test_majority_is_met_by_any_clusters_that_have_applied() -> None:
    assert judge(MAJORITY, "abc", "a") == ConcernJudgement(False, frozenset("bc"))
    assert judge(MAJORITY, "abc", "ac").fulfilled
    # one that applied it and left counts; one that left before does not
    assert judge(MAJORITY, "a", "ab").fulfilled
    assert judge(MAJORITY, "a", "a") == ConcernJudgement(False, frozenset(), possible=False)


def test_concern_all_is_met_by_the_current_in_sync_set() -> None:
    assert judge(ALL, "abc", "ab") == ConcernJudgement(False, frozenset("c"))
    assert judge(ALL, "ab", "ab").fulfilled
    assert judge(ALL, "a", "a").fulfilled
    # one that is not in sync need not have it, nor does it hurt
    assert judge(ALL, "ab", "abc").fulfilled


def test_min_insync_limits_concerns_all_and_majority() -> None:
    assert judge(ALL, "a", "a", min_insync=2) == ConcernJudgement(
        False, frozenset(), possible=False
    )
    assert judge(ALL, "ab", "ab", min_insync=2).fulfilled
    assert judge(MAJORITY, "abc", "ab", min_insync=3) == ConcernJudgement(False, frozenset("c"))
    assert not Requirement(ALL, 3, 2).permits(frozenset("a"))
    assert Requirement(ALL, 3, 2).permits(frozenset("ab"))


@given(requirements(), SOME, SOME)
def test_fulfilled_concern_implies_the_promised_number_of_clusters(
    requirement: Requirement, in_sync: frozenset[str], others: frozenset[str]
) -> None:
    applied = others | {"a"}
    judged = requirement.judge(in_sync, applied)
    if not judged.fulfilled:
        return
    match requirement.concern:
        case WriteConcern.MAJORITY:
            assert 2 * len(applied) > requirement.clusters
        case WriteConcern.ALL:
            assert in_sync <= applied
    if requirement.concern is not ONE:
        assert len(applied) >= requirement.min_insync


@given(requirements(), SOME, SOME, SOME)
def test_fulfilled_concern_stays_fulfilled_when_more_clusters_have_applied(
    requirement: Requirement, in_sync: frozenset[str], some: frozenset[str], more: frozenset[str]
) -> None:
    if requirement.judge(in_sync, some).fulfilled:
        assert requirement.judge(in_sync, some | more).fulfilled


@given(requirements(), SOME, SOME)
def test_waiting_for_the_listed_clusters_is_enough_if_the_concern_is_possible(
    requirement: Requirement, in_sync: frozenset[str], others: frozenset[str]
) -> None:
    applied = others | {"a"}
    judged = requirement.judge(in_sync, applied)
    assert judged.waiting_for <= in_sync - applied
    if not judged.fulfilled:
        then = requirement.judge(in_sync, applied | judged.waiting_for)
        assert then.fulfilled is judged.possible


@given(requirements(), SOME)
def test_permitted_concern_is_possible(requirement: Requirement, in_sync: frozenset[str]) -> None:
    if requirement.permits(in_sync):
        judged = requirement.judge(in_sync, frozenset("a"))
        assert judged.fulfilled or judged.possible


@given(st.sampled_from(WriteConcern), SOME, SOME, st.integers(1, 5))
def test_fulfilled_concern_implies_that_concern_one_is_fulfilled(
    concern: WriteConcern, in_sync: frozenset[str], others: frozenset[str], min_insync: int
) -> None:
    """Majority and all are not comparable when clusters are away; one is weaker than both."""
    applied = others | {"a"}
    if Requirement(concern, len(NAMES), min_insync).judge(in_sync, applied).fulfilled:
        assert Requirement(ONE, len(NAMES), min_insync).judge(in_sync, applied).fulfilled
