"""Jobs' keys and bytes in the ring's key-value store. Pure.

Keys, each written once (so no late write takes anything back):

- ``job/asked/USER/REQUEST/NAME`` a submission. The revision of the first one under a request id
  **is the job's id**: a number that no other job of the ring has or will have, made without asking
  anybody;
- ``job/at/ID/…`` what happened to it: ``a/NUMBER.NAME`` an attempt, ``e/NAME`` an ending,
  ``k/NAME`` a kill, ``f/NAME`` that it was fenced after its end, ``s/ATTEMPT/SESSION`` a Spark
  session that an attempt uses;
- ``jobfile/STORED/INDEX`` the bytes of its files;
- ``joblog/ID/ATTEMPT/FROM-TO`` lines of its log, see `haproc.jobs.log`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from dmq.record import Json, Record, decode, encode
from haproc.jobs.model import (
    Ending,
    Event,
    Fenced,
    JobAttempt,
    JobFile,
    JobLimits,
    Kill,
    Outcome,
    Role,
    Submission,
)

JOBS: Final = "job/"
ASKED: Final = "job/asked/"
EVENTS: Final = "job/at/"
FILES: Final = "jobfile/"
LOGS: Final = "joblog/"
GRACE_MS: Final = 3_600_000
"""How long files wait for their job. Chosen: far above what clocks differ by."""


class UnknownJobRecordError(Exception):
    """A record was written by a later version, or is none of a job's."""


def asked_prefix(user: str, request_id: str) -> str:
    """Return below what the submissions under a request id are."""
    return f"{ASKED}{quote(user, safe='')}/{quote(request_id, safe='')}/"


def events_prefix(job_id: int) -> str:
    """Return below what all is that happened to a job."""
    return f"{EVENTS}{job_id:016}/"


def left_over(keys: Iterable[str], jobs: Mapping[int, Submission], now_ms: int) -> list[str]:
    """Return those of files and logs that are of no job, and never will be.

    A submission broke off, or its job was forgotten by a HAProc that died over it. Files come
    before the job that they are of, so young ones stay; ``stored`` begins with the time.
    """
    stored = {asked.stored for asked in jobs.values()}
    found = []
    for key in keys:
        head, of, *_ = key.split("/")
        if f"{head}/" == LOGS:
            alive = int(of) in jobs
        else:
            alive = of in stored or now_ms - int(of.partition("-")[0]) < GRACE_MS
        if not alive:
            found.append(key)
    return found


def session_key(job_id: int, attempt: str, session_id: str) -> str:
    """Return the key that notes that an attempt uses a Spark session."""
    return f"{events_prefix(job_id)}s/{attempt}/{quote(session_id, safe='')}"


def file_key(stored: str, index: int) -> str:
    """Return the key of a file's bytes."""
    return f"{FILES}{stored}/{index:03}"


def event_key(job_id: int, event: Event, name: str) -> str:
    """Return the key of an event; ``name`` is that of no other."""
    match event:
        case JobAttempt(number):
            return f"{events_prefix(job_id)}a/{number:03}.{name}"
        case Ending():
            return f"{events_prefix(job_id)}e/{name}"
        case Kill():
            return f"{events_prefix(job_id)}k/{name}"
        case Fenced():
            return f"{events_prefix(job_id)}f/{name}"


@dataclass(frozen=True, slots=True)
class KeyParts:
    """What a key stands for: an event's or a session's job, and what sort it is."""

    job_id: int
    sort: str
    rest: str


def place_of(key: str) -> KeyParts | None:
    """Return what a key below ``job/at/`` stands for."""
    number, _, rest = key.removeprefix(EVENTS).partition("/")
    sort, _, rest = rest.partition("/")
    return KeyParts(int(number), sort, unquote(rest)) if number.isdigit() and rest else None


# -- bytes -----------------------------------------------------------------------------------


def to_bytes(record: Submission | Event) -> bytes:
    """Return a record's bytes."""
    match record:
        case Submission():
            return encode(Record("job.asked", record.request_id, _of_submission(record)))
        case JobAttempt():
            names = ("number", "cluster", "incarnation", "token_sha256", "replaces", "log_from")
            return encode(Record("job.attempt", record.name, _some(record, (*names, "at_ms"))))
        case Ending():
            fields = _some(record, ("outcome", "code", "why", "at_ms"))
            return encode(Record("job.ending", record.attempt, fields))
        case Kill():
            return encode(Record("job.kill", "", _some(record, ("by", "at_ms"))))
        case Fenced():
            return encode(Record("job.fenced", "", _some(record, ("at_ms",))))


def submission_of(data: bytes) -> Submission:
    """Return the submission; raises UnknownJobRecordError and LogError."""
    record = decode(data)
    if record.kind != "job.asked":
        raise UnknownJobRecordError(record.kind)
    h: dict[str, Any] = dict(record.headers)
    files = tuple(JobFile(Role(role), name, size, sha) for role, name, size, sha in h.pop("files"))
    h |= {name: _pairs(h.pop(name)) for name in ("confs", "options", "environment")}
    limits = JobLimits(*h.pop("limits"))
    args = tuple(h.pop("args"))
    return Submission(request_id=record.key, args=args, files=files, limits=limits, **h)


def event_of(data: bytes) -> Event:
    """Return the event; raises UnknownJobRecordError and LogError."""
    record = decode(data)
    h: dict[str, Any] = dict(record.headers)
    match record.kind:
        case "job.attempt":
            return JobAttempt(name=record.key, **h)
        case "job.ending":
            return Ending(record.key, Outcome(h["outcome"]), h["code"], h["why"], h["at_ms"])
        case "job.kill":
            return Kill(h["by"], h["at_ms"])
        case "job.fenced":
            return Fenced(h["at_ms"])
        case other:
            raise UnknownJobRecordError(other)


def _of_submission(asked: Submission) -> dict[str, Json]:
    plain = ("user", "name", "restarts", "fingerprint", "proxy_user", "stored", "cluster")
    limits = asked.limits
    return {
        **_some(asked, (*plain, "incarnation", "at_ms")),
        "args": [*asked.args],
        "confs": [[*pair] for pair in asked.confs],
        "options": [[*pair] for pair in asked.options],
        "environment": [[*pair] for pair in asked.environment],
        "files": [[each.role.value, each.name, each.size, each.sha256] for each in asked.files],
        "limits": [limits.memory_bytes, limits.cpu_s, limits.wall_s],
    }


def _some(record: object, names: tuple[str, ...]) -> dict[str, Json]:
    return {name: getattr(record, name) for name in names}


def _pairs(given: Any) -> tuple[tuple[str, str], ...]:
    return tuple((key, value) for key, value in given)
