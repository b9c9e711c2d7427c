"""All statements of a HAProc's client door: those that run and those whose results are kept.

A statement runs in a task of its own, so it outlives the request that brought it. A request with
the same id attaches to it. A query ends when its last waiting client goes away; a write, once
accepted, goes on. Results are kept until they expire. If room is needed, results that their client
has fetched completely are dropped earlier.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import itertools
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias, TypeVar

from haproc.classify.model import OperationClass
from haproc.config.model import Config
from haproc.config.shares import Denied, Shares
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import ErrorClass, RequestError, WriteOutcome, let_go, refused
from haproc.metrics import Metrics
from haproc.replicate.queue.facts import Fate, Revoked
from haproc.route.answering import to_request_error
from haproc.route.attempts import retrieve_error
from haproc.route.model import Answer, Fit, Request, SentSql, Service
from haproc.statements.execution import Execution, Key, StatementState, revoke, take_back
from haproc.statements.request import (
    Delivery,
    StatementRequest,
    asks_for_other,
    check_as_fresh,
    check_same,
)
from haproc.statements.request_admission import Held, Permit, RequestAdmission
from haproc.statements.store import OVERHEAD_BYTES, Collector, ResultStore

STATEMENTS_KEPT_MAX: Final = 10_000
"""The most ended statements that are remembered; chosen, not measured."""
FETCH_PAUSE_MAX_S: Final = 30.0
"""A HAProc that is drained does not wait for a result of which no part was asked for in this time.
Chosen."""
_CANCEL_WAIT_S: Final = 5.0
_FORGOTTEN: Final = SentSql("")
"""Takes the place of a statement's text when it has ended, or if its text was never known here."""
_Found = TypeVar("_Found", bound=Fit | Answer)
_Ask: TypeAlias = Callable[[Request], Awaitable[_Found]]


