"""When a schedule's jobs are due. Pure.

The slots of a schedule are moments that everybody computes alike: multiples of its interval since
1970, or those of its cron expression, in UTC. The live HAProc with the lowest name submits a slot's
job, under a request id made of the schedule's name and the slot: whoever else believes to be the
one, or asks again, finds that job. Jobs of one schedule do not run side by side: one that takes
longer than the interval, or hangs, does not take up the ring.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

from cronsim import CronSim

from haproc.config.jobs import Schedule
from haproc.jobs.model import Job

LATE_MAX_S: Final = 600.0
"""A slot that nobody submitted in this time, since no HAProc lived, is passed over."""


def slot(schedule: Schedule, now_s: float) -> int | None:
    """Return the newest slot that is due, in seconds since 1970; None if it is long over."""
    if schedule.every_s is not None:
        found = int(now_s // schedule.every_s * schedule.every_s)
    else:
        behind = datetime.fromtimestamp(int(now_s) + 1, UTC)
        found = int(next(CronSim(schedule.cron or "", behind, reverse=True)).timestamp())
    return found if now_s - found <= LATE_MAX_S else None


def request_id(schedule: Schedule, at: int) -> str:
    """Return the id under which a slot's job is asked for."""
    return f"schedule:{schedule.name}:{at}"


class Turn(Enum):
    """What is to be done about a slot."""

    NOW = auto()
    """Its job is to be submitted."""
    DONE = auto()
    """It has a job, whatever the schedule has become since."""
    WAIT = auto()
    """A job of an earlier slot has not ended."""


def turn(schedule: Schedule, at: int, jobs: Mapping[str, Job]) -> Turn:
    """Return what is to be done about a slot; ``jobs``: its user's, by their request ids."""
    if request_id(schedule, at) in jobs:
        return Turn.DONE
    mine = f"schedule:{schedule.name}:"
    under_way = (key for key, job in jobs.items() if key.startswith(mine) and job.final is None)
    return Turn.NOW if next(under_way, None) is None else Turn.WAIT


def leads(me: str, ready: Iterable[str]) -> bool:
    """Whether this HAProc, which is READY, is the one that submits; ``ready``: peers that are."""
    return all(me < other for other in ready)
