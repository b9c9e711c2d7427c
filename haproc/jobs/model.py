"""What a job is: its events, its environment, the times at which a schedule makes one; no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from cronsim import CronSim

from haproc.classify.rights import NOTHING, Rights
from haproc.config.jobs import Schedule

# A job, its events, and the state that follows from them. No I/O.
#
# Each event of a job is stored once under its own key and never changed. The store's changes have
# one order, the same for all HAProcs. So every HAProc computes the same job from its events in that
# order (`job_of`), and no HAProc needs to hold a lock:
#
# - an *attempt* counts if it replaces the job's last one, and only as often as the program
#   asked for restarts: of several HAProcs that start a job at once, exactly one does;
# - an *ending* counts if it is the last attempt's: the end of an older one means nothing;
# - a *kill* ends the job, unless it has ended.
#
# An attempt is valid while it is the last one of a job that has not ended. Its token is accepted
# only for that time (`haproc.jobs.book`), so an attempt that was given up is fenced.


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCESS = "success"
    FAILED = "failed"
    """The program ended with another code than 0, or by a signal."""
    LIMIT = "limit"
    """The attempt reached one of its limits."""
    LOST = "lost"
    """The HAProc that ran it is gone, or was stopped."""
    ERROR = "error"
    """The attempt could not be started."""
    KILLED = "killed"
    """A user or an operator killed the job."""


RESTARTABLE = frozenset({Outcome.FAILED, Outcome.LOST})
"""The outcomes after which the job may be restarted: another attempt may end differently."""


class BatchState(StrEnum):
    """A job's state, by the names that Apache Livy has for a batch."""

    NOT_STARTED = "not_started"
    STARTING = "starting"
    """An attempt has ended, and the next one is about to begin."""
    RUNNING = "running"
    SUCCESS = "success"
    DEAD = "dead"
    KILLED = "killed"
    ERROR = "error"


_FINAL = {
    Outcome.SUCCESS: BatchState.SUCCESS,
    Outcome.FAILED: BatchState.DEAD,
    Outcome.LIMIT: BatchState.DEAD,
    Outcome.LOST: BatchState.DEAD,
    Outcome.ERROR: BatchState.ERROR,
    Outcome.KILLED: BatchState.KILLED,
}


class FileRole(StrEnum):
    """What a file of a job is for."""

    PROGRAM = "program"
    MODULE = "module"
    """A module that the program can import, from ``pyFiles`` of the request."""
    DATA = "data"
    """A file in the program's working folder, from ``files`` of the request."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of a job: its name without folders; its bytes have a key of their own."""

    role: FileRole
    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class JobLimits:
    """The limits of one job: bytes of address space, seconds of CPU time and of elapsed time."""

    memory_bytes: int
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Submission:
    """The request for a job, as it is stored.

    - ``fingerprint``: a hash of the request. It tells a repetition of the request from another
      request under the same id;
    - ``stored``: the name under which the files' bytes are stored;
    - ``cluster``, ``incarnation``: the HAProc that received the request, and its incarnation.
    """

    user: str
    request_id: str
    name: str | None
    args: tuple[str, ...]
    confs: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    files: tuple[JobFile, ...]
    limits: JobLimits
    restarts: int
    fingerprint: str
    proxy_user: str | None = None
    stored: str = ""
    cluster: str = ""
    incarnation: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class GrantedSubmission(Submission):
    """A submission with its user's rights, which a provider's token gave; others are configured.

    It is a record of its own kind: a HAProc that does not know of rights must not run it.
    """

    rights: Rights = NOTHING


def granted(submission: Submission, rights: Rights) -> GrantedSubmission:
    """Return the submission with the rights of its user added."""
    values = {each.name: getattr(submission, each.name) for each in fields(Submission)}
    return GrantedSubmission(**values, rights=rights)


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """The event that a HAProc begins an attempt of the job.

    ``replaces``: the name of the attempt before, empty for the first one. ``log_from``: the number
    of its first line in the job's output.
    """

    number: int
    name: str
    cluster: str
    incarnation: str
    token_sha256: str
    replaces: str
    log_from: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The event that an attempt has ended.

    ``code``: the program's exit code (negative: the signal that ended it), None without one.
    """

    attempt: str
    outcome: Outcome
    code: int | None
    why: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Kill:
    """The event that a user or operator asked to end the job."""

    by: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Fenced:
    """The event that the ended job was fenced in the ring's log, which refuses later writes."""

    at_ms: int


