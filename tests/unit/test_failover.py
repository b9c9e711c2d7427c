"""The failover policy as a table, and its invariants (haclient/failover.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient.exceptions import Outcome
from haclient.failover import (
    AttemptEnd,
    Done,
    GiveUp,
    Liveness,
    Memory,
    Pause,
    Policy,
    Progress,
    Pulse,
    Reason,
    Try,
    after,
    begin,
    final_outcome,
    order,
    probed,
    resume,
)

POLICY = Policy()
FAILURES = (AttemptEnd.NOT_REACHED, AttemptEnd.NOT_TAKEN, AttemptEnd.IN_DOUBT)


def progress(**changes: object) -> Progress:
    values: dict[str, object] = {"deadline": 100.0, "repeatable": True, "untried": (1, 2)}
    return Progress(**(values | changes))  # type: ignore[arg-type]


# (state, event) → action; server 0 of three has just been tried, the clock stands at 10 s.
TABLE = [
    (progress(), AttemptEnd.ANSWERED, Done()),
    (progress(), AttemptEnd.NOT_REACHED, Try(1)),
    (progress(), AttemptEnd.NOT_TAKEN, Try(1)),
    (progress(), AttemptEnd.IN_DOUBT, Try(1)),
    (progress(untried=(2,)), AttemptEnd.IN_DOUBT, Try(2)),
    (progress(), AttemptEnd.TIMED_OUT, GiveUp(Outcome.UNKNOWN, Reason.DEADLINE)),
    (progress(untried=()), AttemptEnd.NOT_REACHED, Pause(0.025)),
    (progress(untried=(), round=3), AttemptEnd.NOT_REACHED, Pause(0.2)),
    (progress(untried=(), round=99), AttemptEnd.NOT_REACHED, Pause(1.0)),
    (
        progress(deadline=10.0),
        AttemptEnd.NOT_REACHED,
        GiveUp(Outcome.NOT_SENT, Reason.DEADLINE),
    ),
    (
        progress(deadline=10.0, in_doubt=True),
        AttemptEnd.NOT_REACHED,
        GiveUp(Outcome.UNKNOWN, Reason.DEADLINE),
    ),
    (
        progress(untried=(), deadline=10.01),
        AttemptEnd.NOT_TAKEN,
        GiveUp(Outcome.NOT_SENT, Reason.DEADLINE),
    ),
    (
        progress(untried=(), outage_since=-25.0),
        AttemptEnd.NOT_TAKEN,
        GiveUp(Outcome.NOT_SENT, Reason.OUTAGE),
    ),
    (
        progress(repeatable=False),
        AttemptEnd.IN_DOUBT,
        GiveUp(Outcome.UNKNOWN, Reason.NOT_REPEATABLE),
    ),
    (progress(repeatable=False), AttemptEnd.NOT_REACHED, Try(1)),
    (progress(repeatable=False), AttemptEnd.NOT_TAKEN, Try(1)),
]


@pytest.mark.parametrize(("state", "event", "action"), TABLE)
def test_policy_after_an_attempt_decides_as_the_table_says(
    state: Progress, event: AttemptEnd, action: object
) -> None:
    _, _, decided = after(POLICY, Memory.of(3), state, 0, event, 10.0, 0.0)
    assert decided == action


def test_order_of_a_fresh_connection_is_the_list() -> None:
    assert order(POLICY, Memory.of(3), 0.0) == (0, 1, 2)


def test_order_puts_recently_failed_servers_last() -> None:
    memory = Memory(0, (5.0, None, None))
    assert order(POLICY, memory, 6.0) == (1, 2, 0)
    assert order(POLICY, memory, 5.0 + POLICY.circuit_s) == (0, 1, 2)


def test_order_stays_with_the_current_server() -> None:
    assert order(POLICY, Memory(2, (1.0, None, None)), 1000.0) == (2, 0, 1)


def test_answer_of_another_server_moves_the_current_one_only_if_that_failed() -> None:
    moved, _, _ = after(
        POLICY, Memory(0, (9.0, None)), progress(), 1, AttemptEnd.ANSWERED, 10.0, 0.0
    )
    assert moved == Memory(1, (9.0, None))
    kept, _, _ = after(POLICY, Memory.of(2), progress(), 1, AttemptEnd.ANSWERED, 10.0, 0.0)
    assert kept.current == 0


def test_deadline_that_passed_while_the_server_was_alive_is_not_held_against_it() -> None:
    memory, _, _ = after(POLICY, Memory.of(2), progress(), 0, AttemptEnd.TIMED_OUT, 10.0, 0.0)
    assert memory == Memory.of(2)


def test_failback_first_ready_for_a_while_becomes_current() -> None:
    memory = Memory(1, (5.0, None))
    memory = probed(POLICY, memory, True, 20.0)
    assert memory.current == 1
    memory = probed(POLICY, memory, True, 20.0 + POLICY.failback_after_s / 2)
    assert memory.current == 1
    memory = probed(POLICY, memory, True, 20.0 + POLICY.failback_after_s)
    assert memory == Memory(0, (None, None))


def test_failback_first_not_ready_in_between_starts_over() -> None:
    memory = probed(POLICY, Memory(1, (5.0, None)), True, 20.0)
    memory = probed(POLICY, memory, False, 25.0)
    memory = probed(POLICY, memory, True, 30.0)
    assert probed(POLICY, memory, True, 20.0 + POLICY.failback_after_s).current == 1


def test_failback_first_failing_a_request_in_between_starts_over() -> None:
    memory = probed(POLICY, Memory(1, (5.0, 6.0)), True, 20.0)
    memory, _, _ = after(POLICY, memory, progress(), 0, AttemptEnd.NOT_TAKEN, 25.0, 0.0)
    assert memory.first_ready_since is None


@pytest.mark.parametrize(
    ("pulses", "hung"),
    [
        ([Pulse.SILENT], False),
        ([Pulse.SILENT, Pulse.SILENT], True),
        ([Pulse.SILENT, Pulse.ALIVE, Pulse.SILENT], False),
        ([Pulse.REFUSED] * 3, False),
        ([Pulse.REFUSED] * 4, True),
        ([Pulse.SILENT, Pulse.REFUSED, Pulse.SILENT], False),
    ],
)
def test_liveness_after_probes_is_judged_so(pulses: list[Pulse], hung: bool) -> None:
    liveness = Liveness()
    for pulse in pulses:
        liveness = liveness.after(pulse)
    assert liveness.hung(POLICY) is hung


def test_final_outcome_after_a_doubtful_attempt_needs_a_log_offset() -> None:
    doubtful = progress(in_doubt=True)
    assert final_outcome(progress(), Outcome.REJECTED, None) is Outcome.REJECTED
    assert final_outcome(doubtful, Outcome.REJECTED, None) is Outcome.UNKNOWN
    assert final_outcome(doubtful, Outcome.REJECTED, 17) is Outcome.REJECTED


def test_memory_of_no_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Memory.of(0)


ends = st.lists(
    st.tuples(st.sampled_from(list(AttemptEnd)), st.floats(0.0, 3.0), st.floats(0.0, 0.999)),
    min_size=1,
    max_size=60,
)


@given(
    servers=st.integers(1, 5),
    current=st.integers(0, 4),
    failed=st.lists(st.one_of(st.none(), st.floats(0.0, 100.0)), min_size=5, max_size=5),
    timeout_s=st.floats(0.0, 60.0),
    repeatable=st.booleans(),
    events=ends,
)
def test_policy_whatever_happens_keeps_its_invariants(
    servers: int,
    current: int,
    failed: list[float | None],
    timeout_s: float,
    repeatable: bool,
    events: list[tuple[AttemptEnd, float, float]],
) -> None:
    memory = Memory(current % servers, tuple(failed[:servers]))
    now = 100.0
    deadline = now + timeout_s
    state, action = begin(POLICY, memory, now, timeout_s, repeatable)
    tried: list[int] = []
    sent_in_doubt = False
    for end, took_s, jitter in events:
        if isinstance(action, Pause):
            assert sorted(set(tried)) == list(range(servers)), "a pause only after a whole round"
            assert 0 < action.seconds <= POLICY.backoff_max_s
            now += action.seconds
            assert now < deadline
            tried = []
            state, action = resume(POLICY, memory, state, now)
        if isinstance(action, GiveUp):
            assert now >= deadline or tried, "the deadline, or after trying"
            if action.reason is Reason.OUTAGE:
                assert sorted(set(tried)) == list(range(servers))
            if action.reason is not Reason.NOT_REPEATABLE and action.outcome is Outcome.NOT_SENT:
                assert not sent_in_doubt
            return
        if isinstance(action, Done):
            return
        assert isinstance(action, Try)
        assert now < deadline, "no attempt at or after the deadline"
        assert action.server not in tried, "each server once in a round"
        assert repeatable or not sent_in_doubt, "never repeated without an id"
        tried.append(action.server)
        now += took_s
        sent_in_doubt = sent_in_doubt or end is AttemptEnd.IN_DOUBT
        before = memory
        memory, state, action = after(POLICY, memory, state, action.server, end, now, jitter)
        if end is AttemptEnd.ANSWERED:
            assert action == Done(), "never on after an answer"
        elif end in FAILURES:
            assert memory.current == before.current, "a failure alone moves nothing"
            assert memory.failed_at[tried[-1]] == now


@given(count=st.integers(1, 30), at=st.floats(0, 1e6))
def test_policy_while_the_current_server_answers_stays_with_it(count: int, at: float) -> None:
    memory = Memory(1, (at - 1.0, None, None))
    for step in range(count):
        now = at + step
        state, action = begin(POLICY, memory, now, 10.0, True)
        assert action == Try(1)
        memory, _, _ = after(POLICY, memory, state, 1, AttemptEnd.ANSWERED, now, 0.5)
