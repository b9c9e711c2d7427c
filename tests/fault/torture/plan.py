"""The faults of a run and their times: a seed determines an endless list.

The plan knows nothing of the run. It records what it has broken itself, with an estimate of the
time that the recovery takes, and mostly spares one cluster; sometimes, on purpose, it does not. A
process that is still down when its next fault is due is skipped by the nemesis.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from haproc.replicate.member.steps import Step


class Target(StrEnum):
    """A kind of process."""

    HAPROC = "haproc"
    SPARK = "spark"
    BROKER = "broker"
    REDIS = "redis"


class Deed(StrEnum):
    """The action of a fault."""

    KILL = "kill"
    STEP = "step"
    """The HAProc is killed and started so that it dies at a named step; two kills."""
    FREEZE = "freeze"
    CUT = "cut"
    MEMBER = "member"
    """A guest joins the ring, or leaves it if it is a member."""
    REBUILD = "rebuild"
    """A cluster's tables are replaced with those of another cluster."""
    REPAIR = "repair"
    """One table of a cluster is replaced."""


RENEWALS = frozenset({Deed.MEMBER, Deed.REBUILD, Deed.REPAIR})
GUEST = "guest"
"""The cluster that joins and leaves."""


class Mode(StrEnum):
    """The treatment of the bytes that pass over a link."""

    PASS = "pass"
    REFUSE = "refuse"
    """Nobody listens; existing connections are reset."""
    STALL = "stall"
    """Bytes are held back, and passed on when it is over."""
    DROP = "drop"
    """Connections are accepted and reset."""
    DELAY = "delay"


Victim = tuple[Target, str]
_REDIS: Victim = (Target.REDIS, "redis")
_GUEST: Victim = (Target.HAPROC, GUEST)

_RECOVERY_S = {Target.HAPROC: 6.0, Target.SPARK: 30.0, Target.BROKER: 12.0, Target.REDIS: 1.0}
"""Estimates on two busy cores, after the process is started again."""
_STEPS = {
    Step.APPEND_BEFORE: 1,
    Step.APPEND_AFTER: 2,
    Step.INTENT_AFTER: 2,
    Step.APPLY_BEFORE: 1,
    Step.APPLY_AFTER: 5,
    Step.CURSOR_AFTER: 2,
}
"""Mostly the moment between a commit on Spark and the cursor."""


class Scheme(StrEnum):
    """The faults among which the plan chooses."""

    HAPROC = "a HAProc"
    STEP = "a HAProc at a step"
    TWICE = "a HAProc, again while it recovers"
    TWO = "two HAProcs at once"
    ALL = "all HAProcs"
    SPARK = "a Spark server"
    BOTH = "HAProc and Spark of a cluster"
    FREEZE_HAPROC = "freeze a HAProc"
    FREEZE_SPARK = "freeze a Spark server"
    CUT = "cut a link"
    BROKER = "a broker"
    BROKER_RECOVERY = "a broker while a HAProc recovers"
    FREEZE_BROKER = "freeze a broker"
    REDIS = "the Redis"
    FREEZE_REDIS = "freeze the Redis"
    MEMBER = "a cluster joins or leaves"
    REBUILD = "a rebuild"
    REPAIR = "a repair of a table"


_WEIGHTS = {
    Scheme.HAPROC: 26,
    Scheme.STEP: 20,
    Scheme.TWICE: 6,
    Scheme.TWO: 6,
    Scheme.ALL: 2,
    Scheme.SPARK: 12,
    Scheme.BOTH: 4,
    Scheme.FREEZE_HAPROC: 8,
    Scheme.FREEZE_SPARK: 4,
    Scheme.CUT: 12,
}
_BROKER_WEIGHTS = {Scheme.BROKER: 16, Scheme.BROKER_RECOVERY: 5, Scheme.FREEZE_BROKER: 4}
_REDIS_WEIGHTS = {Scheme.REDIS: 10, Scheme.FREEZE_REDIS: 6}
_RENEWAL_WEIGHTS = {Scheme.MEMBER: 6, Scheme.REBUILD: 12, Scheme.REPAIR: 16}
_DEEDS = {Scheme.REBUILD: Deed.REBUILD, Scheme.REPAIR: Deed.REPAIR}
_MIDST_S = {
    Scheme.MEMBER: ((3.0, 10.0), (8.0, 15.0), (8.0, 15.0), (2.0, 8.0)),
    Scheme.REBUILD: ((0.5, 8.0), (2.0, 10.0)),
    Scheme.REPAIR: ((0.2, 3.0), (1.0, 6.0)),
}
"""The pauses between the kills during a renewal.

Chosen: a Spark that joins takes 15 s to start, a table 1 to 3 s to be copied.
"""
_COPY_STEPS = (f"{Step.COPIED_TABLE}:1", f"{Step.COPIED_TABLE}:2", f"{Step.COPIED}:1")
_REPAIR_STEPS = (f"{Step.COPIED_TABLE}:1",)
_BEYOND_HAPROCS = {
    Scheme.SPARK: {Target.SPARK},
    Scheme.BOTH: {Target.SPARK, Target.HAPROC},
    Scheme.FREEZE_SPARK: {Target.SPARK},
    Scheme.BROKER: {Target.BROKER},
    Scheme.BROKER_RECOVERY: {Target.BROKER, Target.HAPROC},
    Scheme.FREEZE_BROKER: {Target.BROKER},
    Scheme.REDIS: {Target.REDIS},
    Scheme.FREEZE_REDIS: {Target.REDIS},
    Scheme.CUT: set[Target](),
}
"""The kinds of processes that a scheme strikes, unless they are HAProcs alone."""
_MODES = (Mode.REFUSE, Mode.STALL, Mode.DROP, Mode.DELAY)


