"""Submits the jobs of the configuration's schedules when they are due; see `schedules`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from haproc.config.jobs import Schedule
from haproc.failure import RequestError
from haproc.jobs.schedules import Turn, request_id, slot, turn
from haproc.jobs.service import JobService

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0


class Scheduler:
    """See the module. ``leads``: whether this HAProc is the one that submits now."""

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
        """The last slot of each schedule that has its job."""
        self._logged: dict[str, str] = {}
        """Why a schedule's slot could not be submitted at the last look."""

    async def run(self) -> NoReturn:
        """Submit what is due until cancelled."""
        while True:
            if self._leads():
                for schedule in self._schedules:
                    await self.look(schedule)
            await asyncio.sleep(LOOK_S)

    async def look(self, schedule: Schedule) -> None:
        """Submit a schedule's job if a slot is due that was not yet."""
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
            match turn(schedule, at, await self._service.asked_by(user)):
                case Turn.WAIT:
                    self._tell(schedule, "its job before has not ended")
                    return
                case Turn.NOW:
                    await self._service.submit(user, body, (), request_id(schedule, at))
                case Turn.DONE:
                    pass
        except RequestError as error:
            self._tell(schedule, str(error))
            return
        self._done[schedule.name] = at
        self._logged.pop(schedule.name, None)

    def _tell(self, schedule: Schedule, why: str) -> None:
        """Say it once: it is looked at every second."""
        if self._logged.get(schedule.name) != why:
            self._logged[schedule.name] = why
            logger.warning("schedule %s cannot be submitted: %s", schedule.name, why)
