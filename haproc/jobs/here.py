"""What one HAProc does for the ring's jobs; with the scheduler that submits jobs."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from dmq.key_value import KeyValueStore
from haproc.config.jobs import Schedule
from haproc.config.model import Config
from haproc.config.tls import Certificates
from haproc.failure import RequestError
from haproc.jobs.book import Book, JobTokens, fence_name
from haproc.jobs.isolation import check_isolation
from haproc.jobs.model import Turn, leads, request_id, slot, turn
from haproc.jobs.relay import DoorAddress, Relay, Relays, client_doors, connect_doors
from haproc.jobs.runner import Around, Runner
from haproc.jobs.service import Check, JobService
from haproc.membership.members import Members
from haproc.membership.state import State
from haproc.replicate.replica import Replica

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0


class Scheduler:
    """Submits the jobs of the configuration's schedules when they are due.

    ``leads``: returns True if this HAProc is the one that submits now. See `haproc.jobs.model`.
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        service: JobService,
        anonymous: str,
        leads: Callable[[], bool],
        unix_ms: Callable[[], int],
    ) -> None:
        self._schedules = schedules
        self._service = service
        self._anonymous = anonymous
        self._leads = leads
        self._unix_ms = unix_ms
        self._done: dict[str, int] = {}
        """The last slot (time at which a schedule is due) whose job was submitted, by the
        schedule's name."""
        self._logged: dict[str, str] = {}
        """The reason why a schedule's job could not be submitted at the last check, by the
        schedule's name."""

    async def run_forever(self) -> NoReturn:
        """Submit the jobs that are due, until cancelled."""
        while True:
            if self._leads():
                for schedule in self._schedules:
                    await self.look(schedule)
            await asyncio.sleep(LOOK_S)

    async def look(self, schedule: Schedule) -> None:
        """Submit the job for the last time at which the schedule was due, unless that was done.

        Does nothing while a job of an earlier time runs.
        """
        at = slot(schedule, self._unix_ms() / 1000)
        if at is None or self._done.get(schedule.name) == at:
            return
        body: dict[str, Any] = {
            "file": schedule.file,
            "args": list(schedule.args),
            "name": schedule.name,
            "conf": {"haproc.restart": schedule.restarts or 0},
        }
        user = schedule.user or self._anonymous
        try:
            match turn(schedule, at, await self._service.jobs_of(user)):
                case Turn.WAIT:
                    self._warn_once(schedule, "its job before has not ended")
                    return
                case Turn.NOW:
                    await self._service.submit(user, body, (), request_id(schedule, at))
                case Turn.DONE:
                    pass
        except RequestError as error:
            self._warn_once(schedule, str(error))
            return
        self._done[schedule.name] = at
        self._logged.pop(schedule.name, None)

    def _warn_once(self, schedule: Schedule, why: str) -> None:
        """Write a reason to the program's log, once: the schedule is checked every second."""
        if self._logged.get(schedule.name) != why:
            self._logged[schedule.name] = why
            logger.warning("schedule %s cannot be submitted: %s", schedule.name, why)


# A HAProc's part in the ring's jobs.


@dataclass(frozen=True, slots=True)
class JobsHere:
    """The objects of this HAProc for jobs: its answers to requests, admission, and the runner."""

    service: JobService
    tokens: JobTokens
    runner: Runner
    scheduler: Scheduler


def incarnations(members: Members) -> dict[str, str | None]:
    """Return the peers that may still run jobs, with the incarnations that they reported last.

    None: not reported yet. A silent peer is included until no heartbeat came for a whole window.
    Clients leave it at once. But if it only paused, its programs would be ended for nothing.
    """
    return {
        name: peer.beat.incarnation if peer.beat is not None else None
        for name, peer in members.judged().items()
        if not members.is_gone(name)
    }


def jobs_folder(config: Config, me: str) -> Path:
    """Return the folder in which the working folders of a HAProc's jobs are."""
    return config.state_dir / "jobs" / me


async def check_jobs(config: Config, me: str) -> None:
    """Raise IsolationError if jobs are enabled and cannot be isolated as configured."""
    if config.jobs.enabled:
        await check_isolation(config.jobs, jobs_folder(config, me), config.state_dir)


def build_jobs(
    config: Config,
    members: Members,
    replica: Replica,
    store: KeyValueStore,
    close_session: Callable[[str, str], Awaitable[object]],
    unix_ms: Callable[[], int],
    anonymous: str,
    check: Check,
    certificates: Certificates | None = None,
) -> JobsHere | None:
    """Return this HAProc's objects for jobs; None if the ring takes no jobs.

    ``close_session`` closes a user's session at all HAProcs. ``anonymous``: the user of every
    request if no users are configured. ``check``: the check of an uploaded program.
    """
    if not config.jobs.enabled:
        return None
    me, incarnation = members.cluster, members.incarnation
    names = [cluster.name for cluster in config.clusters]

    def peers() -> tuple[dict[str, str | None], frozenset[str]]:
        return incarnations(members), members.unjudged()

    def relay(addresses: Sequence[DoorAddress]) -> Relay:
        def worth_trying() -> list[DoorAddress]:
            ready = members.ready()
            return [door for door in addresses if door.cluster == me or door.cluster in ready]

        return Relay(worth_trying, certificates)

    async def fence(job_id: int) -> int:
        return await replica.writes.fence(fence_name(job_id)) + 1

    around = Around(
        me,
        incarnation,
        [config.client_url(n) for n in sorted(names, key=lambda name: name != me)],
        jobs_folder(config, me),
        config.state_dir,
        peers,
        lambda: members.own().state is State.READY,
        close_session,
        fence,
        replica.applied,
        unix_ms,
    )
    book = Book(store, lambda: uuid.uuid4().hex)
    relays = Relays(
        relay(connect_doors(config, me)),
        relay(client_doors(config, me)) if certificates is not None else None,
    )
    runner = Runner(config.jobs, around, book, store, relays)
    service = JobService(config, (me, incarnation), book, store, fence, unix_ms, check)
    scheduler = Scheduler(
        config.jobs.schedules,
        service,
        anonymous,
        lambda: around.serving() and leads(me, members.ready()),
        unix_ms,
    )
    return JobsHere(service, JobTokens(book), runner, scheduler)
