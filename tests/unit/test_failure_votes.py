"""Giving up by failure votes: no order of messages gives up an operation that was committed.

A model of a ring's processes around the real `FailureVotes`: at any moment each does what the rules
allow, and appends late what it decided early. Replaced processes continue to append.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from haproc.replicate.log_state.failure_votes import FailureVotes
from haproc.replicate.log_state.members import Claims
from haproc.replicate.records.control import (
    Abandon,
    FailureVote,
    FateMessage,
    Revoke,
    VoteWithdrawal,
)
from haproc.replicate.records.operation import Claim
from tests.simulation.violations import found_by

MEMBERS = ("a", "b", "c")
STRANGER = "d"
"""Takes part without being in the others' configuration."""
AT = 0
"""The offset of the operation."""
NAMES = st.sampled_from((*MEMBERS, STRANGER))
EXAMPLES = 5 * int(os.environ.get("SEEDS", "10"))


@dataclass
class Life:
    """A process; ``failed``: its last attempt has ended, and was not committed."""

    cluster: str
    epoch: int
    words: FailureVotes = field(default_factory=FailureVotes)
    claims: Claims = field(default_factory=Claims)
    read_to: int = AT + 1
    running: bool = False
    failed: bool = False
    withdrawn_at: int | None = None

    def read(self, log: list[FateMessage | Claim], end: int) -> None:
        for at in range(self.read_to, end):
            message = log[at - 1]
            if isinstance(message, Claim):
                self.claims.see(at, message.cluster)
            else:
                self.words.record(at, message, self.claims)
        self.read_to = max(self.read_to, end)

    @property
    def abandoned(self) -> bool:
        return self.words.abandoned(AT) is not None

    @property
    def stands(self) -> bool:
        return self.cluster in self.words.valid_votes(AT)

    @property
    def fenced(self) -> bool:
        return self.claims.void(self.read_to, self.cluster, self.epoch)


class Ring(RuleBasedStateMachine):
    """The model that the module describes."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[FateMessage | Claim] = []  # behind the operation
        self.lives: list[Life] = []
        self.newest: dict[str, Life] = {}
        self.committed: set[str] = set()
        self.late: list[Abandon | FailureVote] = []

    @property
    def end(self) -> int:
        return len(self.log) + 1

    def append(self, message: FateMessage | Claim) -> int:
        self.log.append(message)
        return len(self.log)

    @rule(cluster=NAMES)
    def start(self, cluster: str) -> None:
        life = Life(cluster, self.append(Claim(cluster, str(len(self.lives)))))
        life.read(self.log, self.end)
        self.lives.append(life)
        self.newest[cluster] = life

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), count=st.integers(1, 6))
    def read(self, data: st.DataObject, count: int) -> None:
        life = data.draw(st.sampled_from(self.lives))
        life.read(self.log, min(self.end, life.read_to + count))

    @precondition(lambda self: self.newest)
    @rule(data=st.data(), commits=st.booleans())
    def run(self, data: st.DataObject, commits: bool) -> None:
        """Begin an attempt, or end one."""
        life = data.draw(st.sampled_from(list(self.newest.values())))
        if life.running:
            life.running, life.failed = False, not commits
            if commits:
                self.committed.add(life.cluster)
        elif life.cluster not in self.committed and not life.abandoned and not life.fenced:
            waits = life.withdrawn_at is not None and life.read_to <= life.withdrawn_at
            if not life.stands and not waits and life.words.open_revoke(AT) is None:
                life.running, life.failed = True, False

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def cast_vote(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from(self.lives))
        if life.failed and not life.fenced and not life.stands:
            life.failed, life.withdrawn_at = False, None
            self.append(FailureVote(AT, "x", life.cluster, life.epoch, "no memory"))
            if life is self.newest[life.cluster]:
                life.read(self.log, self.end)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from(self.lives))
        if life.stands and life.withdrawn_at is None and not life.abandoned:
            life.withdrawn_at = self.append(VoteWithdrawal(AT, "x", life.cluster, life.epoch))

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def want_back(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from(self.lives))
        self.append(Revoke(AT, "x", life.cluster, life.epoch, "somebody"))

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), settles=st.booleans())
    def answer(self, data: st.DataObject, settles: bool) -> None:
        """Answer an open revoke: vote for it later, report the commit, or go on."""
        life = data.draw(st.sampled_from(self.lives))
        revoke = life.words.open_revoke(AT)
        if revoke is None or life.running or life.fenced:
            return
        done = life.cluster in self.committed
        if done or settles:
            self.append(VoteWithdrawal(AT, "x", life.cluster, life.epoch, revoke[0], done))
        elif not life.stands:
            life.failed, life.withdrawn_at = False, None
            self.late.append(answer_of(life))

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        life = data.draw(st.sampled_from(self.lives))
        members = {*MEMBERS, *life.claims.clusters}
        claimed = dict(life.claims.before(life.read_to))
        never = {name: -1 for name in members if name not in claimed}
        by = (life.cluster, life.epoch)
        word = life.words.abandon(AT, "x", by, life.read_to, members, never)
        if word is not None:
            self.late.append(word)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def append_late(self, data: st.DataObject) -> None:
        word = data.draw(st.sampled_from(self.late))
        self.late.remove(word)
        self.append(word)

    @invariant()
    def nothing_committed_is_given_up(self) -> None:
        reader = Life("", -1)
        reader.read(self.log, self.end)
        assert not (reader.abandoned and self.committed), "committed, and given up"
        for life in self.lives:
            if life.read_to == self.end:
                assert life.abandoned == reader.abandoned, "two readers do not agree"


def answer_of(life: Life) -> FailureVote:
    """Return a process's vote as the answer to an open revoke."""
    revoke = life.words.open_revoke(AT)
    assert revoke is not None
    return FailureVote(AT, "x", life.cluster, life.epoch, "it is to be taken back", revoke[0])


