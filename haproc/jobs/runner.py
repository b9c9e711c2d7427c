"""Runs the ring's jobs on this HAProc, and takes over those of HAProcs that are gone.

One task checks all jobs when one of them gets an event, and at least every half a second;
`haproc.jobs.keeping` decides the steps. Each attempt that runs here is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from dmq.key_value import KeyValueStore
from haproc.config.jobs import Jobs
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.jobs.book import Book, StoredJobs, new_token
from haproc.jobs.keeping import RingView, Step, forgettable, steps
from haproc.jobs.model import (
    BatchState,
    Ending,
    Fenced,
    Job,
    JobAttempt,
    Outcome,
    environment,
    placed,
    ring_variables,
)
from haproc.jobs.process import (
    End,
    Plan,
    Running,
    interpreter_of,
    make_folder,
    remove_folder,
    user_of,
)
from haproc.jobs.records import (
    FILES,
    JOBS,
    LOGS,
    Tail,
    file_key,
    left_over,
    log_prefix,
    piece_bytes,
    piece_key,
    spans,
    total,
)
from haproc.jobs.relay import Relays
from haproc.sessions.durable import reached

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5
FLUSH_S: Final = 0.5
"""The longest time until a line of output is stored, so that others can read it."""
AGAIN_S: Final = 1.0
LOG_TRIES_MAX: Final = 60
"""The most attempts to store a piece of a job's output; then the piece is lost, and the job goes
on."""
APPLIED_WITHIN_S: Final = 60.0
"""The longest time for which a restarted attempt waits until its cluster has applied the log; then
any HAProc may take the job."""
FORGET_S: Final = 60.0
FORGET_MAX: Final = 50
"""The most jobs that are deleted in one check."""
DROPPED_MAX: Final = 2000
"""The most keys without a job that are deleted in one check; the others are for the next one."""


@dataclass(frozen=True, slots=True)
class Around:
    """What the runner needs of its HAProc.

    - ``servers``: URLs of client doors, the own one first;
    - ``folder``: the parent of the jobs' working folders;
    - ``hidden``: files that programs must not find, even below folders that they may read;
    - ``peers``: the incarnation of each live peer, and the peers that no message came from yet;
    - ``serving``: True if jobs may be taken;
    - ``close_session`` closes a user's session at all HAProcs;
    - ``fence`` stops a job's earlier writes in the log, and returns the offset after the fence;
    - ``applied`` waits until this cluster has applied the log up to an offset.

    Calls raise RequestError.
    """

    me: str
    incarnation: str
    servers: Sequence[str]
    folder: Path
    hidden: Path
    peers: Callable[[], tuple[Mapping[str, str | None], frozenset[str]]]
    serving: Callable[[], bool]
    close_session: Callable[[str, str], Awaitable[object]]
    fence: Callable[[int], Awaitable[int]]
    applied: Callable[[int], Awaitable[None]]
    unix_ms: Callable[[], int]


@dataclass(slots=True)
class Here:
    """An attempt that this HAProc runs; ``running`` is None until its program is started."""

    job_id: int
    task: asyncio.Task[None]
    running: Running | None = None
    stopping: bool = False

    def stop(self) -> None:
        """End the attempt's program, or prevent its start."""
        self.stopping = True
        if self.running is not None:
            self.running.stop()