Event: TypeAlias = JobAttempt | Ending | Kill | Fenced


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its events make it.

    ``ended``: the end of the last attempt; ``final``: the end of the whole job. None: not ended.
    """

    id: int
    submission: Submission
    attempts: tuple[JobAttempt, ...] = ()
    ended: Ending | None = None
    final: Ending | None = None
    sessions: tuple[tuple[str, str], ...] = field(default=())
    """The Spark sessions that the attempts have used: pairs of an attempt's name and a session
    id."""
    fenced: bool = False
    """True if a fence of the job was appended to the ring's log after the job's end."""

    @property
    def current(self) -> JobAttempt | None:
        """The last attempt; None if none has begun."""
        return self.attempts[-1] if self.attempts else None

    @property
    def restarts_left(self) -> int:
        """The number of restarts that the job may still have."""
        return self.submission.restarts + 1 - max(1, len(self.attempts))

    @property
    def state(self) -> BatchState:
        """The job's state, by the name that Apache Livy has for it."""
        if self.final is not None:
            return _FINAL[self.final.outcome]
        if self.current is None:
            return BatchState.NOT_STARTED
        return BatchState.STARTING if self.ended is not None else BatchState.RUNNING

    @property
    def to_fence(self) -> bool:
        """True if a fence must still be appended: a write of the ended job may be on its way.

        A job that ended with success has waited for all its writes.
        """
        well = self.final is None or self.final.outcome is Outcome.SUCCESS
        return not (well or self.fenced or self.current is None)

    def valid(self, attempt: str) -> bool:
        """True if ``attempt`` is the last one and neither it nor the job has ended."""
        current = self.current
        alive = self.final is None and self.ended is None
        return alive and current is not None and current.name == attempt

    def program(self) -> str:
        """Return the name of the program's file."""
        return next(each.name for each in self.submission.files if each.role is FileRole.PROGRAM)


def job_of(
    job_id: int,
    submission: Submission,
    events: Sequence[tuple[int, Event]],
    sessions: Sequence[tuple[str, str]] = (),
) -> Job:
    """Return the job that results from its events: pairs of revision and event.

    The revision is that of the key-value store; it gives the order. An event that comes too late,
    such as a second start of the same attempt, has no effect.
    """
    attempts: list[JobAttempt] = []
    ended: Ending | None = None
    final: Ending | None = None
    fenced = False
    for _, event in sorted(events, key=lambda each: each[0]):
        if final is not None:
            fenced = fenced or isinstance(event, Fenced)
            continue
        current = attempts[-1].name if attempts else ""
        match event:
            case JobAttempt():
                if event.replaces == current and len(attempts) <= submission.restarts:
                    attempts.append(event)
                    ended = None
            case Ending():
                if event.attempt == current and attempts and ended is None:
                    ended = event
                    again = event.outcome in RESTARTABLE and len(attempts) <= submission.restarts
                    final = None if again else event
            case Kill():
                final = Ending(current, Outcome.KILLED, None, f"killed by {event.by}", event.at_ms)
    return Job(job_id, submission, tuple(attempts), ended, final, tuple(sessions), fenced)


def requested(revisions: Mapping[str, int]) -> str:
    """Return the key of the first of several submissions under one request id: that makes the job.

    ``revisions``: the store's revision of each submission, by its key.
    """
    return min(revisions, key=lambda key: revisions[key])


# The times of a schedule's jobs. No I/O.
#
# The slots of a schedule are times that every HAProc computes alike: multiples of its interval
# since 1970, or those of its cron expression, in UTC. The live HAProc with the lowest name submits
# a slot's job. Its request id is made of the schedule's name and the slot, so a second HAProc that
# also submits it, or a repetition, finds that job. A schedule's next job waits for the end of the
# one before, so a job that hangs does not fill the ring.


LATE_MAX_S: Final = 600.0
"""The longest delay, in seconds, of a schedule's job: a slot (time at which it is due) that no
HAProc submitted until then is skipped."""


