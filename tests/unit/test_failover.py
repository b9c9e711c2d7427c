"""The failover policy as a table, and its invariants (haclient/failover.py)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haclient import failover
from haclient.choosing import CLOSED, Breaker
from haclient.exceptions import Outcome
from haclient.failover import (
    PATIENCE_PROBES_MAX,
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
    ServerState,
    Try,
    after,
    begin,
    final_outcome,
    left,
    noted,
    prefer,
    probed,
    rank,
    resume,
    second,
    to_probe,
)

POLICY = Policy()
FAILURES = (AttemptEnd.NOT_REACHED, AttemptEnd.NOT_TAKEN, AttemptEnd.IN_DOUBT)
OPEN = Breaker(1, 1e9)
LAPSED = Breaker(1, 5.0)


def memory_of(count: int, current: int = 0, **breakers: Breaker) -> Memory:
    """Return a memory of servers in a row; ``s1=…`` is the second server's circuit breaker."""
    servers = tuple(ServerState(breakers.get(f"s{at}", CLOSED)) for at in range(count))
    return Memory(current, tuple(range(count)), servers)


def order(memory: Memory, now: float) -> tuple[int, ...]:
    return tuple(sorted(memory.preferred, key=lambda server: rank(memory, server, now)))


def progress(**changes: object) -> Progress:
    values: dict[str, object] = {"deadline": 100.0, "repeatable": True, "untried": (1, 2)}
    return Progress(**(values | changes))  # type: ignore[arg-type]


# (state, event) → action; server 0 of three has just been tried, the clock stands at 10 s.
TABLE = [
    (progress(), AttemptEnd.ANSWERED, Done()),
    (progress(), AttemptEnd.NOT_REACHED, Try(1)),
    (progress(), AttemptEnd.NOT_TAKEN, Try(1)),
    (progress(), AttemptEnd.LEAVING, Try(1)),
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
    (progress(), AttemptEnd.UNEXPLAINED, Try(1)),
    (progress(unexplained=1), AttemptEnd.UNEXPLAINED, Done()),
    (progress(unexplained=1), AttemptEnd.NOT_TAKEN, Try(1)),
    (progress(untried=()), AttemptEnd.UNEXPLAINED, Pause(0.025)),
    (progress(), AttemptEnd.BUSY, Try(1)),
    (progress(untried=(), outage_since=-25.0), AttemptEnd.BUSY, Pause(0.025)),
    (progress(untried=(), busy_since=-600.0), AttemptEnd.BUSY, Pause(0.025)),
    (
        progress(untried=(), busy_since=-600.0, deadline=math.inf),
        AttemptEnd.BUSY,
        GiveUp(Outcome.NOT_SENT, Reason.BUSY),
    ),
]


@pytest.mark.parametrize(("state", "event", "action"), TABLE)
def test_policy_after_an_attempt_decides_by_the_table(
    state: Progress, event: AttemptEnd, action: object
) -> None:
    _, _, decided = after(POLICY, memory_of(3), state, 0, event, 10.0, 0.0)
    assert decided == action


def test_unexplained_error_does_not_count_against_the_server() -> None:
    memory, state, _ = after(POLICY, memory_of(3), progress(), 0, AttemptEnd.UNEXPLAINED, 10.0, 0.0)
    assert memory == memory_of(3) and state.outage_since is None
    _, state = noted(POLICY, memory, progress(), 1, AttemptEnd.UNEXPLAINED, 10.0)
    assert state.unexplained == 1


def test_busy_servers_keep_closed_circuits_and_are_tried_again_after_their_wait() -> None:
    memory, state = memory_of(3), progress(untried=())
    after_first, state = noted(POLICY, memory, state, 1, AttemptEnd.BUSY, 10.0, 3.0)
    after_all, state, pause = after(
        POLICY, after_first, state, 0, AttemptEnd.BUSY, 10.0, jitter=0.5, wait_s=2.0
    )
    assert after_all == memory and pause == Pause(2.5)
    assert resume(POLICY, memory, state, 13.0)[1].wait_s is None