@dataclass(frozen=True, slots=True)
class Fault:
    """One action, undone after ``lasts_s``."""

    at_s: float
    deed: Deed
    scheme: Scheme
    victims: tuple[Victim, ...] = ()
    link: str = ""
    mode: Mode = Mode.PASS
    step: str = ""
    """``STEP:COUNT``, in the form of HAPROC_FAULT."""
    lasts_s: float = 0.0

    def __str__(self) -> str:
        who = " and ".join(f"{target} {name}" for target, name in self.victims)
        what = f"{self.mode} {self.link}" if self.link else who
        step = f" at {self.step}" if self.step else ""
        return f"{self.at_s:.1f} s: {self.deed} {what}{step} for {self.lasts_s:.1f} s"


def plan(
    seed: int,
    clusters: Sequence[str],
    brokers: Sequence[str] = (),
    links: Sequence[str] = (),
    pace_s: float = 6.5,
    *,
    redis: bool = False,
    targets: Collection[Target] = tuple(Target),
    renewals: Collection[Scheme] = (),
) -> Iterator[Fault]:
    """Return the plan of a seed: faults in the order of their times, without an end.

    ``links`` may be cut; ``pace_s`` is the mean time between two faults; only processes of the
    kinds ``targets`` are struck; ``renewals``: the schemes of renewals to include.
    """
    weights = dict(_WEIGHTS)
    if brokers:
        weights |= _BROKER_WEIGHTS
    if redis:
        weights |= _REDIS_WEIGHTS
    if not links:
        del weights[Scheme.CUT]
    weights |= {scheme: _RENEWAL_WEIGHTS[scheme] for scheme in Scheme if scheme in renewals}
    chosen = {
        scheme: weight
        for scheme, weight in weights.items()
        if _BEYOND_HAPROCS.get(scheme, {Target.HAPROC}) <= set(targets)
    }
    return _Planner(seed, clusters, brokers, links, pace_s, chosen, targets).faults()