def slot(schedule: Schedule, now_s: float) -> int | None:
    """Return the last time at which a schedule was due (its slot), in seconds since 1970.

    None if that is too long ago.
    """
    if schedule.every_s is not None:
        found = int(now_s // schedule.every_s * schedule.every_s)
    else:
        behind = datetime.fromtimestamp(int(now_s) + 1, UTC)
        found = int(next(CronSim(schedule.cron or "", behind, reverse=True)).timestamp())
    return found if now_s - found <= LATE_MAX_S else None


def request_id(schedule: Schedule, at: int) -> str:
    """Return the request id for the job of a schedule that was due at the time ``at``."""
    return f"schedule:{schedule.name}:{at}"


class Turn(Enum):
    """What to do about a slot: a time at which a schedule is due."""

    NOW = auto()
    """The job must be submitted."""
    DONE = auto()
    """The slot's job was submitted already, even if the schedule was changed since."""
    WAIT = auto()
    """Submit nothing now: a job of an earlier slot has not ended."""


def turn(schedule: Schedule, at: int, jobs: Mapping[str, Job]) -> Turn:
    """Return what to do about the slot ``at``; ``jobs``: the user's jobs by request id."""
    if request_id(schedule, at) in jobs:
        return Turn.DONE
    mine = f"schedule:{schedule.name}:"
    under_way = (key for key, job in jobs.items() if key.startswith(mine) and job.final is None)
    return Turn.NOW if next(under_way, None) is None else Turn.WAIT


def leads(me: str, ready: Iterable[str]) -> bool:
    """True if this HAProc is the one that submits the schedules' jobs: it has the lowest name.

    This HAProc must be READY; ``ready``: the READY peers.
    """
    return all(me < other for other in ready)


# The environment of a job's program: only the listed variables of HAProc. No I/O.


SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
JOB_VARIABLE = "HAPROC_JOB_ID"
ATTEMPT_VARIABLE = "HAPROC_JOB_ATTEMPT"
AFTER_VARIABLE = "HACLIENT_AFTER_OFFSET"


def environment(
    job: Job,
    attempt: int,
    folder: Path,
    ring: Mapping[str, str],
    passed: Mapping[str, str],
    python: Path,
) -> dict[str, str]:
    """Return the environment variables of a job's program.

    ``passed``: variables of HAProc that jobs get; ``ring``: the ring's addresses, and the token.
    """
    confs = dict(job.submission.confs)
    return {
        **passed,
        **dict(job.submission.environment),
        "PATH": f"{python.parent}:{SYSTEM_PATH}",
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": ":".join(str(each) for each in module_path(folder, job.submission.files)),
        "PYTHONUNBUFFERED": "1",
        **ring,
        "SPARK_CONNECT_MODE_ENABLED": "1",
        "PYSPARK_REMOTE_INIT_CONF_LEN": "1",
        "PYSPARK_REMOTE_INIT_CONF_0": json.dumps(confs),
        JOB_VARIABLE: str(job.id),
        ATTEMPT_VARIABLE: str(attempt),
    }


def module_path(folder: Path, files: Sequence[JobFile]) -> list[Path]:
    """Return the places from which the program imports: a folder, and each archive of modules."""
    modules = folder / "modules"
    archives = [each.name for each in files if each.role is FileRole.MODULE]
    return [modules, *(modules / name for name in archives if not name.endswith(".py"))]


def ring_variables(
    port: int,
    servers: Sequence[str],
    token: str,
    options: Sequence[tuple[str, str]],
    after_offset: int,
) -> dict[str, str]:
    """Return the variables by which PySpark and haclient in a program find the ring.

    ``port``: of Spark Connect, on loopback; ``servers``: the client doors. ``after_offset``: the
    program's queries show the log's records below this offset.
    """
    fresh = {"haproc.after_offset": str(after_offset)} if after_offset else {}
    return {
        "SPARK_REMOTE": remote_url(port, token, sorted({**fresh, **dict(options)}.items())),
        "HACLIENT_SERVERS": ",".join(servers),
        "HACLIENT_TOKEN": token,
        AFTER_VARIABLE: str(after_offset),
    }


def remote_url(port: int, token: str, options: Sequence[tuple[str, str]]) -> str:
    """Return the URL by which a job's PySpark reaches the ring: a port on loopback, and its token.

    The host's name is one to which PySpark sends a token without TLS.
    """
    given = "".join(f";{key.replace('.', '-')}={quote(value)}" for key, value in options)
    return f"sc://localhost:{port}/;token={token}{given}"


def placed(file: JobFile) -> str:
    """Return the path of a job's file inside the job's working folder."""
    return f"modules/{file.name}" if file.role is FileRole.MODULE else file.name
