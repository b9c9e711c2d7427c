"""One story at a time on a simulated ring, with no faults except those of the story.

A `Stage` is a ring that has settled. Faults are placed at a step of a node's life (`at`), and the
clusters' commits are recorded, each with its virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from haproc.classify.model import Kind, OperationClass
from haproc.config.model import Timeouts
from haproc.config.sections import Limits
from haproc.failure import RequestError
from haproc.membership.state import State, Undecided
from haproc.replicate.member.steps import Step
from haproc.replicate.operators import Operators
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import (
    Decision,
    FailureReport,
    Filler,
    Message,
    Operation,
)
from haproc.replicate.replica import Replica
from tests.simulation.clock import run
from tests.simulation.life import Life
from tests.simulation.queries import SimReading
from tests.simulation.ring import LIMITS, TIMEOUTS, Node, Ring
from tests.simulation.scenario import operation
from tests.simulation.violations import Violated, Violation, in_time

T = TypeVar("T")
CREATE = "CREATE TABLE t (x)"


def ddl(origin: str, op_id: str = "create", sql: str = CREATE, **fields: Any) -> Operation:
    """Return a synchronous operation whose origin is this node."""
    return replace(operation(op_id, Kind.CREATE_TABLE, sql, origin), **fields)


def parallel(origin: str, op_id: str = "create", sql: str = CREATE) -> Operation:
    """Return one that is sent to the other clusters at the same time."""
    return ddl(origin, op_id, sql, operation_class=OperationClass.SYNCHRONOUS_PARALLEL)


class Stage:
    """See the module."""

    def __init__(
        self, seed: int, limits: Limits = LIMITS, timeouts: Timeouts = TIMEOUTS, size: int = 3
    ) -> None:
        self.ring = Ring(seed, size, limits=limits)
        self.ring.configure(timeouts=timeouts)
        self.commits: list[tuple[float, str, str]] = []
        self._faults: dict[tuple[str, Step], list[Callable[[Node], None]]] = {}
        self.struck: dict[tuple[str, Step], float] = {}
        self.ring.on_step = self._step
        for node in self.ring.nodes.values():
            node.spark.on_commit = self._committed

    def _committed(self, cluster: str, sql: str) -> None:
        self.commits.append((self.now, cluster, sql))

    def _step(self, node: Node, step: Step) -> None:
        faults = self._faults.get((node.name, step))
        if faults:
            self.struck[node.name, step] = self.now
            faults.pop(0)(node)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def at(self, name: str, step: Step, *faults: Callable[[Node], None]) -> None:
        """Strike a node when it reaches a step: the first time by the first fault, and so on."""
        self._faults[name, step] = list(faults)

    def node(self, name: str) -> Node:
        return self.ring.nodes[name]

    def replica(self, name: str) -> Replica:
        replica = self.node(name).replica
        assert replica is not None, f"{name} is dead"
        return replica

    def life(self, name: str) -> Life:
        life = self.node(name).life
        assert life is not None, f"{name} is dead"
        return life

    def reading(self, name: str, kind: type[SimReading] = SimReading) -> Any:
        """Return a session for queries on a cluster, which its process has."""
        return kind(self.node(name).spark, self.life(name).check)

    def state(self, name: str) -> State:
        return self.replica(name).core.condition.state

    def undecided(self, name: str) -> Undecided | None:
        replica = self.node(name).replica
        return None if replica is None else replica.core.condition.now.undecided

    def alive_state(self, name: str) -> State | None:
        replica = self.node(name).replica
        return None if replica is None else replica.core.condition.state

    def reason(self, name: str) -> str:
        replica = self.node(name).replica
        return "" if replica is None else replica.core.condition.reason

    def stuck_at(self, name: str) -> int | None:
        replica = self.node(name).replica
        return None if replica is None else replica.core.condition.now.stuck_at

    def operators(self, name: str) -> Operators:
        return self.replica(name).operators

    async def verify(self, name: str, trusted: str = "") -> Mapping[str, Any]:
        """Verify through one node, and return the findings once they are complete."""
        marker = (await self.operators(name).verify(trusted))["marker"]
        assert isinstance(marker, int)
        async with asyncio.timeout(300):
            while True:
                with contextlib.suppress(RequestError):  # not read from the log yet
                    found = await self.operators(name).verification(marker)
                    if found["complete"]:
                        return found
                await asyncio.sleep(0.1)

    async def submit(
        self, name: str, op: Operation, timeout_s: float = 30, age_s: float = 0
    ) -> OperationOutcome:
        _, outcome = await self.ring.submit(name, op, timeout_s, age_s)
        return outcome

    async def apply(
        self, name: str, op: Operation, timeout_s: float = 30, age_s: float = 0
    ) -> OperationOutcome:
        """Submit an operation, which must be applied."""
        outcome = await self.submit(name, op, timeout_s, age_s)
        assert outcome.status is OutcomeStatus.APPLIED
        return outcome

    def messages(self) -> list[Message | Filler]:
        """Return all messages in the log."""
        return self.ring.store.messages()

    def records(self, kind: type[T]) -> list[T]:
        """Return the records of one kind that the log holds."""
        return [message for message in self.messages() if isinstance(message, kind)]

    def report_of(self, name: str) -> FailureReport | None:
        """Return a cluster's newest report of an application error."""
        found = [report for report in self.records(FailureReport) if report.cluster == name]
        return found[-1] if found else None

    def decisions(self) -> list[tuple[str, str]]:
        """Return every decision in the log: its author and its verdict."""
        return [(decision.by, decision.verdict.value) for decision in self.records(Decision)]

    def order(self, sql: str = CREATE) -> list[str]:
        """Return the clusters that committed a statement, in the order of their commits."""
        return [cluster for _, cluster, text in sorted(self.commits) if text == sql]

    def tables(self, name: str) -> set[str]:
        return set(self.node(name).spark.dump())

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        """Wait for a condition; AssertionError if it does not become true."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            raise AssertionError("it never became true") from error

    async def ready(self, *names: str) -> None:
        """Wait until these nodes are READY and have applied the whole log."""

        def all_there() -> bool:
            return all(self.ring.settled_node(self.node(name)) for name in names)

        with in_time(self.not_ready):
            async with asyncio.timeout(60):
                while not all_there():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    async def equal(self, *names: str) -> None:
        """Wait until these nodes are READY; they hold the same."""
        await self.ready(*names)
        self.check_equal(*names)

    def not_ready(self) -> Violated:
        """Return the violation of a wait for READY: DIVERGED if a cluster is, with all states."""
        states = [(name, self.alive_state(name), self.reason(name)) for name in self.ring.nodes]
        known = any(state is State.DIVERGED for _, state, _ in states)
        return Violated(Violation.DIVERGED if known else Violation.NOT_READY, str(states))

    async def settle(self) -> None:
        """Start dead processes; wait until all are READY and have compared their outcomes."""
        for node in self.ring.nodes.values():
            node.thaw()
            node.start()
            node.spark.restart()
        with in_time(self.not_ready):
            await self.ring.settled()
        await asyncio.sleep(60)
        self.check_equal(*self.ring.names)

    def check_equal(self, *names: str) -> None:
        """Check that these clusters are in service and have the same content."""
        if self.ring.errors:
            raise Violated(Violation.CRASHED, repr(self.ring.errors))
        if any(self.alive_state(name) is not State.READY for name in names):
            raise self.not_ready()
        dumps = {name: self.node(name).spark.dump() for name in names}
        if any(dump != dumps[names[0]] for dump in dumps.values()):
            raise Violated(Violation.UNEQUAL, str(dumps))


P = ParamSpec("P")
ScriptRun: TypeAlias = Coroutine[Any, Any, None]
Script: TypeAlias = Callable[[Stage], ScriptRun]


def story(
    script: Script,
    seed: int = 1,
    limits: Limits = LIMITS,
    timeouts: Timeouts = TIMEOUTS,
    size: int = 3,
) -> None:
    """Run a story on a stage, in virtual time."""

    async def main() -> None:
        stage = Stage(seed, limits, timeouts, size)
        await stage.ring.begin()
        await script(stage)

    run(main())


async def as_it_is(stage: Stage) -> None:
    """Prepare nothing."""


def as_story(
    *,
    prepare: Script = as_it_is,
    limits: Limits = LIMITS,
    timeouts: Timeouts = TIMEOUTS,
    size: int = 3,
) -> Callable[[Callable[Concatenate[Stage, P], ScriptRun]], Callable[P, None]]:
    """Return a decorator that makes a test of a story.

    The story's first parameter is its stage; the others are the test's. ``prepare`` runs first.
    """

    def decorated(
        script: Callable[Concatenate[Stage, P], ScriptRun],
    ) -> Callable[P, None]:
        @functools.wraps(script)
        def test(*args: P.args, **kwargs: P.kwargs) -> None:
            async def whole(stage: Stage) -> None:
                await prepare(stage)
                await script(stage, *args, **kwargs)

            story(whole, limits=limits, timeouts=timeouts, size=size)

        signature = inspect.signature(script)
        _, *others = signature.parameters.values()
        test.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return test

    return decorated
