"""Batch jobs: keys below ``jobs``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job that the ring submits by itself, once at each of its times."""

    name: str
    """Name of the schedule and its jobs."""
    file: str
    """The program, as in a request: a path in one of the folders."""
    every_s: float | None = None
    """The job runs at multiples of so many seconds since 1970. Set either this or ``cron``."""
    cron: str | None = None
    """A cron expression, in UTC. Set either this or ``every_s``."""
    args: tuple[str, ...] = ()
    """Arguments of the program."""
    restarts: int | None = None
    """Restarts after a failure, as ``haproc.restart`` of a request; 0 without it."""
    user: str | None = None
    """The user as whom the jobs run; required if there are ``users``."""


class Isolation(StrEnum):
    """How the programs of jobs are separated from HAProc."""

    BUBBLEWRAP = "bubblewrap"
    """A sandbox: namespaces, and only the listed files."""
    USER = "user"
    """Another user of the system, `jobs.user`; HAProc must be root."""
    NONE = "none"
    """No separation: programs may do everything that HAProc may do."""


class UnknownFields(StrEnum):
    """What happens to a request for a job with fields or settings that HAProc does not support."""

    REFUSE = "refuse"
    IGNORE = "ignore"
    """The job is accepted; HAProc logs the ignored fields."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Batch jobs: Python programs that run beside the HAProcs."""

    enabled: bool = False
    """Accept jobs. They run users' programs on the HAProcs' machines."""
    folders: tuple[Path, ...] = ()
    """Folders with files that may be run by name; other files must be sent with the request."""
    python: Path | None = None
    """The interpreter, with PySpark. Without it: HAProc's own."""
    isolation: Isolation = Isolation.BUBBLEWRAP
    """Separation of programs from HAProc: ``bubblewrap`` (a sandbox), ``user`` (another user of the
    system) or ``none``. If the host does not support it, HAProc does not start, and reports the
    reason."""
    user: str | None = None
    """The system's user as whom programs run; HAProc must be root then. Without it, programs run as
    HAProc's user, or as ``nobody`` in the sandbox of a HAProc that is root."""
    readable: tuple[Path, ...] = ()
    """Further files and folders that are visible in the sandbox of programs, read-only."""
    environment: tuple[str, ...] = ()
    """Environment variables that programs get from HAProc, and that a request may set."""
    running_max: int = 4
    """Programs that one HAProc runs at the same time; more wait."""
    jobs_max: int = 200
    """Jobs of the ring that have not ended; the next one is answered 429. A user has a share."""
    restarts_max: int = 100
    """The highest number of restarts in a request."""
    memory_bytes_max: int = 4 << 30
    """Address space of each process of a program, stacks and libraries included (PySpark alone
    takes 1.5 GiB). Also the memory of all processes of a program together, checked every second."""
    cpu_s: float = 86_400.0
    """CPU time of each process of a program."""
    wall_s: float = 86_400.0
    """Duration of each attempt."""
    processes_max: int = 256
    """Processes and threads of a program; with ``jobs.isolation: user``, of all programs together;
    with ``none`` they are not limited."""
    disk_bytes_max: int = 4 << 30
    """Size of a program's folder (checked about every second), and of the largest file that it may
    write."""
    disk_free_bytes_min: int = 1 << 30
    """When the filesystem of ``state_dir`` has less free space, HAProc ends all its programs
    (checked five times a second). Only this check sees deleted files that a program holds open.
    Chosen, not measured."""
    output_bytes_max: int = 256 << 20
    """Output of a program; a program with more output is ended."""
    log_bytes: int = 1 << 20
    """The size of the end of the output that the ring keeps."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """Treatment of fields and settings of a request that HAProc does not support, such as Livy's
    for a driver in a JVM (executorMemory). ``refuse``: the job is refused; ``ignore``: HAProc logs
    what it ignored."""
    files_bytes_max: int = 32 << 20
    """Size of all files of a job together. Chosen: the key-value store keeps each as one value."""
    kept_s: float = 604_800.0
    """Time for which the result of a job is kept."""
    kept_max: int = 1000
    """Ended jobs that are kept. Beyond it the oldest are deleted, but none within an hour."""
    schedules: tuple[Schedule, ...] = ()
    """Jobs that the ring submits by itself, once at each of their times."""
