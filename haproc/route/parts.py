"""Builds all objects that handle a request, and connects them with each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from haproc.classify.rules import Rules
from haproc.config.model import Config
from haproc.config.shares import Shares
from haproc.engine.confs import pool_of
from haproc.engine.errors import EngineError
from haproc.engine.interface import Engine
from haproc.failure import RequestError
from haproc.replicate.agree.assurance import Assurance
from haproc.replicate.member.core import Core
from haproc.replicate.replica import Replica
from haproc.route.attempts import AttachedResources, Attempts, Concerns
from haproc.route.caching import Caching, Counts, Narrowing, NoCounts, Repeatable
from haproc.route.classifying import Classifying, Understood
from haproc.route.making import Making, Showing
from haproc.route.model import Request
from haproc.route.offload import Inline, Texts
from haproc.route.planning import Planning
from haproc.route.readings import Readings
from haproc.route.reads import Reads
from haproc.route.ruling import Ruling
from haproc.route.session_statements import SessionStatements
from haproc.route.shared_sessions import ReadingSessions, SharedSessions
from haproc.sessions.sessions import Sessions


@dataclass(frozen=True, slots=True)
class Resources:
    """The objects and settings that the parts are built from."""

    config: Config
    replica: Replica
    engine: Engine
    rules: Rules
    assurance: Assurance
    reads: Reads
    sessions: Sessions
    texts: Texts = field(default_factory=Inline)
    counts: Counts = field(default_factory=NoCounts)


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that handle a request, one of each."""

    core: Core
    texts: Texts
    planning: Planning
    readings: Readings
    attempts: Attempts
    attached: AttachedResources
    classifying: Classifying
    concerns: Concerns
    ruling: Ruling
    making: Making
    narrowing: Narrowing
    caching: Caching
    shared: SharedSessions
    session_statements: SessionStatements

    @classmethod
    def of(
        cls,
        given: Resources,
        explained: Callable[[EngineError], RequestError],
        now: Callable[[], float],
    ) -> Parts:
        """Build all parts.

        ``explained`` returns the client's error for an EngineError; ``now`` the event loop's clock.
        """
        core, engine, texts = given.replica.core, given.engine, given.texts

        def epoch() -> int:
            return core.watermarks.definitions_applied

        planning = _planning(given.config, given.replica)
        reading = ReadingSessions(engine, epoch, now)
        readings = Readings(reading, epoch, texts, planning, core.timeouts.statement_s)
        attempts = Attempts(given.replica)
        classifying = Classifying(
            texts, given.rules, core.limits.bounds, readings.recognised, explained
        )
        more = given.rules.ask_for_concern
        ruling = Ruling(core, readings, texts)
        repeatable = Repeatable(core, readings)
        return cls(
            core,
            texts,
            planning,
            readings,
            attempts,
            AttachedResources(given.replica),
            classifying,
            Concerns(given.assurance, attempts, classifying, asks_for_more=more),
            ruling,
            Making(
                core,
                engine,
                readings,
                texts,
                classifying,
                attempts.ground,
                given.sessions.get_blob,
                given.replica.foresee,
                ruling,
                fanout_parallel=given.config.fanout_parallel,
            ),
            Narrowing(core, readings),
            Caching(core, given.config.cache, repeatable, given.counts),
            SharedSessions(lambda key, user: engine.session(key, pool=pool_of(user))),
            SessionStatements(core, given.sessions, classifying, ruling, given.config.defaults),
        )

    def showing(self, understood: Callable[[Request], Awaitable[Understood]]) -> Showing:
        """Build the object that shows clients how a statement would be treated.

        ``understood`` returns a request with its classification.
        """
        return Showing(self.core, self.texts, understood, self.readings, self.ruling)


def _planning(config: Config, replica: Replica) -> Planning:
    """Build the queue of statements for the cluster's driver.

    It is notified when the driver answers a probe or has ended, and when the cluster leaves
    service.
    """
    core, limits = replica.core, config.limits
    planning = Planning(
        Shares.of(limits.planned_max, config),
        Shares.of(limits.large_statements_max, config),
        wait_s=limits.statement_queue_s,
        departures=lambda: core.condition.departures,
        unavailable=replica.writes.unavailable,
    )
    core.health.on_answer = planning.probed
    core.health.on_gone = planning.driver_is_gone
    core.condition.on_departure = planning.cluster_left
    return planning