class _Planner:
    """The plan while it is generated."""

    def __init__(
        self,
        seed: int,
        clusters: Sequence[str],
        brokers: Sequence[str],
        links: Sequence[str],
        pace_s: float,
        weights: Mapping[Scheme, int],
        targets: Collection[Target],
    ) -> None:
        self._targets = [each for each in (Target.HAPROC, Target.SPARK) if each in targets]
        self._random = random.Random(f"plan {seed}")
        self._clusters = list(clusters)
        self._brokers = list(brokers)
        self._links = list(links)
        self._pace_s = pace_s
        self._busy_until: dict[Victim, float] = {}
        self._schemes = list(weights)
        self._weights = list(weights.values())

    def faults(self) -> Iterator[Fault]:
        """Yield faults for ever."""
        now = self._random.uniform(0.5, 0.8) * self._pace_s
        while True:
            (scheme,) = self._random.choices(self._schemes, self._weights)
            faults = self._make(scheme, now)
            yield from faults
            if faults:
                now = faults[-1].at_s
            now += self._random.uniform(0.4, 1.6) * self._pace_s

    def _make(self, scheme: Scheme, now: float) -> list[Fault]:
        match scheme:
            case Scheme.TWO:
                return self._two(now)
            case Scheme.ALL:
                victims = [(Target.HAPROC, name) for name in self._clusters]
                return self._kill(scheme, now, victims, self._random.uniform(0.2, 2.0))
            case Scheme.CUT:
                return self._cut(now)
            case Scheme.BROKER | Scheme.BROKER_RECOVERY | Scheme.FREEZE_BROKER:
                return self._broker(scheme, now)
            case Scheme.REDIS:
                return self._kill(scheme, now, [_REDIS], self._random.uniform(0.2, 4.0))
            case Scheme.FREEZE_REDIS:
                return self._freeze(scheme, now, _REDIS)
        if scheme is Scheme.MEMBER:
            return self._renewal(scheme, now, Fault(now, Deed.MEMBER, scheme, (_GUEST,)), GUEST)
        name = self._one_to_strike(now)
        if name is not None and scheme in _DEEDS:
            fault = Fault(now, _DEEDS[scheme], scheme, ((Target.HAPROC, name),))
            return self._renewal(scheme, now, fault, name)
        return [] if name is None else self._cluster(scheme, now, name)

    def _renewal(self, scheme: Scheme, now: float, fault: Fault, name: str) -> list[Fault]:
        """Return kills during a renewal: of the cluster itself, and of one that may be its donor.

        The last one is of the cluster itself.
        """
        others = [each for each in self._clusters if each != name and self._serves(each, now)]
        other = self._random.choice(others) if len(others) > 1 else name
        faults, midst_s = [fault], _MIDST_S[scheme]
        for number, pause_s in enumerate(midst_s, 1):
            now += self._random.uniform(*pause_s)
            struck = name if number == len(midst_s) else self._random.choice((name, other))
            target = self._random.choice(self._targets)
            if target is Target.HAPROC and struck == name and self._random.random() < 0.5:
                steps = _REPAIR_STEPS if scheme is Scheme.REPAIR else _COPY_STEPS
                armed = self._random.choice(steps)
                victims = ((target, struck),)
                self._break(victims[0], now, _RECOVERY_S[target])
                faults.append(Fault(now, Deed.STEP, scheme, victims, step=armed))
            else:
                faults += self._kill(scheme, now, [(target, struck)], self._random.uniform(0, 2))
        return faults

    def _cluster(self, scheme: Scheme, now: float, name: str) -> list[Fault]:
        haproc, spark = (Target.HAPROC, name), (Target.SPARK, name)
        pause_s = self._random.choice((0.0, self._random.uniform(0.5, 6.0)))
        match scheme:
            case Scheme.STEP:
                (step,) = self._random.choices(list(_STEPS), list(_STEPS.values()))
                armed = f"{step}:{self._random.choice((1, 1, 1, 2, 3))}"
                self._break(haproc, now, pause_s + _RECOVERY_S[Target.HAPROC])
                return [Fault(now, Deed.STEP, scheme, (haproc,), step=armed, lasts_s=pause_s)]
            case Scheme.TWICE:
                first = self._kill(scheme, now, [haproc], 0.0)
                later = now + self._random.uniform(1.5, 4.5)
                return [*first, *self._kill(scheme, later, [haproc], pause_s)]
            case Scheme.SPARK:
                return self._kill(scheme, now, [spark], pause_s)
            case Scheme.BOTH:
                return self._kill(scheme, now, [haproc, spark], pause_s)
            case Scheme.FREEZE_HAPROC | Scheme.FREEZE_SPARK:
                victim = haproc if scheme is Scheme.FREEZE_HAPROC else spark
                return self._freeze(scheme, now, victim)
        return self._kill(scheme, now, [haproc], pause_s)

    def _two(self, now: float) -> list[Fault]:
        names = self._random.sample(self._clusters, min(2, len(self._clusters)))
        rest = set(self._clusters) - set(names)
        if not any(self._serves(name, now) for name in rest):
            return []
        victims = [(Target.HAPROC, name) for name in names]
        return self._kill(Scheme.TWO, now, victims, self._random.uniform(0.2, 4.0))

    def _broker(self, scheme: Scheme, now: float) -> list[Fault]:
        broker = (Target.BROKER, self._random.choice(self._brokers))
        if self._busy_until.get(broker, 0.0) > now:
            return []
        pause_s = self._random.uniform(0.2, 4.0)
        if scheme is Scheme.FREEZE_BROKER:
            return self._freeze(scheme, now, broker)
        if scheme is Scheme.BROKER:
            return self._kill(scheme, now, [broker], pause_s)
        name = self._one_to_strike(now)
        if name is None:
            return []
        haproc = self._kill(scheme, now, [(Target.HAPROC, name)], 0.0)
        later = now + self._random.uniform(1.0, 4.0)
        return [*haproc, *self._kill(scheme, later, [broker], pause_s)]

    def _kill(
        self, scheme: Scheme, at_s: float, victims: Sequence[Victim], lasts_s: float
    ) -> list[Fault]:
        for victim in victims:
            self._break(victim, at_s, lasts_s + _RECOVERY_S[victim[0]])
        return [Fault(at_s, Deed.KILL, scheme, tuple(victims), lasts_s=lasts_s)]

    def _freeze(self, scheme: Scheme, now: float, victim: Victim) -> list[Fault]:
        lasts_s = self._random.uniform(0.5, 6.0)
        self._break(victim, now, lasts_s + 2.0)
        return [Fault(now, Deed.FREEZE, scheme, (victim,), lasts_s=lasts_s)]

    def _cut(self, now: float) -> list[Fault]:
        link, mode = self._random.choice(self._links), self._random.choice(_MODES)
        lasts_s = self._random.uniform(0.5, 6.0)
        return [Fault(now, Deed.CUT, Scheme.CUT, link=link, mode=mode, lasts_s=lasts_s)]

    def _break(self, victim: Victim, now: float, for_s: float) -> None:
        self._busy_until[victim] = max(self._busy_until.get(victim, 0.0), now + for_s)

    def _serves(self, name: str, now: float) -> bool:
        parts = ((Target.HAPROC, name), (Target.SPARK, name))
        return all(self._busy_until.get(part, 0.0) <= now for part in parts)

    def _one_to_strike(self, now: float) -> str | None:
        """Return a cluster that serves and is not the last one to serve; None if there is none."""
        serving = [name for name in self._clusters if self._serves(name, now)]
        return self._random.choice(serving) if len(serving) > 1 else None
