"""What can be done with the ring's jobs: users act on their own jobs, operators on all jobs."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from dmq import Json
from dmq.key_value import KeyValueStore
from haproc.classify.rights import Rights
from haproc.config.model import Config
from haproc.config.shares import Shares
from haproc.failure import ErrorClass, RequestError, busy, refused
from haproc.jobs import request
from haproc.jobs.book import Book, StoredJobs
from haproc.jobs.model import Fenced, FileRole, Job, Kill, Outcome, Submission, granted
from haproc.jobs.records import FILES, file_key, lines_of, log_prefix, page, spans, total
from haproc.jobs.request import Upload, read_files, submission, too_large, wanted
from haproc.sessions.durable import reached

logger = logging.getLogger(__name__)

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000
LOG_LINES_SHOWN: Final = 10
"""The number of output lines in the answer about one job, as in Livy."""

Check: TypeAlias = Callable[[str, Upload], Awaitable[None]]
"""Takes a user and a file; raises RequestError if the file is no valid program
(`check_program`)."""


class JobService:
    """Submits, lists and ends jobs. Methods raise RequestError."""

    def __init__(
        self,
        config: Config,
        me: tuple[str, str],
        book: Book,
        store: KeyValueStore,
        fence: Callable[[int], Awaitable[int]],
        unix_ms: Callable[[], int],
        check: Check,
    ) -> None:
        """Make the service for this HAProc; ``me``: its cluster and its incarnation.

        ``fence`` stops a job's earlier writes in the log. ``check``: the check of a program. A
        HAProc gives one that runs in another process: parsing a program can take seconds.
        """
        self._config = config
        self._settings = config.jobs
        self._me = me
        self._book = book
        self._store = store
        self._fence = fence
        self._unix_ms = unix_ms
        self._check = check

    async def submit(
        self,
        user: str,
        body: Mapping[str, Any],
        uploads: Sequence[Upload] = (),
        request_id: str | None = None,
        rights: Rights | None = None,
    ) -> Mapping[str, Json]:
        """Submit a job and return it, or the job that was submitted under this request id before.

        ``rights``: those of the user, if a provider's token gave them.
        """
        want = wanted(body, uploads, user, self._settings)
        most, folders = self._settings.files_bytes_max, self._settings.folders
        given = sum(len(each.data) for each in want.uploads)
        if given > most:
            raise too_large()
        read = await asyncio.to_thread(read_files, want.paths, folders, most - given)
        for each in (*want.uploads, *read):
            if each.role is FileRole.PROGRAM:
                await self._check(user, each)
        named = request_id or want.request_id or f"job-{uuid.uuid4()}"
        sent = submission(want.job, [*want.uploads, *read], named)
        if rights is not None:
            sent = granted(sent, rights)
        found = await self._book.look()
        known = _under(found, sent)
        if known is None:
            self._check_room(found, user)
            # A cancellation in the middle would leave files without a job.
            known = await asyncio.shield(self._take(sent, [*want.uploads, *read]))
        if known.submission.fingerprint != sent.fingerprint:
            raise refused(
                ErrorClass.REQUEST_ID_REUSED,
                f"request id {named!r} was used for another job: {known.id}",
                "use a new id for each job",
            )
        if want.ignored:
            logger.warning("job %d of %s: ignored %s", known.id, user, list(want.ignored))
        return request.batch(known)

    async def _take(self, submission: Submission, files: Sequence[Upload]) -> Job:
        """Store a job: first its files, then its submission."""
        stored = f"{self._unix_ms()}-{self._book.new_name()}"
        cluster, incarnation = self._me
        at_ms = self._unix_ms()
        whole = replace(
            submission, stored=stored, cluster=cluster, incarnation=incarnation, at_ms=at_ms
        )
        for index, each in enumerate(files):
            await reached(self._store.put(file_key(stored, index), each.data))
        job = await self._book.submit(whole)
        if job.submission.stored != stored:
            await self._book.drop(await reached(self._store.keys(f"{FILES}{stored}/")))
        return job

    def _check_room(self, found: StoredJobs, user: str) -> None:
        live = [job for job in found.jobs.values() if job.final is None]
        shares = Shares.of(self._settings.jobs_max, self._config)
        for job in live:
            shares.count(job.submission.user, 1)
        if shares.denied(user):
            raise busy(
                f"the ring has {len(live)} jobs that have not ended, {shares.of_user(user)} of "
                f"them of {user}; no more are allowed (jobs.jobs_max, limits.user_share)"
            )

    async def jobs_of(self, user: str) -> Mapping[str, Job]:
        """Return a user's jobs by their request ids."""
        jobs = (await self._book.look()).jobs.values()
        return {job.submission.request_id: job for job in jobs if job.submission.user == user}

    async def listed(self, user: str | None, start: int, size: int) -> Mapping[str, Json]:
        """Return ``size`` jobs in the order of their ids, after the first ``start``.

        ``user``: only this user's jobs; None: those of all users.
        """
        found = await self._book.look()
        jobs = [job for _, job in sorted(found.jobs.items()) if user in (None, job.submission.user)]
        shown: list[Json] = [request.batch(job) for job in jobs[start : start + size]]
        return {"from": start, "total": len(jobs), "sessions": shown}

    async def shown(self, user: str | None, job_id: int) -> Mapping[str, Json]:
        """Return one job, with the last lines of its output."""
        job = await self._job(user, job_id)
        lines = (await self._log(job, None, LOG_LINES_SHOWN))[2]
        return request.batch(job, lines)

    async def state(self, user: str | None, job_id: int) -> Mapping[str, Json]:
        """Return one job's state."""
        job = await self._job(user, job_id)
        return {"id": job.id, "state": job.state.value}

    async def log(
        self, user: str | None, job_id: int, start: int | None, size: int
    ) -> Mapping[str, Json]:
        """Return ``size`` lines of a job's output from number ``start`` on; None: the last ones."""
        job = await self._job(user, job_id)
        begin, end, lines = await self._log(job, start, size)
        return {"id": job.id, "from": begin, "total": end, "log": list(lines)}

    async def kill(self, user: str | None, job_id: int) -> None:
        """End a job; a job that has ended already stays as it is.

        After a job was killed by this, no further write of it enters the log.
        """
        job = await self._job(user, job_id)
        if job.final is None:
            job = await self._book.store_event(job_id, Kill(user or "an operator", self._unix_ms()))
        elif job.final.outcome is not Outcome.KILLED:
            return
        if not job.fenced:
            await self._fence(job_id)
            await self._book.store_event(job_id, Fenced(self._unix_ms()))

    async def _job(self, user: str | None, job_id: int) -> Job:
        job = await self._book.job(job_id)
        if job is None or user not in (None, job.submission.user):
            raise unknown(job_id)
        return job

    async def _log(self, job: Job, start: int | None, size: int) -> tuple[int, int, list[str]]:
        keys = await reached(self._store.keys(log_prefix(job.id)))
        found = spans(keys, job.id, job.attempts)
        end = total(found, job.attempts)
        begin, until = page(start, size, found, end)
        lines: list[str] = []
        for span in found:
            if span.end <= begin or span.start >= until:
                continue
            kept = await reached(self._store.get(span.key))
            if kept is None:  # a longer piece has replaced it meanwhile
                return await self._log(job, start, size)
            first, last = max(begin, span.start), min(until, span.end)
            lines += lines_of(kept.value)[first - span.first : last - span.first]
        return begin, end, lines


def _under(found: StoredJobs, submission: Submission) -> Job | None:
    """Return the job that was submitted under the same request id; None if there is none."""
    mine = (submission.user, submission.request_id)
    for job in found.jobs.values():
        if (job.submission.user, job.submission.request_id) == mine:
            return job
    return None


def unknown(job_id: int) -> RequestError:
    """Return the error for a job that does not exist, or is another user's."""
    return refused(ErrorClass.JOB_UNKNOWN, f"there is no job {job_id}")