def test_committed_operation_is_never_given_up() -> None:
    run_state_machine_as_test(
        Ring, settings=settings(max_examples=EXAMPLES, stateful_step_count=60, deadline=None)
    )


def test_votes_of_all_members_give_up_and_a_second_decision_changes_nothing() -> None:
    ring = Ring()
    for cluster in MEMBERS:
        ring.start(cluster)
        ring.append(FailureVote(AT, "x", cluster, ring.newest[cluster].epoch, f"{cluster} is full"))
    life = ring.newest["a"]
    life.read(ring.log, ring.end)
    word = life.words.abandon(AT, "x", ("a", life.epoch), life.read_to, MEMBERS, {})
    assert word is not None and "a: a is full; b: b is full; c: c is full" in word.error
    for _ in range(2):
        ring.append(word)
    ring.append(VoteWithdrawal(AT, "x", "b", ring.newest["b"].epoch))
    for _ in range(2):  # heard again, it says the same
        life.read_to = AT + 1
        life.read(ring.log, ring.end)
        assert life.words.abandoned(AT) == word


def test_abandon_is_void_after_a_change_of_members_or_a_new_claim() -> None:
    claims = Claims([("a", 1), ("b", 2)])
    for happened in (lambda words: words.members_changed(6), lambda _: claims.see(6, "b")):
        words = FailureVotes()
        words.record(4, FailureVote(3, "x", "a", 1, ""), claims)
        word = words.abandon(3, "x", ("a", 1), 5, ("a", "b"), {"b": 2})
        assert word is not None
        happened(words)
        assert not words.record(7, word, claims)


def test_member_that_left_since_the_operation_must_be_covered_too() -> None:
    words = FailureVotes()
    words.members_changed(2, "x")
    words.members_changed(9, "b")
    assert words.left_since(3) == {"b"}


# -- rules broken on purpose ---------------------------------------------------------------------


def votes_never_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """Decide, and judge decisions, by all votes, withdrawn or not."""

    def every_vote(words: FailureVotes) -> FailureVotes:
        ever = copy(words)
        ever._votes = {
            offset: {at: word for at, word in votes_at.items() if isinstance(word, FailureVote)}
            for offset, votes_at in words._votes.items()
        }
        return ever

    decide, judge = FailureVotes.abandon, FailureVotes._valid
    patch.setattr(FailureVotes, "abandon", lambda self, *given: decide(every_vote(self), *given))
    patch.setattr(FailureVotes, "_valid", lambda self, *given: judge(every_vote(self), *given))


def valid_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Accept a decision as valid in spite of records that came after its votes."""
    patch.setattr(FailureVotes, "_valid", lambda self, at, word, claims: True)


def strangers_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Ignore claims of clusters that the decision does not name."""
    original = Claims.before

    def before(self: Claims, offset: int) -> tuple[tuple[str, int], ...]:
        return tuple(pair for pair in original(self, offset) if pair[0] != STRANGER)

    patch.setattr(Claims, "before", before)


