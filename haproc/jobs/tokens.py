"""The tokens of jobs: what an attempt shows at the doors of any HAProc, acting for its user.

A token names its job and attempt; the store has a hash of its secret. It is good while the attempt
is the last one of a job that has not ended, which is looked up at every call: a later attempt, a
kill or an ending, once durable, closes all doors to it. What was let in before, and is still on its
way to the log, is stopped there: it rests on its job's standing, which is fenced in the log before
a later attempt begins (`haproc.replicate.records.fence`). The Spark sessions that an attempt uses
are noted before their first use, so that whoever replaces it can close them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from haproc.failure import ErrorClass, RequestError, refused
from haproc.jobs.book import Book
from haproc.jobs.model import Job

PREFIX: Final = "haproc-job"
_LOOKS_MAX: Final = 1024
"""Tokens whose last look is remembered."""


def new_token(job_id: int, attempt: str) -> tuple[str, str]:
    """Return a token for an attempt, and the hash that its record has."""
    token = f"{PREFIX}.{job_id}.{attempt}.{secrets.token_urlsafe(32)}"
    return token, digest(token)


def digest(token: str) -> str:
    """Return what is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def fence_name(job_id: int) -> str:
    """Return what a job's writes rest on, which is fenced in the log."""
    return f"job/{job_id}"


@dataclass(frozen=True, slots=True)
class AttemptAuthorization:
    """That an attempt may act for its job; see `haproc.route.model.Authorization`."""

    token: str = field(repr=False)
    tokens: JobTokens = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """What the fence names."""
        return fence_name(_named(self.token)[0])

    async def check(self) -> None:
        """Raise RequestError if it has ended."""
        await self.tokens.user_of(self.token)


class JobTokens:
    """See the module."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._looks: OrderedDict[str, tuple[frozenset[str], str]] = OrderedDict()
        self._noted: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def user_of(self, token: str, session_id: str = "") -> str:
        """Return for whom the token's job acts; raises RequestError if it opens no door now."""
        job_id, attempt = _named(token)
        if session_id:
            await self._note(job_id, attempt, token, session_id)
        known = await self._book.known(job_id)
        last = self._looks.get(token)
        if last is not None and last[0] == known:
            return last[1]
        user = _checked(await self._book.job(job_id), attempt, token)
        self._looks[token] = known, user
        while len(self._looks) > _LOOKS_MAX:
            self._looks.popitem(last=False)
        return user

    def standing(self, token: str) -> AttemptAuthorization:
        """Return by what whoever shows this token was let in."""
        return AttemptAuthorization(token, self)

    async def _note(self, job_id: int, attempt: str, token: str, session_id: str) -> None:
        """Note the session, before the token is looked at: who replaces the attempt finds it."""
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


def _checked(job: Job | None, attempt: str, token: str) -> str:
    found = next((each for each in job.attempts if each.name == attempt), None) if job else None
    if job is None or found is None or not hmac.compare_digest(found.token_sha256, digest(token)):
        raise refused(ErrorClass.UNAUTHENTICATED, "this is the token of no job of the ring")
    if not job.valid(attempt):
        raise fenced(job)
    return job.asked.user


def fenced(job: Job) -> RequestError:
    """Return the error of an attempt that may not act for its job any more."""
    why = "the job has ended" if job.final is not None else "a later attempt has replaced it"
    return refused(
        ErrorClass.JOB_FENCED,
        f"this attempt of job {job.id} is fenced: {why}; nothing that it asks for is done",
    )