class Registry:
    """Runs statements, and finds, cancels and forgets them."""

    def __init__(
        self,
        service: Service,
        store: ResultStore,
        config: Config,
        request_admission: RequestAdmission,
        metrics: Metrics,
    ) -> None:
        self._service = service
        self._limits = config.limits
        self._kept = Shares.of(STATEMENTS_KEPT_MAX, config)
        self._metrics = metrics
        self._running: dict[Key, Execution] = {}
        self._finished: OrderedDict[Key, Execution] = OrderedDict()
        self._streams: dict[Key, Execution] = {}
        self._delivered: OrderedDict[Key, Execution] = OrderedDict()
        self._links: dict[str, Execution] = {}
        self.store = store
        self.request_admission = request_admission

    async def submit(self, understood: StatementRequest, held: Held | None = None) -> Execution:
        """Return the statement of this request id if it is known, else start a new one.

        A known one that has ended is replaced if it may run again (`Execution.repeatable`), or if
        this request needs another answer (`asks_for_other`). ``held``: the memory that the request
        takes; a new statement takes it over. Raises RequestError.
        """
        request = understood.request
        await self._wait_for_another(understood)
        known = self._running.get(request.key)
        if known is None and understood.delivery is not None:
            known = self._finished.get(request.key)
        if known is not None and not known.recalled:
            _check_same(known, request)
            if not (
                known.finished and (known.repeatable or asks_for_other(request, known.request))
            ):
                check_as_fresh(known.request, known.delivery, understood)
                return known
        if known is not None:
            self._forget(known)
        permit = self.request_admission.enter(request.user)
        keeps = held.handed_over() if held is not None else None
        execution = Execution(request, understood.delivery, time.monotonic(), held=keeps)
        self._start(execution, permit, self._service.execute)
        return execution

    def stream(
        self, request: Request
    ) -> contextlib.AbstractAsyncContextManager[tuple[Execution, Answer]]:
        """Run a statement whose result the current task sends on; raises RequestError."""
        return self.having(request, self._service.execute)

    @contextlib.asynccontextmanager
    async def having(
        self, request: Request, ask: _Ask[_Found]
    ) -> AsyncIterator[tuple[Execution, _Found]]:
        """Ask the service for the answer to a request; yield it while the current task uses it.

        Two requests of one id are asked one after the other, so the second one finds what the first
        one left in the log. Raises RequestError, EngineError.
        """
        started_s = time.monotonic()
        label, outcome = "unknown", "ok"
        try:
            await self._wait_for_running(request)
            permit = self.request_admission.enter(request.user)
            try:
                execution, answer = await self._open(request, permit, ask)
                label = execution.class_label
                execution.reader = asyncio.current_task()  # now `cancel` means this task
                try:
                    yield execution, answer
                except (EngineError, ConnectionError):
                    raise
                except Exception as error:
                    failure = self.failure(execution, error)
                    raise failure from (error.__cause__ if failure is error else error)
                finally:
                    self._sent(execution)
                    await answer.aclose()
            finally:
                permit.leave()
        except (RequestError, EngineError) as error:  # an EngineError has Spark's own message
            outcome = error.kind.value
            raise
        except (asyncio.CancelledError, ConnectionError):
            outcome = "canceled"
            raise
        finally:
            self._metrics.request(label, outcome, time.monotonic() - started_s)

    async def _open(
        self, request: Request, permit: Permit, ask: _Ask[_Found]
    ) -> tuple[Execution, _Found]:
        execution = Execution(request, None, time.monotonic())
        self._running[request.key] = execution
        execution.task = task = asyncio.create_task(self._asked(execution, permit, ask))
        task.add_done_callback(retrieve_error)
        try:
            await self.wait(execution, None)
            if task.cancelled():
                raise refused(ErrorClass.CANCELED, "the statement was canceled")
            return execution, task.result()
        except BaseException:
            self._sent(execution)
            if not task.done():
                permit.keep_until(task)
            elif not task.cancelled() and task.exception() is None:
                await task.result().aclose()
            raise

    def _sent(self, execution: Execution) -> None:
        if self._streams.get(execution.key) is execution:
            del self._streams[execution.key]

    async def wait(self, execution: Execution, timeout_s: float | None) -> bool:
        """Wait for the statement's end; False after ``timeout_s``.

        A query is cancelled when its last waiting client goes away.
        """
        assert execution.task is not None
        if execution.task.done():
            return True
        execution.waiters += 1
        try:
            return await self.request_admission.wait_for(execution.task, timeout_s)
        except asyncio.CancelledError:
            if execution.waiters == 1 and not execution.promised and self._may_cancel(execution):
                execution.abandoned = True
                execution.task.cancel()
            raise
        except RequestError as ending:
            if self._may_cancel(execution) and not execution.promised:
                execution.task.cancel()  # it may be a write, but the log has nothing of it yet
                ending.outcome = WriteOutcome.NOT_SENT
            raise
        finally:
            execution.waiters -= 1

    async def cancel(self, execution: Execution) -> Revoked:
        """Cancel a query, or revoke a write that the log may have; return what became of it."""
        execution.cancels += 1
        await asyncio.sleep(0)  # a task that is cancelled before it begins cleans nothing up
        task, canceled = execution.task, Revoked(None, Fate.CANCELED)
        if execution.reader is not None and execution.is_query():
            execution.abandoned = True
            execution.reader.cancel()
            return canceled
        if execution.reader is not None or task is None or task.done():
            return Revoked(None, Fate.ENDED)
        if self._may_cancel(execution) and not execution.recalled:
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_WAIT_S)
            # It may be in the log all the same: an earlier attempt of the same request.
            return await revoke(self._service, execution.key) or canceled
        found = await take_back(self._service, execution.key, task)
        if found.fate is Fate.REVOKED:
            await asyncio.wait({task}, timeout=_CANCEL_WAIT_S)
        return found

    async def take_back(self, key: Key) -> Revoked:
        """Do as `cancel` for the statement with this user and id, if it runs."""
        known = self._running.get(key) or self._streams.get(key)
        return Revoked(None, Fate.ENDED) if known is None else await self.cancel(known)

    def goes_on(self, key: Key) -> bool:
        """True if a statement with this user and id runs, and cannot be cancelled any more."""
        known = self._running.get(key) or self._streams.get(key)
        return known is not None and not self._may_cancel(known)

    def find(self, statement_id: str, user: str) -> Execution:
        """Return a user's statement that is known here or in the log; raises RequestError."""
        self.purge()
        key = (user, statement_id)
        execution = self._running.get(key) or self._streams.get(key) or self._finished.get(key)
        if execution is None or (execution.finished and execution.error is not None):
            execution = self._recall(statement_id, user) or execution
        if execution is None:
            raise refused(
                ErrorClass.STATEMENT_UNKNOWN,
                f"this HAProc has no statement {statement_id[:128]!r}",
                "results are kept by the HAProc that ran the statement, for a limited time; what "
                "became of a write is known wherever the log's window holds its id",
            )
        execution.asked_s = time.monotonic()
        return execution

    def _recall(self, statement_id: str, user: str) -> Execution | None:
        """Return a new execution for a write that was read from the log; None: none was."""
        try:
            permit = self.request_admission.enter(user)
        except RequestError as error:
            error.outcome = WriteOutcome.UNKNOWN  # nothing was looked up
            raise
        answer = self._service.find_write(statement_id, user)
        if answer is None:
            permit.leave()
            return None
        request = Request(
            statement_id, _FORGOTTEN, "", user, operation_class=OperationClass.ASYNCHRONOUS
        )
        execution = Execution(request, Delivery(), time.monotonic(), recalled=True)
        if known := self._finished.get(execution.key):
            self._forget(known)
        self._start(execution, permit, lambda _: answer())
        return execution

    def _start(
        self, execution: Execution, permit: Permit, answer: Callable[[Request], Awaitable[Answer]]
    ) -> None:
        self._running[execution.key] = execution
        execution.task = asyncio.create_task(self._run(execution, permit, answer))

    def find_link(self, secret: str) -> Execution:
        """Return the statement whose result has links with this secret; raises RequestError."""
        self.purge()
        execution = self._links.get(secret)
        if execution is None:
            raise refused(
                ErrorClass.STATEMENT_UNKNOWN,
                "this link is not valid, or no longer",
                "ask for the statement's chunk again to get a new link",
            )
        execution.asked_s = time.monotonic()
        return execution

    def delivered(self, execution: Execution, index: int) -> None:
        """Note that the client has received the chunk ``index`` of a result."""
        execution.undelivered.discard(index)
        if execution.finished and not execution.undelivered and execution.key in self._finished:
            self._delivered[execution.key] = execution

    def unfetched(self) -> int:
        """Return how many kept results clients are fetching now, or may fetch soon."""
        self.purge()
        since_s = time.monotonic() - FETCH_PAUSE_MAX_S
        kept = self._finished.values()
        return sum(1 for execution in kept if execution.undelivered and execution.asked_s > since_s)

    def purge(self) -> None:
        """Forget the ended statements whose time is over, with their results."""
        now = time.monotonic()
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if oldest.expires_s > now:
                break
            self._forget(oldest)

    async def aclose(self) -> None:
        """Cancel all running statements, and delete all kept results."""
        await asyncio.sleep(0)  # as in `cancel`
        tasks = [e.task for e in self._running.values() if e.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_WAIT_S)
        for execution in list(self._finished.values()):
            self._forget(execution)
        self.store.clean()

    async def _wait_for_another(self, understood: StatementRequest) -> None:
        """Wait for a running request with the same id if its answer would not do for the new one.

        It would not do if it is streamed to another client, or if it belongs to a write with
        another write concern or of another attempt of a job.
        """
        while known := self._running.get(understood.request.key):
            streamed = known.delivery is None and understood.delivery is not None
            if not streamed and not asks_for_other(understood.request, known.request):
                return
            await self._wait_for_end(known, understood.request)

    async def _wait_for_running(self, request: Request) -> None:
        while (known := self._running.get(request.key)) is not None:
            await self._wait_for_end(known, request)
        kept = self._finished.get(request.key)
        if kept is not None:
            _check_same(kept, request)

    async def _wait_for_end(self, known: Execution, request: Request) -> None:
        """Wait for the end of an earlier request of this id; if cancelled, this one is, too."""
        _check_same(known, request)
        assert known.task is not None
        cancels = known.cancels
        await asyncio.wait({known.task})
        if known.cancels > cancels:
            raise refused(ErrorClass.CANCELED, "the statement was canceled")

    def _may_cancel(self, execution: Execution) -> bool:
        if execution.leaves_nothing or execution.state is StatementState.PENDING:
            return True  # a waiting statement has done nothing
        query = execution.is_query()
        if query is not None:
            return query
        return self._service.only_reads(execution.request) is not False

    async def _asked(self, execution: Execution, permit: Permit, ask: _Ask[_Found]) -> _Found:
        """Ask the service for the answer to a statement whose result is streamed."""
        try:
            answer = await ask(await self._in_turn(execution, permit))
            execution.take(answer)
            if execution.waiters == 0:  # a write whose client went away
                await answer.aclose()
            return answer
        except RequestError:
            raise
        except Exception as error:
            raise self.failure(execution, error) from error
        finally:
            if self._running.get(execution.key) is execution:
                del self._running[execution.key]
            if execution.waiters:  # it can be found until it was sent
                self._streams[execution.key] = execution

    async def _in_turn(self, execution: Execution, permit: Permit) -> Request:
        """Wait for the permit to run; return the request with the time that is left."""
        request = execution.request
        waited_s = await permit.reached(request.timeout_s)
        execution.state = StatementState.RUNNING
        timeout_s = request.timeout_s - waited_s
        return dataclasses.replace(request, timeout_s=timeout_s, permit=permit)

    async def _run(
        self, execution: Execution, permit: Permit, begin: Callable[[Request], Awaitable[Answer]]
    ) -> None:
        try:
            answer = await begin(await self._in_turn(execution, permit))
            execution.take(answer)
            await self._collect(execution, answer)
            execution.state = StatementState.SUCCEEDED
        except asyncio.CancelledError:
            execution.state = StatementState.CANCELED
            raise
        except Exception as error:
            execution.error = copy.copy(self.failure(execution, error))
            let_go(error)
            execution.state = StatementState.FAILED
        finally:
            permit.leave()
            self._finish(execution)

    async def _collect(self, execution: Execution, answer: Answer) -> None:
        if execution.delivery is None:
            await answer.aclose()
            return
        query = answer.operation_class is OperationClass.QUERY
        collector = Collector(
            self.store,
            execution.delivery,
            self._limits.inline_bytes_max,
            # A write's result is a few numbers; its success must not depend on room for them.
            execution.request.user,
            self._make_room if query else lambda user, size: True,
        )
        execution.kept = collector.kept
        await collector.collect(answer)

    def failure(self, execution: Execution, error: Exception) -> RequestError:
        """Turn an error of this statement into the RequestError that the client receives."""
        reads = execution.is_query() is True
        failed = to_request_error(error, f"statement {execution.id}", only_reads=reads)
        if execution.recalled and failed.error_class in (ErrorClass.BUSY, ErrorClass.STOPPED):
            failed.outcome = WriteOutcome.UNKNOWN  # only the lookup failed; the write is in the log
        lost = isinstance(error, EngineError) and error.kind is not ErrorKind.APPLICATION
        if lost and execution.is_query() is False:
            failed.outcome = WriteOutcome.UNKNOWN
        return failed

    def _finish(self, execution: Execution) -> None:
        if execution.held is not None:
            execution.held.release()
        now = time.monotonic()
        if self._running.get(execution.key) is execution:
            del self._running[execution.key]
        self._metrics.request(
            execution.class_label, outcome_label(execution), now - execution.started_s
        )
        if execution.state is not StatementState.SUCCEEDED:
            self.store.drop(execution.kept)
        if execution.abandoned or execution.delivery is None:
            return
        self._keep(execution, now)

    def _keep(self, execution: Execution, now_s: float) -> None:
        kept_s = self._limits.results_kept_s
        # The text may be 64 MiB long; from here on the fingerprint replaces it.
        execution.request = dataclasses.replace(execution.request, statement=_FORGOTTEN)
        execution.asked_s, execution.expires_s = now_s, now_s + kept_s
        execution.expires_at = datetime.now(UTC) + timedelta(seconds=kept_s)
        execution.undelivered = set(range(len(execution.kept.chunks)))
        self.store.charge(execution.kept, OVERHEAD_BYTES)
        self._finished[execution.key] = execution
        self._kept.count(execution.request.user, 1)
        execution.link_secret = secrets.token_urlsafe(24)
        self._links[execution.link_secret] = execution
        if not execution.undelivered:
            self._delivered[execution.key] = execution
        user = execution.request.user
        while self._kept.of_user(user) > self._kept.user_max:
            every = itertools.chain(self._delivered.values(), self._finished.values())
            self._forget(next(each for each in every if each.request.user == user))
        while self._kept.taken > self._kept.total_max:
            self._forget(next(iter((self._delivered or self._finished).values())))
        self._make_room(user, 0)
        self._metrics.results(len(self._finished), self.store.bytes_used)

    def _make_room(self, user: str, size: int) -> bool:
        """Delete fetched results until ``size`` bytes fit; False if they do not fit then.

        If the user's share is full, only this user's results are deleted.
        """
        self.purge()
        while why := self.store.shares.denied(user, size):
            own = why is Denied.SHARE_TAKEN
            fetched = self._delivered.values()
            oldest = next((e for e in fetched if not own or e.request.user == user), None)
            if oldest is None:
                return False
            self._forget(oldest)
        return True

    def _forget(self, execution: Execution) -> None:
        if self._finished.pop(execution.key, None) is not None:
            self._kept.give_back(execution.request.user)
        self._delivered.pop(execution.key, None)
        self._links.pop(execution.link_secret, None)
        self.store.drop(execution.kept)


def _check_same(known: Execution, request: Request) -> None:
    if not known.recalled:
        check_same(known.request, request)


def outcome_label(execution: Execution) -> str:
    """Return the outcome of a statement for metrics: ok, canceled, or the kind of the error."""
    if execution.error is not None:
        return execution.error.kind.value
    return "canceled" if execution.state is StatementState.CANCELED else "ok"
