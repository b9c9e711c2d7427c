"""All jobs of the ring, as the key-value store has them, and the tokens of their attempts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dmq import UnknownVersionError
from dmq.key_value import Kept, KeyValueStore
from haproc.classify.rights import Rights
from haproc.failure import ErrorClass, FailureKind, RequestError, refused
from haproc.jobs.model import Event, GrantedSubmission, Job, Submission, job_of, requested
from haproc.jobs.records import (
    EVENTS,
    JOBS,
    RECORDS,
    REQUESTED,
    event_key,
    events_prefix,
    place_of,
    request_prefix,
    session_key,
)
from haproc.sessions.durable import reached

SCAN_FROM: Final = 64
"""If at least this number of keys is new, one scan of the store reads them all."""


@dataclass(frozen=True, slots=True)
class StoredJobs:
    """The jobs in the key-value store by their ids, and the keys that belong to them."""

    jobs: dict[int, Job] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)
    """The key of each job's submission, by the job's id."""
    repeated: dict[int, list[str]] = field(default_factory=dict)
    """The keys of later submissions with the same request id, by the id of their job."""
    orphans: list[str] = field(default_factory=list)
    """The keys of events that deleted jobs left behind."""


class Book:
    """Reads and writes the jobs of the ring in the key-value store.

    A key is written once, so its value never changes: each call reads the list of keys, which is
    cheap, and then only the values of new keys.

    Methods raise RequestError of kind availability.
    """

    def __init__(self, store: KeyValueStore, new_name: Callable[[], str]) -> None:
        self._store = store
        self.new_name = new_name
        self._kept: dict[str, Kept] = {}
        self._found = StoredJobs()
        self._looking = asyncio.Lock()

    async def look(self) -> StoredJobs:
        """Return all jobs that were stored before this call."""
        async with self._looking:
            keys = set(await reached(self._store.keys(JOBS)))
            if keys == self._kept.keys():
                return self._found
            new = keys - self._kept.keys()
            if len(new) >= SCAN_FROM:
                self._kept = await reached(self._store.scan(JOBS))
            else:
                kept = {key: value for key, value in self._kept.items() if key in keys}
                for key in new:
                    value = await reached(self._store.get(key))
                    if value is not None:
                        kept[key] = value
                self._kept = kept
            try:
                self._found = found_in(self._kept)
            except UnknownVersionError as error:
                raise RequestError(
                    FailureKind.AVAILABILITY,
                    f"a later version wrote into the ring's jobs: {error}",
                    error_class=ErrorClass.JOB_VERSION,
                    hint="upgrade this HAProc; until then the others answer for the jobs",
                ) from error
            return self._found

    async def job(self, job_id: int) -> Job | None:
        """Return the job of this id; None if there is none."""
        return (await self.look()).jobs.get(job_id)

    async def submit(self, submission: Submission) -> Job:
        """Store a submission; return its job.

        That is the job of an earlier submission if one had the same request id.
        """
        key = request_prefix(submission.user, submission.request_id) + self.new_name()
        await reached(self._store.put(key, RECORDS.to_bytes(submission)))
        found = await self.look()
        job_id = next(
            number
            for number, winner in found.keys.items()
            if winner == key or key in found.repeated.get(number, ())
        )
        if found.keys[job_id] != key:
            await reached(self._store.delete(key))
        return found.jobs[job_id]

    async def store_event(self, job_id: int, event: Event) -> Job:
        """Store an event; return the job after it, which shows if the event had an effect."""
        key = event_key(job_id, event, self.new_name())
        await reached(self._store.put(key, RECORDS.to_bytes(event)))
        return (await self.look()).jobs[job_id]

    async def uses(self, job_id: int, attempt: str, session_id: str) -> None:
        """Store the fact that an attempt uses a Spark session."""
        await reached(self._store.put(session_key(job_id, attempt, session_id), b""))

    async def known(self, job_id: int) -> frozenset[str]:
        """Return the keys of a job's events."""
        return frozenset(await reached(self._store.keys(events_prefix(job_id))))

    async def drop(self, keys: list[str]) -> None:
        """Delete these keys from the store, in this order."""
        for key in keys:
            await reached(self._store.delete(key))


def found_in(kept: dict[str, Kept]) -> StoredJobs:
    """Return the jobs that these entries of the key-value store describe."""
    keys_of: dict[str, dict[str, int]] = defaultdict(dict)
    events: dict[int, list[tuple[int, Event]]] = defaultdict(list)
    sessions: dict[int, list[tuple[str, str]]] = defaultdict(list)
    below: dict[int, list[str]] = defaultdict(list)
    for key, value in kept.items():
        if key.startswith(REQUESTED):
            keys_of[key.rpartition("/")[0]][key] = value.revision
        elif key.startswith(EVENTS) and (place := place_of(key)) is not None:
            below[place.job_id].append(key)
            if place.sort == "s":
                attempt, _, session_id = place.rest.partition("/")
                sessions[place.job_id].append((attempt, session_id))
            else:
                event = RECORDS.from_bytes(value.value)
                assert not isinstance(event, Submission)
                events[place.job_id].append((value.revision, event))
    found = StoredJobs()
    for revisions in keys_of.values():
        first = requested(revisions)
        job_id = revisions[first]
        submission = RECORDS.from_bytes(kept[first].value)
        assert isinstance(submission, Submission)
        found.jobs[job_id] = job_of(job_id, submission, events[job_id], sessions[job_id])
        found.keys[job_id] = first
        found.repeated[job_id] = [key for key in revisions if key != first]
    for job_id, keys in below.items():
        if job_id not in found.jobs:
            found.orphans.extend(keys)
    return found


