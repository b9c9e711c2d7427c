"""Tests that the state of a HAProc follows from its condition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.membership.state import (
    PROGRESSING,
    SERVING,
    Cause,
    Condition,
    Divergence,
    State,
    Undecided,
    beneath,
    state_of,
)

UP = {"started": True, "cluster_up": True}
WELL = {**UP, "caught_up": True}
OTHER_OUTCOME = Divergence(17, Cause.OUTCOME)
SKIPPED = Divergence(17, Cause.SKIPPED, applies=True)


@pytest.mark.parametrize(
    ("known", "state"),
    [
        ({}, State.STARTING),
        ({"cluster_up": True}, State.STARTING),
        ({"started": True}, State.DOWN),
        (UP, State.RECOVERING),
        ({**UP, "log_up": False}, State.RECOVERING),
        (WELL, State.READY),
        ({**WELL, "log_up": False}, State.READ_ONLY),
        ({**WELL, "log_up": False, "isolated": "cut off"}, State.ISOLATED),
        ({**UP, "isolated": "cut off"}, State.ISOLATED),
        ({"isolated": "cut off"}, State.STARTING),
        ({**WELL, "cluster_up": False, "isolated": "cut off"}, State.DOWN),
        ({**WELL, "cluster_up": False}, State.DOWN),
        ({**WELL, "draining": True}, State.DRAINING),
        ({**WELL, "drained": True}, State.DRAINING),
        # an operator who drains a cluster may stop it, and its HAProc may start without it
        ({**WELL, "drained": True, "cluster_up": False}, State.DRAINING),
        ({"drained": True}, State.DRAINING),
        ({**WELL, "drained": True, "diverged": OTHER_OUTCOME}, State.DIVERGED),
        ({**WELL, "drained": True, "stuck_at": 0}, State.STUCK),
        ({**WELL, "stuck_at": 0}, State.STUCK),
        # a cluster that is away is down, whatever kept failing there
        ({**WELL, "stuck_at": 0, "cluster_up": False}, State.DOWN),
        ({**WELL, "diverged": OTHER_OUTCOME}, State.DIVERGED),
        ({"diverged": OTHER_OUTCOME}, State.DIVERGED),
        ({**WELL, "diverged": OTHER_OUTCOME, "stuck_at": 0}, State.DIVERGED),
        ({**WELL, "behind": "trimmed", "diverged": OTHER_OUTCOME}, State.TOO_FAR_BEHIND),
        ({**WELL, "fenced_by": "a2", "behind": "trimmed"}, State.FENCED),
        ({**WELL, "fenced_by": "a2", "stopped": True}, State.STOPPED),
        ({"stopped": True}, State.STOPPED),
    ],
)
def test_state_of_a_condition_is_the_first_that_fits(
    known: dict[str, object], state: State
) -> None:
    assert state_of(Condition(**known))[0] is state  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "says"),
    [
        (
            {**WELL, "fenced_by": "a2"},
            "another process has taken over this cluster (a2)",
        ),
        ({**WELL, "behind": "offset 3 is gone; rebuild"}, "offset 3 is gone; rebuild"),
        ({**WELL, "diverged": OTHER_OUTCOME}, "offset 17 had another outcome here"),
        ({**WELL, "diverged": OTHER_OUTCOME}, "nothing more is applied"),
        ({**WELL, "diverged": SKIPPED}, "offset 17 was skipped here"),
        ({**WELL, "diverged": SKIPPED}, "then run haproc verify"),
        ({**WELL, "diverged": SKIPPED, "stuck_at": 19}, "offset 19 keeps failing"),
        ({**WELL, "diverged": Divergence(9, Cause.TABLES, True, "a.b")}, "clusters' (a.b)"),
        (
            {**WELL, "undecided": Undecided(17, Cause.OUTCOME, "a applied; b failed")},
            "a applied; b",
        ),
        ({**WELL, "undecided": Undecided(17, Cause.OUTCOME, "x")}, "run haproc verify"),
        ({**WELL, "undecided": Undecided(9, Cause.TABLES, "t")}, "haproc verify --trust NAME"),
        ({**WELL, "stuck_at": 17, "cluster_error": "disk full"}, "17 keeps failing here (disk"),
        ({"started": True, "cluster_error": "refused"}, "refused"),
        ({**WELL, "log_up": False, "log_error": "the log is away"}, "the log is away"),
        ({**WELL, "drained": True}, "until haproc undrain; without that it would be READY"),
        ({"started": True, "cluster_error": "refused", "drained": True}, "would be DOWN: refused"),
        ({**WELL, "isolated": "the log cannot be reached"}, "reached: mend the network"),
    ],
)
def test_state_of_a_troubled_condition_has_a_reason_with_advice(
    known: dict[str, object], says: str
) -> None:
    assert says in state_of(Condition(**known))[1]  # type: ignore[arg-type]


conditions = st.builds(
    Condition,
    started=st.booleans(),
    cluster_up=st.booleans(),
    log_up=st.booleans(),
    caught_up=st.booleans(),
    draining=st.booleans(),
    drained=st.booleans(),
    stopped=st.booleans(),
    fenced_by=st.none() | st.just("a2"),
    stuck_at=st.none() | st.just(0),
    diverged=st.none() | st.sampled_from([OTHER_OUTCOME, SKIPPED]),
    undecided=st.none() | st.just(Undecided(0, Cause.OUTCOME, "x")),
    isolated=st.sampled_from(["", "cut off"]),
    behind=st.sampled_from(["", "trimmed"]),
)


@given(conditions)
def test_state_that_serves_requires_a_cluster_that_is_up_caught_up_and_sound(c: Condition) -> None:
    state, _ = state_of(c)
    hurt = c.stopped or c.fenced_by or c.behind or c.diverged is not None
    if state in SERVING:
        assert c.started and c.cluster_up and c.caught_up and not c.draining and not hurt
        assert not c.isolated and not c.drained
    if hurt:
        assert state not in SERVING | PROGRESSING


@given(conditions)
def test_state_ready_requires_the_log(c: Condition) -> None:
    assert (state_of(c)[0] is State.READY) <= c.log_up


@given(conditions)
def test_state_beneath_a_drain_is_the_state_without_the_drain(c: Condition) -> None:
    assert beneath(c) is state_of(replace(c, draining=False, drained=False))[0]
    assert beneath(c) is not State.DRAINING
    if not (c.draining or c.drained):
        assert beneath(c) is state_of(c)[0]


def test_serving_states_are_a_proper_subset_of_progressing_states() -> None:
    assert SERVING < PROGRESSING


@pytest.mark.parametrize(
    ("new", "earlier", "joined"),
    [
        (OTHER_OUTCOME, None, OTHER_OUTCOME),
        # a skip lets a stopped cluster go on
        (SKIPPED, OTHER_OUTCOME, SKIPPED),
        # one that goes on is not stopped again, and the newest is what has to be verified
        (Divergence(20, Cause.OUTCOME), SKIPPED, Divergence(20, Cause.OUTCOME, True)),
        (Divergence(3, Cause.OUTCOME), SKIPPED, SKIPPED),
    ],
)
def test_divergence_joined_is_the_newest_and_applies_if_either_does(
    new: Divergence, earlier: Divergence | None, joined: Divergence
) -> None:
    assert new.joined(earlier) == joined