def test_pause_of_a_round_is_the_shortest_wait_that_a_busy_server_asks_for() -> None:
    memory, state = memory_of(2), progress(untried=())
    _, state = noted(POLICY, memory, state, 1, AttemptEnd.BUSY, 10.0, 0.0)
    _, _, pause = after(POLICY, memory, state, 0, AttemptEnd.BUSY, 10.0, jitter=0.0, wait_s=2.0)
    assert isinstance(pause, Pause) and pause.seconds < POLICY.backoff_max_s


def test_busy_answer_on_trial_closes_the_circuit() -> None:
    memory = memory_of(2, s0=LAPSED)
    memory, trial, action = begin(POLICY, memory, 10.0, 9.0, True)
    assert action == Try(0)
    memory, _, action = after(POLICY, memory, trial, 0, AttemptEnd.BUSY, 10.1, 0.0)
    assert (memory, action) == (memory_of(2), Try(1))


def test_order_of_a_fresh_connection_is_the_list() -> None:
    assert order(Memory.of((0, 1, 2)), 0.0) == (0, 1, 2)
    assert order(Memory.of((2, 0, 1)), 0.0) == (2, 0, 1)


def test_order_puts_open_circuits_behind_and_leaving_servers_last() -> None:
    memory = left(memory_of(4, s0=OPEN), 1)
    assert order(memory, 6.0) == (2, 3, 0, 1)


def test_order_starts_with_the_current_server() -> None:
    assert order(memory_of(3, current=2, s0=LAPSED), 10.0) == (2, 0, 1)


def test_next_server_depends_on_failures_of_concurrent_requests() -> None:
    memory, state, action = begin(POLICY, memory_of(3), 0.0, 9.0, True)
    assert action == Try(0)
    memory, _, _ = after(POLICY, memory, state, 1, AttemptEnd.NOT_REACHED, 0.1, 0.0)
    _, state, action = after(POLICY, memory, state, 0, AttemptEnd.NOT_REACHED, 0.2, 0.0)
    assert (action, state.untried) == (Try(2), (1,))


def test_half_open_circuit_lets_one_request_through() -> None:
    memory = memory_of(2, s0=LAPSED)
    memory, trial, action = begin(POLICY, memory, 10.0, 9.0, True)
    assert action == Try(0)
    assert begin(POLICY, memory, 10.1, 9.0, True)[2] == Try(1)
    failed, _, _ = after(POLICY, memory, trial, 0, AttemptEnd.NOT_REACHED, 10.2, 0.0)
    assert failed.servers[0].breaker == Breaker(2, 10.2 + 2 * POLICY.circuit_s)
    mended, _, _ = after(POLICY, memory, trial, 0, AttemptEnd.ANSWERED, 10.2, 0.0)
    assert mended == memory_of(2)


def test_answer_of_another_server_makes_it_current_only_if_the_current_one_failed() -> None:
    lost = memory_of(2, s0=OPEN)
    moved, _, _ = after(POLICY, lost, progress(), 1, AttemptEnd.ANSWERED, 10.0, 0.0)
    assert moved == memory_of(2, current=1, s0=OPEN)
    kept, _, _ = after(POLICY, memory_of(2), progress(), 1, AttemptEnd.ANSWERED, 10.0, 0.0)
    assert kept.current == 0


def test_passed_deadline_at_a_living_server_does_not_count_against_it() -> None:
    memory, _, _ = after(POLICY, memory_of(2), progress(), 0, AttemptEnd.TIMED_OUT, 10.0, 0.0)
    assert memory == memory_of(2)
    assert noted(POLICY, memory, progress(), 0, AttemptEnd.TIMED_OUT, 10.0)[0] == memory


# -- failback ----------------------------------------------------------------------------------


def test_failback_to_the_first_server_happens_after_it_was_ready_for_a_while() -> None:
    memory = memory_of(2, current=1, s0=OPEN)
    for share in (0.0, 0.5):
        memory = probed(POLICY, memory, 0, True, 20.0 + share * POLICY.failback_after_s)
        assert memory.current == 1
    memory = probed(POLICY, memory, 0, True, 20.0 + POLICY.failback_after_s)
    assert memory == memory_of(2)


