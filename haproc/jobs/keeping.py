"""Decides the steps of a HAProc for the ring's jobs, by the state of jobs and peers; no I/O.

Every HAProc decides for itself. If two take the same step, only the event that is stored first has
an effect (`haproc.jobs.model`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from haproc.jobs.model import BatchState, Job, JobAttempt

OTHERS_AFTER_MS: Final = 5_000
"""A job waits this long for the HAProc that received or ran it last; then any HAProc takes it."""
FORGET_AFTER_MS: Final = 3_600_000
"""An ended job is kept at least this long: clients repeat their requests for a shorter time."""


class Step(StrEnum):
    """The next step that a HAProc takes for a job."""

    START = "start"
    """Begin the next attempt of the job."""
    LOST = "lost"
    """Record that the job's attempt is lost, and that the job may not be restarted any more."""
    FENCE = "fence"
    """Fence the ended job in the log: its writes that are not in the log yet are refused."""


@dataclass(frozen=True, slots=True)
class RingView:
    """What this HAProc knows of the ring at a moment.

    - ``me``, ``incarnation``: this HAProc;
    - ``alive``: the incarnation of each peer that may still run jobs, None if not reported yet;
    - ``unjudged``: the peers of which it is not known yet if they live;
    - ``here``: the names of the attempts that run on this HAProc;
    - ``serving``: True if this HAProc may take jobs;
    - ``room``: the number of jobs that it may start.
    """

    me: str
    incarnation: str
    alive: Mapping[str, str | None]
    unjudged: frozenset[str]
    here: frozenset[str]
    serving: bool
    room: int
    now_ms: int


def is_gone(cluster: str, incarnation: str, seen: RingView) -> bool:
    """True if this incarnation of the HAProc of ``cluster`` has surely ended."""
    if cluster == seen.me:
        return incarnation != seen.incarnation
    if cluster in seen.unjudged:
        return False
    if cluster not in seen.alive:
        return True
    now = seen.alive[cluster]
    return now is not None and now != incarnation


def is_lost(attempt: JobAttempt, seen: RingView) -> bool:
    """True if the HAProc that ran the attempt does not run it any more."""
    mine = (attempt.cluster, attempt.incarnation) == (seen.me, seen.incarnation)
    if mine:
        return attempt.name not in seen.here
    return is_gone(attempt.cluster, attempt.incarnation, seen)


def steps(jobs: Iterable[Job], seen: RingView) -> list[tuple[Step, Job]]:
    """Return the steps to take now, each with its job; at most ``room`` of them start a job."""
    if not seen.serving:
        return []
    found: list[tuple[Step, Job]] = []
    waiting: list[Job] = []
    running: Counter[str] = Counter()
    for job in sorted(jobs, key=lambda each: each.id):
        step = _step(job, seen)
        if step is Step.START:
            waiting.append(job)
        elif step is not None:
            found.append((step, job))
        elif job.state is BatchState.RUNNING:
            running[job.submission.user] += 1
    return found + [(Step.START, job) for job in _in_turn(waiting, running, seen.room)]


def _in_turn(waiting: list[Job], running: Counter[str], room: int) -> list[Job]:
    """Return the jobs to start: again and again the oldest of the user with the fewest running.

    So a user with many jobs does not delay the jobs of others.
    """
    found: list[Job] = []
    while len(found) < min(room, len(waiting)):
        left = (job for job in waiting if job not in found)
        job = min(left, key=lambda each: (running[each.submission.user], each.id))
        running[job.submission.user] += 1
        found.append(job)
    return found


def _step(job: Job, seen: RingView) -> Step | None:
    current = job.current
    if job.final is not None:
        if current is None or not job.to_fence:
            return None
        due = _mine_or_due(current.cluster, current.incarnation, job.final.at_ms, seen)
        return Step.FENCE if due else None
    if current is None:
        submission = job.submission
        due = _mine_or_due(submission.cluster, submission.incarnation, submission.at_ms, seen)
        return Step.START if due else None
    if job.ended is not None:
        due = _mine_or_due(current.cluster, current.incarnation, job.ended.at_ms, seen)
        return Step.START if due else None
    if not is_lost(current, seen):
        return None
    return Step.START if job.restarts_left > 0 else Step.LOST


def _mine_or_due(cluster: str, incarnation: str, since_ms: int, seen: RingView) -> bool:
    if cluster == seen.me or is_gone(cluster, incarnation, seen):
        return True
    return seen.now_ms - since_ms >= OTHERS_AFTER_MS


def forgettable(jobs: Iterable[Job], kept_ms: int, kept_max: int, now_ms: int) -> list[Job]:
    """Return the ended jobs to delete: those that are too old or too many, oldest first."""
    ended = sorted(
        (job for job in jobs if job.final is not None),
        key=lambda job: job.final.at_ms if job.final is not None else 0,
    )
    too_many = len(ended) - kept_max
    found = []
    for place, job in enumerate(ended):
        age_ms = now_ms - (job.final.at_ms if job.final is not None else 0)
        if age_ms >= kept_ms or (place < too_many and age_ms >= FORGET_AFTER_MS):
            found.append(job)
    return found
