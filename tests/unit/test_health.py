"""Tests of a cluster's health: when it counts as up, by the results of its probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from haproc.engine.errors import REFUSED, EngineError, ErrorKind
from haproc.failure import ErrorClass
from haproc.membership.health import Health
from tests.simulation.clock import run

OK = None
SLOW = EngineError(ErrorKind.AVAILABILITY, "no answer in time", error_class="DEADLINE")
GONE = EngineError(ErrorKind.AVAILABILITY, "nobody listens", error_class=REFUSED)
SICK = EngineError(ErrorKind.ENVIRONMENT, "no executors")
HELD = EngineError(ErrorKind.AVAILABILITY, "no core is free", error_class=ErrorClass.CORES_HELD)
INTERVAL_S = 1.0


class Cluster:
    """Answers probes with the given results; the last one repeats."""

    def __init__(self, answers: Sequence[EngineError | None]) -> None:
        self._answers = list(answers)
        self.probed_at: list[float] = []

    async def probe(self) -> None:
        self.probed_at.append(asyncio.get_running_loop().time())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer is not None:
            raise answer


class Watched:
    """A cluster, its health, and every reported change."""

    def __init__(
        self,
        answers: Sequence[EngineError | None],
        is_last: Callable[[], bool] = lambda: False,
    ) -> None:
        self.cluster = Cluster(answers)
        self.changes: list[bool] = []
        self.health = Health(
            self.cluster.probe,
            interval_s=INTERVAL_S,
            missed_max=3,
            on_change=self._changed,
        )
        self.health.is_last = is_last

    def _changed(self, up: bool, error: str) -> None:
        """Record a change of state; a reason that becomes known for a DOWN is no change."""
        assert up == self.health.up.is_set() and error == self.health.error
        if up or (self.changes and self.changes[-1]):
            self.changes.append(up)


async def watching(watched: Watched, seconds: float) -> None:
    task = asyncio.create_task(watched.health.run_forever())
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("answers", "changes"),
    [
        ([OK, OK, OK], [True]),
        # never up: nothing to tell
        ([GONE, SLOW, SICK], []),
        ([GONE, GONE, OK], [True]),
        # a refused connection is down at once, a slow or sick cluster only after three in a row
        ([OK, GONE], [True, False]),
        ([OK, SLOW, SLOW], [True]),
        ([OK, SLOW, SLOW, SLOW], [True, False]),
        ([OK, SICK, SLOW, SICK], [True, False]),
        ([OK, SLOW, SLOW, OK, SLOW, SLOW], [True]),
        # one answer brings it back
        ([OK, GONE, OK], [True, False, True]),
        ([OK, GONE, GONE, GONE, OK, GONE], [True, False, True, False]),
    ],
)
def test_health_changes_by_the_results_of_the_probes(
    answers: list[EngineError | None], changes: list[bool]
) -> None:
    watched = Watched(answers)
    run(watching(watched, (len(answers) - 0.5) * INTERVAL_S))
    assert len(watched.cluster.probed_at) == len(answers)
    assert watched.changes == changes
    assert watched.health.up.is_set() is bool(changes and changes[-1])


def test_cluster_without_a_free_core_stays_up_only_while_no_other_one_serves() -> None:
    others = [OK, HELD, HELD, HELD, HELD]
    leaves = Watched(others)
    run(watching(leaves, 4.5 * INTERVAL_S))
    assert leaves.changes == [True, False]
    last = Watched([*others, SLOW, SLOW, SLOW], is_last=lambda: True)
    run(watching(last, 4.5 * INTERVAL_S))
    assert last.changes == [True]
    answered = Watched([*others, SLOW, SLOW, SLOW], is_last=lambda: True)
    run(watching(answered, 7.5 * INTERVAL_S))
    assert answered.changes == [True, False], "a silent one leaves in any case"


def test_refused_connection_is_reported_at_each_probe() -> None:
    watched, refused_probes = Watched([OK, SLOW, GONE, GONE, SICK]), list[int]()
    watched.health.on_gone = lambda: refused_probes.append(len(watched.cluster.probed_at))
    run(watching(watched, 4.5 * INTERVAL_S))
    assert refused_probes == [3, 4]


def test_health_error_is_the_result_of_the_last_probe() -> None:
    watched = Watched([GONE])
    run(watching(watched, 0.5))
    assert watched.health.error == f"{REFUSED}: nobody listens"
    well = Watched([OK])
    run(watching(well, 0.5))
    assert well.health.error == ""


def test_suspect_starts_a_probe_at_once() -> None:
    watched = Watched([OK, GONE])

    async def main() -> None:
        task = asyncio.create_task(watching(watched, 0.5))
        await asyncio.sleep(0.2)
        watched.health.suspect("the connection broke")
        await task

    run(main())
    assert watched.cluster.probed_at == pytest.approx([0, 0.2])
    assert watched.changes == [True, False]


def test_suspect_called_without_end_causes_no_busy_loop_of_probes() -> None:
    watched = Watched([OK, GONE])

    async def suspicious() -> None:
        while True:
            watched.health.suspect("refused")
            await asyncio.sleep(0.001)

    async def main() -> None:
        suspecting = asyncio.create_task(suspicious())
        await watching(watched, 1.0)
        suspecting.cancel()

    run(main())
    assert len(watched.cluster.probed_at) < 100