def test_failback_wait_starts_over_if_the_first_server_was_not_ready() -> None:
    memory = probed(POLICY, memory_of(2, current=1, s0=OPEN), 0, True, 20.0)
    memory = probed(POLICY, memory, 0, False, 25.0)
    memory = probed(POLICY, memory, 0, True, 30.0)
    assert probed(POLICY, memory, 0, True, 20.0 + POLICY.failback_after_s).current == 1


def test_failback_wait_starts_over_if_the_first_server_failed_a_request() -> None:
    memory = probed(POLICY, memory_of(3, current=1, s0=LAPSED), 0, True, 20.0)
    memory, _, _ = after(POLICY, memory, progress(), 0, AttemptEnd.NOT_TAKEN, 25.0, 0.0)
    assert memory.servers[0].ready_since is None


def test_failback_goes_to_any_server_preferred_to_the_current_one() -> None:
    memory = memory_of(4, current=2, s0=OPEN, s1=OPEN)
    assert to_probe(memory) == (0, 1)
    for now in (20.0, 20.0 + POLICY.failback_after_s):
        memory = probed(POLICY, memory, 1, True, now)
    assert (memory.current, to_probe(memory)) == (1, (0,))


# -- leaving -----------------------------------------------------------------------------------


def test_leaving_server_is_not_used_until_it_is_ready_again() -> None:
    memory, state, _ = begin(POLICY, memory_of(2), 0.0, 9.0, True)
    memory, state, action = after(POLICY, memory, state, 0, AttemptEnd.LEAVING, 0.1, 0.0)
    assert action == Try(1)
    memory, _, _ = after(POLICY, memory, state, 1, AttemptEnd.ANSWERED, 0.2, 0.0)
    # However long ago that was, and whatever it still answers:
    memory, _, _ = after(POLICY, memory, state, 0, AttemptEnd.ANSWERED, 1e6, 0.0)
    assert begin(POLICY, memory, 1e6, 9.0, True)[2] == Try(1)
    assert order(memory, 1e6) == (1, 0) and to_probe(memory) == (0,)
    ready = probed(POLICY, memory, 0, True, 1e6)
    assert not ready.servers[0].leaving and ready.current == 1


def test_leaving_server_is_used_if_there_is_no_other() -> None:
    memory, state, action = begin(POLICY, left(memory_of(2, s1=OPEN), 0), 10.0, 9.0, True)
    assert action == Try(1)
    _, _, action = after(POLICY, memory, state, 1, AttemptEnd.NOT_REACHED, 10.0, 0.0)
    assert action == Try(0)


# -- servers that come and go, and a second one beside -----------------------------------------


def test_prefer_keeps_the_current_server_and_the_known_breakers() -> None:
    memory = prefer(memory_of(2, current=1, s0=OPEN), (3, 0, 1))
    assert (memory.current, memory.preferred) == (1, (3, 0, 1))
    assert [known.breaker for known in memory.servers] == [OPEN, CLOSED, CLOSED, CLOSED]
    assert to_probe(memory) == (3, 0)


def test_prefer_without_the_current_server_goes_to_the_first() -> None:
    memory = prefer(memory_of(3), (2, 1))
    assert (memory.current, order(memory, 0.0)) == (2, (2, 1))


def test_running_request_may_end_at_a_server_that_is_no_longer_used() -> None:
    memory, state, _ = begin(POLICY, memory_of(2), 0.0, 9.0, True)
    memory = prefer(memory, (2,))
    memory, _, action = after(POLICY, memory, state, 0, AttemptEnd.NOT_REACHED, 0.1, 0.0)
    assert action == Try(1)
    memory, _, _ = after(POLICY, memory, state, 1, AttemptEnd.ANSWERED, 0.2, 0.0)
    assert memory.current == 2


def test_second_server_is_closed_and_not_leaving() -> None:
    memory, state, _ = begin(POLICY, left(memory_of(4, s1=LAPSED), 2), 10.0, 9.0, True)
    assert second(memory, state, 10.0) == 3
    assert second(memory, failover.tried(state, 3), 10.0) is None


