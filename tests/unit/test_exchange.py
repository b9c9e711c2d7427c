"""The transport in use and the accepted messages: three ends on a clock that tests move."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.config.model import Membership
from haproc.membership.exchange import SETTLE_INTERVALS, Envelope, Exchange, Receipt, Way
from haproc.membership.view import Detector

RULES = Membership()
INTERVAL_S = RULES.heartbeat_interval_s
STEP_S = INTERVAL_S / 20
LATENCY_S = INTERVAL_S / 10


class End:
    """One HAProc: publishes at its own moments, and receives messages by either transport."""

    def __init__(self, name: str, phase: int, incarnation: str = "") -> None:
        self.name, self.phase = name, phase
        self.incarnation = incarnation or f"{name}1"
        others = [other for other in "abc" if other != name]
        self.exchange = Exchange(RULES, (name, self.incarnation), others)
        self.exchange.connected()
        self.received_at: dict[str, list[float]] = {other: [] for other in others}
        self.detectors = {other: Detector(RULES, 0.0) for other in others}
        self.owed: frozenset[str] = frozenset()
        self.by_mesh = 0
        self.receipts: list[Receipt] = []
        self.alive = True

    def hear(self, other: str, now: float) -> None:
        self.received_at[other].append(now)
        self.detectors[other].received(now)


@dataclass
class Air:
    """A Redis between three ends, parts of which can fail; the mesh always works."""

    ends: dict[str, End]
    now: float = 0.0
    step: int = 0
    frozen: bool = False
    deaf: set[str] = field(default_factory=set)
    """Ends whose subscription receives nothing."""
    mute: set[str] = field(default_factory=set)
    """Ends whose messages do not reach Redis."""
    on_way: list[tuple[float, str, Envelope]] = field(default_factory=list)
    published: list[Envelope] = field(default_factory=list)
    down: list[str] = field(default_factory=list)

    def run(self, intervals: float) -> None:
        for _ in range(round(intervals * INTERVAL_S / STEP_S)):
            self.step += 1
            self.now = self.step * STEP_S
            self._arrive()
            for end in self.ends.values():
                if end.alive:
                    self._live(end)

    def _live(self, end: End) -> None:
        at = (self.step - end.phase) % 20
        if at == 0:
            self._tick(end)
        elif at == round(20 * SETTLE_INTERVALS):
            self._mesh(end, end.owed & end.exchange.settle(self.now))
        if self.step % 40 == end.phase:
            for name, detector in end.detectors.items():
                if detector.up and not detector.check(self.now):
                    self.down.append(f"{end.name}: {name}")
                detector.check(self.now)

    def _tick(self, end: End) -> None:
        exchange = end.exchange
        self._mesh(end, exchange.by_mesh)
        end.owed = frozenset("abc") - {end.name} - exchange.by_mesh
        number, received = exchange.publish(self.now)
        envelope = Envelope(end.name, end.incarnation, number, received, "")
        self.published.append(envelope)
        if not self.frozen and end.name not in self.mute:
            self.on_way += [(self.now + LATENCY_S, name, envelope) for name in self.ends]

    def _arrive(self) -> None:
        due = [each for each in self.on_way if each[0] <= self.now]
        self.on_way = [each for each in self.on_way if each[0] > self.now]
        for _, name, envelope in due:
            if name not in self.deaf and not self.frozen:
                self.give(self.ends[name], envelope)

    def give(self, end: End, envelope: Envelope) -> Receipt | None:
        """Deliver a message from Redis to an end."""
        if not end.alive:
            return None
        if (envelope.cluster, envelope.incarnation) == (end.name, end.incarnation):
            end.exchange.echo()
            return None
        receipt = end.exchange.receive(envelope, self.now)
        end.receipts.append(receipt)
        if receipt is Receipt.TAKEN:
            end.hear(envelope.cluster, self.now)
        return receipt

    def _mesh(self, end: End, to: frozenset[str]) -> None:
        for name in to:
            if self.ends[name].alive:
                end.by_mesh += 1
                self.ends[name].hear(end.name, self.now)


def air(phases: tuple[int, int, int] = (0, 7, 13)) -> Air:
    """Return a ring that has run for a while."""
    made = Air({name: End(name, phase) for name, phase in zip("abc", phases, strict=True)})
    made.run(10)
    return made


def gap_s(made: Air, since: float) -> float:
    """Return the longest time in which a living end received nothing from another living one."""
    longest = 0.0
    for end in made.ends.values():
        for other, times in end.received_at.items():
            if end.alive and made.ends[other].alive:
                late = [at for at in times if at >= since - INTERVAL_S]
                pairs = itertools.pairwise([*late, made.now])
                longest = max([longest, *(after - before for before, after in pairs)])
    return longest


PHASES = st.tuples(*[st.integers(0, 19)] * 3)


@given(PHASES)
def test_exchange_uses_no_mesh_while_redis_works(
    phases: tuple[int, int, int],
) -> None:
    made = air(phases)
    before = [end.by_mesh for end in made.ends.values()]
    made.run(30)
    assert [end.by_mesh for end in made.ends.values()] == before
    assert all(end.exchange.way is Way.REDIS for end in made.ends.values())
    assert made.down == []


@given(PHASES, st.integers(0, 19), st.sampled_from(["freeze", "lost", "deaf", "mute", "cut"]))
def test_exchange_has_only_short_silences_when_a_part_of_redis_fails(
    phases: tuple[int, int, int], moment: int, failure: str
) -> None:
    made = air(phases)
    made.run(moment / 20)
    began = made.now
    if failure == "freeze":
        made.frozen = True
    elif failure == "lost":
        made.frozen = True
        for end in made.ends.values():
            end.exchange.lost(made.now)
    else:
        made.deaf |= {"b"} if failure in ("deaf", "cut") else set()
        made.mute |= {"b"} if failure in ("mute", "cut") else set()
    made.run(30)
    assert made.down == []
    assert gap_s(made, began) <= 2.5 * INTERVAL_S + LATENCY_S + STEP_S
    hurt = "abc" if failure in ("freeze", "lost") else "b"
    assert {name for name, end in made.ends.items() if end.exchange.way is Way.MESH} == set(hurt)
    assert made.ends["a"].exchange.by_mesh >= {"b"} and made.ends["b"].exchange.by_mesh == {*"ac"}
    # and back again
    made.frozen, made.deaf, made.mute = False, set(), set()
    for end in made.ends.values():
        end.exchange.connected()
    began = made.now
    made.run(10)
    assert all(end.exchange.way is Way.REDIS for end in made.ends.values())
    assert all(not end.exchange.by_mesh for end in made.ends.values())
    made.run(10)
    assert made.down == [] and gap_s(made, began) <= 2.5 * INTERVAL_S + LATENCY_S + STEP_S


@given(PHASES, st.integers(0, 19))
def test_exchange_reports_a_dead_peer_as_down(phases: tuple[int, int, int], moment: int) -> None:
    made = air(phases)
    made.run(moment / 20)
    made.ends["c"].alive = False
    made.run(5.1)  # the bound of a ring without Redis: three missed, then the next check
    assert {each for each in made.down if each.endswith(": c")} == {"a: c", "b: c"}
    assert made.ends["a"].exchange.way is Way.REDIS
    assert made.ends["a"].exchange.by_mesh == {"c"}


def test_exchange_sends_over_the_mesh_on_a_late_echo_without_a_fallback() -> None:
    made = air()
    before = made.ends["a"].by_mesh
    made.frozen = True
    made.run(1)
    made.frozen = False
    made.run(4)
    assert made.ends["a"].by_mesh > before
    assert made.ends["a"].exchange.way is Way.REDIS


# -- what counts -----------------------------------------------------------------------------------


def test_exchange_accepts_a_recorded_message_only_once() -> None:
    made = air()
    last = [envelope for envelope in made.published if envelope.cluster == "b"][-2]
    assert made.give(made.ends["a"], last) is Receipt.REPEATED


@pytest.mark.parametrize("pause", [5, 25])
def test_exchange_ignores_recorded_messages_of_a_dead_peer(pause: int) -> None:
    made = air()
    recorded = [envelope for envelope in made.published if envelope.cluster == "c"]
    made.ends["c"].alive = False
    made.run(pause)
    # neither for those who heard it, nor for one that is new and has seen nothing
    made.ends["b"] = End("b", 7, "b2")
    made.run(5)
    for name in "ab":
        received = len(made.ends[name].received_at["c"])
        for envelope in recorded:
            assert made.give(made.ends[name], envelope) in (Receipt.REPEATED, Receipt.UNPROVEN)
        assert len(made.ends[name].received_at["c"]) == received


def test_exchange_ignores_recorded_messages_of_an_earlier_process() -> None:
    made = air()
    recorded = [envelope for envelope in made.published if envelope.cluster == "c"]
    made.ends["c"] = End("c", 3, "c2")
    made.run(10)
    assert not made.ends["a"].exchange.by_mesh
    for envelope in recorded:
        assert made.give(made.ends["a"], envelope) is Receipt.UNPROVEN
    made.run(10)
    assert not made.ends["a"].exchange.by_mesh and made.ends["a"].receipts[-1] is Receipt.TAKEN


def test_exchange_accepts_a_new_peer_soon() -> None:
    made = air()
    made.ends["c"] = End("c", 3, "c2")
    made.run(3)
    assert made.ends["a"].receipts[-1] is Receipt.TAKEN
    assert made.ends["c"].receipts[-1] is Receipt.TAKEN


def test_exchange_reports_a_cluster_of_another_ring_as_strange() -> None:
    made = air()
    assert made.give(made.ends["a"], Envelope("x", "x1", 1, {}, "")) is Receipt.STRANGE
    assert made.give(made.ends["a"], Envelope("a", "a0", 1, {}, "")) is Receipt.REPEATED


def test_exchange_measures_the_time_on_the_mesh_only_while_it_is_used() -> None:
    made = air()
    exchange = made.ends["a"].exchange
    assert exchange.meshed_s("b", made.now) == 0
    exchange.lost(made.now)
    assert exchange.meshed_s("b", made.now + 3) == pytest.approx(3)


def test_exchange_sends_to_an_added_cluster_over_the_mesh_until_redis_delivers() -> None:
    made = air()
    exchange = made.ends["a"].exchange
    exchange.follow(["b"], made.now)
    assert made.give(made.ends["a"], Envelope("c", "c1", 10**6, {}, "")) is Receipt.STRANGE
    exchange.follow(["b", "c"], made.now)
    assert exchange.by_mesh == {"c"}
    assert exchange.meshed_s("c", made.now + 1) == pytest.approx(1)
    made.run(5)
    assert not exchange.by_mesh and made.ends["a"].receipts[-1] is Receipt.TAKEN
    assert not made.down


def test_exchange_forgets_a_removed_cluster() -> None:
    made = air()
    exchange = made.ends["a"].exchange
    exchange.follow(["b"], made.now)
    _, named = exchange.publish(made.now)
    assert named.keys() == {"b"} and not exchange.by_mesh