PREFIX: Final = "haproc-job"
Submitter: TypeAlias = tuple[str, Rights | None]
"""The user of a job, and the rights from the token of an OpenID provider, if that gave any."""
_LOOKS_MAX: Final = 1024
"""The most results of token checks that are kept, and the most pairs of attempt and session."""


def new_token(job_id: int, attempt: str) -> tuple[str, str]:
    """Return a new token for an attempt, and its hash, which the attempt's record stores."""
    token = f"{PREFIX}.{job_id}.{attempt}.{secrets.token_urlsafe(32)}"
    return token, digest(token)


def digest(token: str) -> str:
    """Return the hash of a token, which is stored in place of the token."""
    return hashlib.sha256(token.encode()).hexdigest()


def fence_name(job_id: int) -> str:
    """Return the name under which a job's writes are authorized, and fenced in the log."""
    return f"job/{job_id}"


@dataclass(frozen=True, slots=True)
class AttemptAuthorization:
    """The right of an attempt to act for its job; see `haproc.route.model.Authorization`."""

    token: str = field(repr=False)
    tokens: JobTokens = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name that the job's fence in the log has."""
        return fence_name(_named(self.token)[0])

    async def check(self) -> None:
        """Raise RequestError if the attempt may not act for its job now."""
        await self.tokens.submitter(self.token)


class JobTokens:
    """The tokens of jobs: with one, an attempt acts for its user at the doors of any HAProc.

    A token names its job and attempt; the store has a hash of its secret. It is valid while the
    attempt is the last one of a job that has not ended. This is checked at every call, so a stored
    later attempt, kill or ending closes all doors to it. A write that was accepted before, but is
    not in the log yet, is stopped there: its authorization is fenced in the log before a later
    attempt begins (`haproc.replicate.records.control`). The Spark sessions of an attempt are noted
    before their first use, so that the attempt that replaces it can close them.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._looks: OrderedDict[str, tuple[frozenset[str], Submitter]] = OrderedDict()
        self._noted: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def submitter(self, token: str, session_id: str = "") -> Submitter:
        """Return the user of the token's job, and the rights from the user's own token, if any.

        Raises RequestError if the token is not valid now.
        """
        job_id, attempt = _named(token)
        if session_id:
            await self._note(job_id, attempt, token, session_id)
        known = await self._book.known(job_id)
        last = self._looks.get(token)
        if last is not None and last[0] == known:
            return last[1]
        by = _checked(await self._book.job(job_id), attempt, token)
        self._looks[token] = known, by
        while len(self._looks) > _LOOKS_MAX:
            self._looks.popitem(last=False)
        return by

    def authorization_of(self, token: str) -> AttemptAuthorization:
        """Return the right to act for the job that ``token`` names; it is not checked here."""
        return AttemptAuthorization(token, self)

    async def _note(self, job_id: int, attempt: str, token: str, session_id: str) -> None:
        """Store the fact that the attempt uses the session, if its token is valid.

        `submitter` checks the token again after this. So a HAProc that replaces the attempt finds
        every session that the attempt may use, and closes it.
        """
        if (attempt, session_id) in self._noted:
            return
        _checked(await self._book.job(job_id), attempt, token)
        await self._book.uses(job_id, attempt, session_id)
        self._noted[attempt, session_id] = None
        while len(self._noted) > _LOOKS_MAX:
            self._noted.popitem(last=False)


def _named(token: str) -> tuple[int, str]:
    parts = token.split(".")
    if len(parts) != 4 or not (parts[1].isascii() and parts[1].isdigit() and len(parts[1]) < 17):
        raise refused(ErrorClass.UNAUTHENTICATED, "this is no token of a job")
    return int(parts[1]), parts[2]


def _checked(job: Job | None, attempt: str, token: str) -> Submitter:
    found = next((each for each in job.attempts if each.name == attempt), None) if job else None
    if job is None or found is None or not hmac.compare_digest(found.token_sha256, digest(token)):
        raise refused(ErrorClass.UNAUTHENTICATED, "this is the token of no job of the ring")
    if not job.valid(attempt):
        raise fenced(job)
    by = job.submission
    return by.user, by.rights if isinstance(by, GrantedSubmission) else None


def fenced(job: Job) -> RequestError:
    """Return the error for an attempt that may not act for its job any more."""
    why = "the job has ended" if job.final is not None else "a later attempt has replaced it"
    return refused(
        ErrorClass.JOB_FENCED,
        f"this attempt of job {job.id} is fenced: {why}; nothing that it asks for is done",
    )