@pytest.mark.parametrize(
    ("pulses", "hung"),
    [
        ([Pulse.SILENT], False),
        ([Pulse.SILENT, Pulse.SILENT], True),
        ([Pulse.SILENT, Pulse.ALIVE, Pulse.SILENT], False),
        ([Pulse.REFUSED] * 8, False),
        ([Pulse.REFUSED] * 9, True),
        ([Pulse.SILENT, Pulse.REFUSED, Pulse.SILENT], False),
    ],
)
def test_liveness_after_probes_follows_the_policy(pulses: list[Pulse], hung: bool) -> None:
    liveness = Liveness()
    for pulse in pulses:
        liveness = liveness.after(pulse)
    assert liveness.hung(POLICY) is hung


def test_default_policy_declares_a_server_hung_within_0_8_seconds() -> None:
    assert POLICY.hung_after_s <= 0.8


@given(st.integers(0, 100))
def test_missed_probes_allowed_grow_with_hung_servers_up_to_a_limit(hung_before: int) -> None:
    missed = next(n for n in range(1, 100) if Liveness(silent=n).hung(POLICY, hung_before))
    assert missed == POLICY.probes_missed + min(hung_before, PATIENCE_PROBES_MAX)


def test_final_outcome_after_an_attempt_in_doubt_needs_a_log_offset() -> None:
    doubtful = progress(in_doubt=True)
    assert final_outcome(progress(), Outcome.REJECTED, None) is Outcome.REJECTED
    assert final_outcome(doubtful, Outcome.REJECTED, None) is Outcome.UNKNOWN
    assert final_outcome(doubtful, Outcome.REJECTED, 17) is Outcome.REJECTED


def test_memory_of_no_servers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Memory.of(())


ends = st.lists(
    st.tuples(st.sampled_from(list(AttemptEnd)), st.floats(0.0, 3.0), st.floats(0.0, 0.999)),
    min_size=1,
    max_size=60,
)


@given(
    servers=st.integers(1, 5),
    current=st.integers(0, 4),
    breakers=st.lists(
        st.builds(Breaker, st.integers(0, 9), st.none() | st.floats(0.0, 200.0), st.booleans()),
        min_size=5,
        max_size=5,
    ),
    leaving=st.lists(st.booleans(), min_size=5, max_size=5),
    timeout_s=st.floats(0.0, 60.0),
    repeatable=st.booleans(),
    events=ends,
)
def test_policy_keeps_its_invariants_for_any_events(
    servers: int,
    current: int,
    breakers: list[Breaker],
    leaving: list[bool],
    timeout_s: float,
    repeatable: bool,
    events: list[tuple[AttemptEnd, float, float]],
) -> None:
    standings = tuple(map(ServerState, breakers[:servers], leaving))
    memory = Memory(current % servers, tuple(range(servers)), standings)
    now = 100.0
    deadline = now + timeout_s
    memory, state, action = begin(POLICY, memory, now, timeout_s, repeatable)
    tried: list[int] = []
    sent_in_doubt = False
    for end, took_s, jitter in events:
        if isinstance(action, Pause):
            assert sorted(set(tried)) == list(range(servers)), "a pause only after a whole round"
            assert 0 < action.seconds <= POLICY.backoff_max_s
            now += action.seconds
            assert now < deadline
            tried = []
            memory, state, action = resume(POLICY, memory, state, now)
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
            assert memory.servers[tried[-1]].breaker.is_open(now)
        elif end is AttemptEnd.LEAVING:
            assert memory.servers[tried[-1]].leaving


@given(count=st.integers(1, 30), at=st.floats(0, 1e6))
def test_policy_stays_with_the_current_server_while_it_answers(count: int, at: float) -> None:
    memory = memory_of(3, current=1, s0=Breaker(1, at - 1.0))
    for step in range(count):
        now = at + step
        memory, state, action = begin(POLICY, memory, now, 10.0, True)
        assert action == Try(1)
        memory, _, _ = after(POLICY, memory, state, 1, AttemptEnd.ANSWERED, now, 0.5)