def replaced_processes_count(patch: pytest.MonkeyPatch) -> None:
    """Count the votes of a replaced process."""
    patch.setattr(Claims, "void", lambda self, offset, cluster, epoch: False)


def away_ones_ignored(patch: pytest.MonkeyPatch) -> None:
    """Do without the votes of members that are away."""
    original = FailureVotes.abandon

    def alone(
        self: FailureVotes, offset: int, op_id: str, by: tuple[str, int], *rest: Any
    ) -> object:
        read_to, _, absent = rest
        return original(self, offset, op_id, by, read_to, self.valid_votes(offset), absent)

    patch.setattr(FailureVotes, "abandon", alone)


def late_answers_count(patch: pytest.MonkeyPatch) -> None:
    """Count an answer that arrives when its revoke is void already."""
    original = FailureVotes.record

    def record_anyway(self: FailureVotes, at: int, word: FateMessage, claims: Claims) -> bool:
        word = replace(word, wish=-1) if isinstance(word, FailureVote) else word
        return original(self, at, word, claims)

    patch.setattr(FailureVotes, "record", record_anyway)


def by_chance() -> None:
    """Run the model some thousand times."""
    quick = settings(
        max_examples=4000,
        stateful_step_count=60,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,  # found always or never
        database=None,
        print_blob=False,
    )
    run_state_machine_as_test(Ring, settings=quick)


# What chance comes upon too seldom. Only ``a`` ever took part.


def ring_with_a_vote(starts: int = 1) -> tuple[Ring, Life]:
    """Return a ring whose first process has voted, after so many starts of its cluster."""
    ring = Ring()
    for _ in range(starts):
        ring.start("a")
    first = ring.lives[0]
    ring.append(FailureVote(AT, "x", "a", first.epoch, "no memory"))
    return ring, first


def decision(ring: Ring, life: Life) -> list[Abandon]:
    life.read(ring.log, ring.end)
    by, never = ("a", life.epoch), {"b": -1, "c": -1}
    word = life.words.abandon(AT, "x", by, life.read_to, MEMBERS, never)
    return [word] if word is not None else []


def vote_is_withdrawn() -> None:
    ring, life = ring_with_a_vote()
    ring.append(VoteWithdrawal(AT, "x", "a", life.epoch))
    ring.committed.add("a")
    ring.log += decision(ring, life)
    ring.nothing_committed_is_given_up()


def vote_is_withdrawn_after_the_decision() -> None:
    ring, life = ring_with_a_vote()
    decided = decision(ring, life)
    assert decided
    ring.append(VoteWithdrawal(AT, "x", "a", life.epoch))
    ring.committed.add("a")
    ring.log += decided
    ring.nothing_committed_is_given_up()


def replaced_process_speaks() -> None:
    ring, replaced = ring_with_a_vote(starts=2)
    ring.committed.add("a")
    ring.log += decision(ring, replaced)
    ring.nothing_committed_is_given_up()


def answer_comes_late() -> None:
    """The revoke is void by then, and the cluster runs the operation again."""
    ring = Ring()
    ring.start("a")
    (life,) = ring.lives
    revoke = ring.append(Revoke(AT, "x", "a", life.epoch, "somebody"))
    life.read(ring.log, ring.end)
    answer = answer_of(life)
    ring.append(VoteWithdrawal(AT, "x", "b", -1, revoke))
    ring.append(answer)
    ring.committed.add("a")
    ring.log += decision(ring, life)
    ring.nothing_committed_is_given_up()


@pytest.mark.parametrize(
    ("break_rule", "happens"),
    [
        (late_answers_count, answer_comes_late),
        (votes_never_withdrawn, vote_is_withdrawn),
        (valid_for_ever, vote_is_withdrawn_after_the_decision),
        (strangers_forgotten, by_chance),
        (replaced_processes_count, replaced_process_speaks),
        (away_ones_ignored, by_chance),
    ],
)
def test_vote_rule_broken_on_purpose_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None],
    happens: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if happens is not by_chance:
        happens()  # does no harm while the rule holds
    break_rule(monkeypatch)
    found_by(happens, "committed, and given up")