class Runner:
    """Runs the ring's jobs on this HAProc."""

    def __init__(
        self, settings: Jobs, around: Around, book: Book, store: KeyValueStore, relays: Relays
    ) -> None:
        self._settings = settings
        self._around = around
        self._book = book
        self._store = store
        self._relays = relays
        self._here: dict[str, Here] = {}
        self._closing = False
        self._forget_at = 0.0
        self._ended: Counter[str] = Counter()
        self.of_ring: Mapping[str, int] = dict.fromkeys(BatchState, 0)
        """The number of the ring's jobs in each state, at the last check."""

    @property
    def running(self) -> int:
        """The number of attempts that this HAProc runs now."""
        return len(self._here)

    def take_ended(self) -> Mapping[str, int]:
        """Return how many attempts ended on this HAProc since the last call, by their outcome."""
        ended, self._ended = self._ended, Counter()
        return ended

    async def run_forever(self) -> NoReturn:
        """Check the ring's jobs again and again: start, end and delete jobs, until cancelled."""
        await asyncio.to_thread(remove_folder, self._around.folder)
        await self._relays.start()
        while True:
            try:
                revision = await reached(self._store.revision())
                await self._look()
                await reached(self._store.wait(JOBS, revision, LOOK_S))
            except RequestError as error:
                logger.warning("jobs cannot be looked at: %s", error)
                await asyncio.sleep(AGAIN_S)

    async def aclose(self) -> None:
        """End all attempts of this HAProc; others may take over their jobs at once."""
        self._closing = True
        for here in self._here.values():
            here.stop()
        tasks = [here.task for here in self._here.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=10.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._relays.aclose()

    # -- checking ----------------------------------------------------------------------------

    async def _look(self) -> None:
        found = await self._book.look()
        states = Counter(job.state for job in found.jobs.values())
        self.of_ring = {state.value: states[state] for state in BatchState}
        self._relays.check()
        for name, here in list(self._here.items()):
            job = found.jobs.get(here.job_id)
            if job is None or not job.valid(name):
                here.stop()
        for step, job in steps(found.jobs.values(), self._seen()):
            if self._closing:
                return
            match step:
                case Step.START:
                    await self._begin(job)
                case Step.LOST:
                    await self._lose(job)
                case Step.FENCE:
                    await self._around.fence(job.id)
                    await self._book.store_event(job.id, Fenced(self._around.unix_ms()))
        await self._forget(found)

    def _seen(self) -> RingView:
        around = self._around
        alive, unjudged = around.peers()
        room = self._settings.running_max - len(self._here)
        serving = around.serving() and not self._closing
        return RingView(
            around.me,
            around.incarnation,
            alive,
            unjudged,
            frozenset(self._here),
            serving,
            room,
            around.unix_ms(),
        )

    async def _lose(self, job: Job) -> None:
        assert job.current is not None
        why = f"the HAProc of {job.current.cluster}, which ran it, is gone"
        ending = Ending(job.current.name, Outcome.LOST, None, why, self._around.unix_ms())
        logger.warning("job %d is lost: %s", job.id, why)
        await self._close_sessions(await self._book.store_event(job.id, ending))

    async def _begin(self, job: Job) -> None:
        """Try to begin the job's next attempt; only the first HAProc that tries has success."""
        around = self._around
        name = self._book.new_name()
        token, digest = new_token(job.id, name)
        log_keys = await reached(self._store.keys(log_prefix(job.id)))
        lines = total(spans(log_keys, job.id, job.attempts), job.attempts)
        attempt = JobAttempt(
            len(job.attempts) + 1,
            name,
            around.me,
            around.incarnation,
            digest,
            job.current.name if job.current is not None else "",
            lines,
            around.unix_ms(),
        )
        job = await self._book.store_event(job.id, attempt)
        if not job.valid(name):
            return  # another HAProc was first
        logger.info("job %d begins here, attempt %d", job.id, attempt.number)
        task = asyncio.ensure_future(self._attempt(job, attempt, token))
        self._here[name] = Here(job.id, task)
        task.add_done_callback(lambda _: self._here.pop(name, None))

    # -- one attempt -------------------------------------------------------------------------

    async def _attempt(self, job: Job, attempt: JobAttempt, token: str) -> None:
        folder = self._around.folder / f"{job.id}-{attempt.number}"
        tail = Tail(attempt.log_from, self._settings.log_bytes)
        try:
            try:
                after_offset = await self._fence(job) if attempt.replaces else 0
                await self._close_sessions(job)
                await self._furnish(job, folder)
                end = await self._run(job, attempt, token, folder, tail, after_offset)
            except RequestError as error:  # the log, the store or the cluster is away
                end = End(Outcome.LOST, None, f"it could not be started: {error}")
            except (OSError, KeyError) as error:
                end = End(Outcome.ERROR, None, f"it could not be started: {error}")
            tail.close()
            await self._end(job, attempt, end, tail)
        except Exception:
            logger.exception("attempt %d of job %d ends by an error", attempt.number, job.id)
        finally:
            await asyncio.to_thread(remove_folder, folder)

    async def _fence(self, job: Job) -> int:
        """Stop writes of earlier attempts that are not in the log yet; return the fence's end.

        That is the offset after the fence. Returns once the log up to it is applied here, so the
        new attempt sees all writes of the earlier ones.
        """
        after_offset = await self._around.fence(job.id)
        try:
            async with asyncio.timeout(APPLIED_WITHIN_S):
                await self._around.applied(after_offset)
        except TimeoutError:
            why = f"{self._around.me} has not applied the log up to {after_offset} in time"
            raise RequestError(
                FailureKind.AVAILABILITY, why, error_class=ErrorClass.NOT_FRESH
            ) from None
        return after_offset

    async def _furnish(self, job: Job, folder: Path) -> None:
        files = []
        for index, file in enumerate(job.submission.files):
            kept = await reached(self._store.get(file_key(job.submission.stored, index)))
            if kept is None:
                raise OSError(f"{file.name} is not in the ring's store")
            files.append((placed(file), kept.value))
        await asyncio.to_thread(make_folder, folder, files, user_of(self._settings))

    async def _run(
        self, job: Job, attempt: JobAttempt, token: str, folder: Path, tail: Tail, after_offset: int
    ) -> End:
        settings = self._settings
        python = interpreter_of(settings)
        passed = {k: os.environ[k] for k in settings.environment if k in os.environ}
        servers = self._relays.servers(self._around.servers)
        options = job.submission.options
        ring = ring_variables(self._relays.connect.port, servers, token, options, after_offset)
        plan = Plan(
            (str(python), "-u", str(folder / job.program()), *job.submission.args),
            folder,
            environment(job, attempt.number, folder, ring, passed, python),
            settings,
            job.submission.limits,
            (self._around.hidden,),
        )
        here = self._here[attempt.name]
        here.running = running = await Running.start(plan)
        if here.stopping:
            running.stop()
        flushing = asyncio.ensure_future(self._flushing(job.id, attempt, tail))
        try:
            async for piece in running.output():
                tail.add_output(piece)
            return await running.ended()
        finally:
            running.stop()
            flushing.cancel()
            await asyncio.gather(flushing, return_exceptions=True)

    async def _flushing(self, job_id: int, attempt: JobAttempt, tail: Tail) -> NoReturn:
        while True:
            await asyncio.sleep(FLUSH_S)
            # A cancellation in the middle would lose a piece.
            await asyncio.shield(self._flush(job_id, attempt, tail))

    async def _flush(self, job_id: int, attempt: JobAttempt, tail: Tail) -> None:
        """Store the new output of an attempt; try again for a while if the store is away."""
        pieces, gone = tail.flush()
        for piece in pieces:
            key = piece_key(job_id, attempt.name, piece.first, piece.end)
            if not await self._stored(key, piece_bytes(piece)):
                logger.warning(
                    "job %d: lines %d to %d of its log are lost: the store was away too long",
                    job_id,
                    piece.first,
                    piece.end - 1,
                )
        for first, end in gone:
            key = piece_key(job_id, attempt.name, first, end)
            with suppress(RequestError):
                await reached(self._store.delete(key))

    async def _end(self, job: Job, attempt: JobAttempt, end: End, tail: Tail) -> None:
        await self._flush(job.id, attempt, tail)
        ending = Ending(attempt.name, end.outcome, end.code, end.why, self._around.unix_ms())
        while True:
            try:
                job = await self._book.job(job.id) or job
                if job.valid(attempt.name):
                    job = await self._book.store_event(job.id, ending)
                    self._ended[end.outcome.value] += 1
                break
            except RequestError as error:
                logger.warning("job %d has ended, which cannot be stored: %s", job.id, error)
                await asyncio.sleep(AGAIN_S)
        logger.info("job %d, attempt %d: %s %s", job.id, attempt.number, end.outcome, end.why)
        await self._close_sessions(job)

    async def _stored(self, key: str, value: bytes) -> bool:
        for _ in range(LOG_TRIES_MAX):
            with suppress(RequestError):
                await reached(self._store.put(key, value))
                return True
            await asyncio.sleep(AGAIN_S)
        return False

    async def _close_sessions(self, job: Job) -> None:
        """Close the Spark sessions of attempts that have ended, so that their statements end."""
        for attempt, session_id in job.sessions:
            if not job.valid(attempt):
                try:
                    await self._around.close_session(job.submission.user, session_id)
                except RequestError as error:
                    logger.info("session %s of job %d: %s", session_id, job.id, error)

    # -- forgetting --------------------------------------------------------------------------

    async def _forget(self, found: StoredJobs) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._forget_at:
            return
        self._forget_at = now + FORGET_S
        settings, now_ms = self._settings, self._around.unix_ms()
        kept_ms = int(settings.kept_s * 1000)
        jobs = forgettable(found.jobs.values(), kept_ms, settings.kept_max, now_ms)
        for job in jobs[:FORGET_MAX]:
            await self._book.drop([*found.repeated[job.id], found.keys[job.id]])
            await self._book.drop(
                await reached(self._store.keys(f"{FILES}{job.submission.stored}/"))
            )
        keys = [key for all in (FILES, LOGS) for key in await reached(self._store.keys(all))]
        found = await self._book.look()  # after the keys: a job's log comes after its job
        submissions = {job.id: job.submission for job in found.jobs.values()}
        await self._book.drop([*found.orphans, *left_over(keys, submissions, now_ms)][:DROPPED_MAX])
