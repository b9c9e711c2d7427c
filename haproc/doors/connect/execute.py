"""The call ExecutePlan: what happens to a plan, and its answer.

Every plan goes through the registry of statements, like a statement of any other door. Its request
id is the id of the Spark Connect operation, which the client chose. If a plan only reads, or only
changes the session, the ring decides that it may run now; then it is relayed into the client's own
Spark session. All other plans are run by the ring, and the ring's answer is returned.

A plan that changes the session is answered once the change is durable in the session's journal.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from haproc import protos
from haproc.classify.model import Kind, OperationClass, RefusedError
from haproc.classify.plans import expressions
from haproc.classify.plans.catalog import as_tables
from haproc.classify.plans.commands import read_opened
from haproc.classify.plans.parsing import OPENED_BYTES_MAX, Does, PlanReading, opened, parse
from haproc.config.model import Config
from haproc.doors.connect import messages, options
from haproc.doors.connect.calls import Call
from haproc.doors.connect.errors import OperationState
from haproc.engine.arrow import empty_stream
from haproc.engine.interface import Chunk
from haproc.engine.rewriting import fields_of, replaced_plan
from haproc.failure import ErrorClass, FailureKind, RequestError, refused
from haproc.pin.parameters import bound
from haproc.replicate.queue.outcomes import Known, OutcomeStatus
from haproc.route.model import Answer, Fit, ReadPlan, Request, Sent, SentPlan, SentSql
from haproc.route.offload import LARGE_PLAN, Texts, plan_work
from haproc.route.planning import Planning
from haproc.sessions.client import ClientSession, left_by_plan
from haproc.sessions.journal import ConfEntry, Entry, SettingsEntry
from haproc.sessions.sessions import Sessions
from haproc.statements.registry import Registry
from haproc.statements.request import fingerprint_of

_PLAN: Final = 3
"""The number of the field of ExecutePlanRequest that has the plan."""
_COMPRESSED: Final = 3
"""The number of the field of a plan that has a compressed plan."""

_STATE_OF: Final = {
    OutcomeStatus.APPLIED: OperationState.SUCCEEDED,
    OutcomeStatus.FAILED: OperationState.FAILED,
    OutcomeStatus.REJECTED: OperationState.FAILED,
    OutcomeStatus.EXPIRED: OperationState.FAILED,
}


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The content of an ExecutePlanRequest.

    - ``request``: the serialized request, in the form in which it may be relayed to Spark;
    - ``plan``: the serialized plan in the request;
    - ``plan_id``: the number that the client gave to the relation of a SQL command; None if none.
    """

    request: bytes
    plan: bytes
    statement: Sent
    reading: PlanReading
    is_root: bool = False
    """True if the plan is a relation, so the client wants its rows; False if it is a command."""
    plan_id: int | None = None


@dataclass(frozen=True, slots=True)
class Permitted:
    """A request that may run now in its client's own Spark session.

    ``still`` returns False when this is not true any more: see `haproc.route.model.Fit`.
    """

    session: ClientSession
    plan_request: PlanRequest
    request: Request
    still: Callable[[], bool]


class Behind(Protocol):
    """What this door needs of the HAProc behind it. Its methods raise RequestError."""

    @property
    def planning(self) -> Planning:
        """The queue that decides in which order Spark plans the users' statements."""
        ...

    @property
    def sessions(self) -> Sessions:
        """The sessions of clients, which belong to the ring."""
        ...

    async def enter_session(self, session_id: str, user: str) -> ClientSession:
        """Return the client's session; make it if there is none. RequestError if not serving."""
        ...

    async def decide(self, request: Request) -> Fit | Answer:
        """Return a `Fit` if the door may run the statement now, in the client's own Spark session.

        If not, the ring runs the statement, and the result is the ring's `Answer`.
        """
        ...

    def known_write(self, request_id: str, user: str) -> Known | None:
        """Return what the log says of a user's write, as far as it was read; None if nothing."""
        ...


class Executing:
    """Handles ExecutePlan. Methods raise RequestError, or RelayedError with Spark's own error."""

    def __init__(self, config: Config, behind: Behind, registry: Registry, texts: Texts) -> None:
        self._behind = behind
        self._sessions = behind.sessions
        self._registry = registry
        self._texts = texts
        self._most = config.limits.statement_tokens_max
        self._defaults = options.defaults(config.reads, config.connect.statement_s)
        self.running: Counter[Does] = Counter()
        """The number of statements that run now, by the effect of their plans (`Does`)."""

    def options_of(self, session: ClientSession, metadata: Mapping[str, str]) -> dict[str, str]:
        """Return HAProc's options that apply to a call in this session, by name."""
        return options.in_force(dict(session.options), metadata, self._defaults)

    async def execute_plan(
        self, call: Call, operation_id: str, request: bytes, age_s: float = 0.0
    ) -> AsyncGenerator[bytes, None]:
        """Yield the responses to an ExecutePlanRequest as they are made.

        ``age_s``: how long ago the client may have sent the request first; 0 if it was not sent
        before.
        """
        session = await self._behind.enter_session(call.names.session_id, call.user)
        plan_request = await self._read(call, request)
        reading, statement = plan_request.reading, plan_request.statement
        if reading.does is Does.HOLDS and messages.only_removes(plan_request.plan):
            if reading.handles - session.handles:
                return  # it is gone already, with the Spark session that had it
        else:
            session.check_handles(reading.handles)
        change = options.change_in(statement.text) if isinstance(statement, SentSql) else None
        if change is not None:
            rows = await self._change_options(call, session, change)
            if change.key:
                for response in _ring_responses(plan_request, [messages.settings_rows(rows)]):
                    yield response
                return
        wanted = self._request(call, session, operation_id, statement, age_s)
        with self._counted(reading.does):
            async with self._registry.having(wanted, self._behind.decide) as (execution, found):
                execution.leaves_nothing = reading.does is Does.HOLDS
                async with aclosing(
                    self._responses(session, plan_request, wanted, found)
                ) as responses:
                    async for response in responses:
                        yield response

    async def _change_options(
        self, call: Call, session: ClientSession, change: options.OptionChange
    ) -> list[tuple[str, str]]:
        """Run a SET or RESET of HAProc's options; return the rows (option, value) of its result."""
        if change.value is None and not change.resets:
            value = self.options_of(session, call.metadata).get(change.key, "<undefined>")
            return [(change.key, value)]
        rows: list[tuple[str, str]] = []
        if change.value is not None:
            options.value_of(change.key, change.value)
            entry = ConfEntry(sets=((change.key, change.value),))
            rows = list(entry.sets)
        else:
            entry = ConfEntry(unsets=(change.key,) if change.key else tuple(dict(session.options)))
            if not entry.unsets:
                return rows
        async with self._sessions.changing(session):
            await self._sessions.record(session, entry)
        return rows

    @contextmanager
    def _counted(self, does: Does) -> Iterator[None]:
        self.running[does] += 1
        try:
            yield
        finally:
            self.running[does] -= 1

    def state_of_write(self, user: str, operation_id: str) -> OperationState:
        """Return the state of a write by the log; so the write may have come through any HAProc."""
        if self._registry.goes_on((user, operation_id)):
            return OperationState.RUNNING
        known = self._behind.known_write(operation_id, user)
        if known is None:
            return OperationState.UNKNOWN
        if known.outcome is None:
            return OperationState.RUNNING
        return _STATE_OF.get(known.outcome.status, OperationState.UNKNOWN)

    async def check(self, call: Call, session: ClientSession, plan: bytes) -> Callable[[], bool]:
        """Wait until a plan may be analysed in the session; RequestError if it does more than read.

        Returns a function that the caller must give to `check_still` after the analysis.
        """
        packed, message, reading = await self._opened(plan)
        session.check_handles(reading.handles)
        as_sent = packed is plan and reading.sql is None
        sent = SentPlan(plan, ReadPlan(message, reading) if as_sent else None)
        wanted = self._request(call, session, str(uuid.uuid4()), sent)
        async with self._registry.having(wanted, self._behind.decide) as (_, found):
            if isinstance(found, Answer) or found.operation_class is not OperationClass.QUERY:
                raise refused(ErrorClass.NESTED_WRITE, "only queries can be analysed")
            return found.still

    def _responses(
        self,
        session: ClientSession,
        plan_request: PlanRequest,
        request: Request,
        found: Fit | Answer,
    ) -> AsyncGenerator[bytes, None]:
        if isinstance(found, Answer):
            return _answered(plan_request, found)
        permitted = Permitted(session, plan_request, request, found.still)
        if found.operation_class is OperationClass.QUERY:
            return self._relayed(permitted)
        if plan_request.reading.does is Does.HOLDS:
            return self._held(permitted)
        return self._changed(permitted)

    async def _relayed(self, permitted: Permitted) -> AsyncGenerator[bytes, None]:
        """Relay a query into its Spark session; raises RequestError as `check_still` does."""
        session, request = permitted.session, permitted.request
        departures = self._behind.planning.departures()
        await session.spark.ready()  # this may need the log
        relay, timeout_s = session.spark.relay, request.timeout_s
        size = len(request.statement.text) if isinstance(request.statement, SentSql) else 0
        async with (
            self._behind.planning.turn(request.user, timeout_s, size, departures) as planned,
            aclosing(
                relay.execute(
                    permitted.plan_request.request,
                    str(uuid.uuid4()),
                    timeout_s=timeout_s,
                    planned=planned,
                )
            ) as responses,
        ):
            begun = False
            async for response in responses:
                if not begun:
                    check_still(permitted.still)
                begun = True
                yield response

    async def _changed(self, permitted: Permitted) -> AsyncGenerator[bytes, None]:
        """Run a plan that changes the session, and record the change in the session's journal.

        Raises RequestError if the session or what the plan reads was changed meanwhile.
        """
        session, request = permitted.session, permitted.request
        uses = permitted.plan_request.reading.kind is Kind.USE
        settling = session.settling if uses else nullcontext()
        async with self._sessions.changing(session), settling:
            if session.has_recorded(request.id):
                return  # sent again, perhaps to another HAProc: only the answer was missing
            run = partial(self._change, permitted)
            if uses:
                given, found = await session.setting(run)
                now = replace(session.settings, catalog=found.catalog, schema=found.schema)
                entry: Entry = SettingsEntry(now)
            else:
                left = partial(left_by_plan, session, permitted.plan_request.plan)
                given, entry = await session.leaving(run, left)
            check_still(permitted.still)  # else the session is made anew, without this change
            await self._sessions.record(session, entry, request.id)
        for response in given:
            yield response

    @staticmethod
    async def _change(permitted: Permitted) -> list[bytes]:
        responses = permitted.session.spark.relay.execute(
            permitted.plan_request.request,
            str(uuid.uuid4()),
            timeout_s=permitted.request.timeout_s,
            changes=True,
        )
        async with aclosing(responses):
            return [response async for response in responses]

    async def _held(self, permitted: Permitted) -> AsyncGenerator[bytes, None]:
        """Run a plan whose result only this Spark session has; yield all responses at its end."""
        async with aclosing(self._relayed(permitted)) as responses:
            given = [response async for response in responses]
        permitted.session.handles |= messages.handles_in(given)
        for response in given:
            yield response

    def _request(
        self,
        call: Call,
        session: ClientSession,
        operation_id: str,
        statement: Sent,
        age_s: float = 0.0,
    ) -> Request:
        found = options.read(self.options_of(session, call.metadata))
        return Request(
            id=operation_id,
            statement=statement,
            fingerprint=fingerprint_of(call.user, _parts(session.id, statement)),
            user=call.user,
            session_id=session.id,
            freshness=found.freshness,
            write_concern=found.write_concern,
            apply_budget_s=found.apply_budget_s,
            fanout=found.fanout,
            timeout_s=found.timeout_s,
            age_s=age_s,
            arrived_s=call.arrived_s,  # adopting the session may have taken long since
            rights=call.rights,
            authorization=call.authorization,
        )

    async def _opened(self, packed: bytes) -> tuple[bytes, Any, PlanReading]:
        return await plan_work(self._texts, _size(packed), _opened, packed, self._most)

    async def _read(self, call: Call, request: bytes) -> PlanRequest:
        """Read a request; return only what HAProc has read of it, so nothing unread is relayed."""
        packed = b"".join(fields_of(request, _PLAN))
        packed, plan, reading = await self._opened(packed)
        request = replaced_plan(request, packed)
        is_root = plan.WhichOneof("op_type") == "root"
        if reading.sql is None:
            sent = SentPlan(packed, ReadPlan(plan, reading))
            return PlanRequest(request, packed, sent, reading, is_root)
        text, given = reading.sql.text, messages.given(reading.sql)
        read = ReadPlan(messages.as_command(plan), reading) if given is None else None
        if given is not None:
            size = len(text) + len(given.json)
            text = await self._texts.work_on_text(call.user, size, bound, text, given)
            plan = messages.with_text(plan, text)
            packed = plan.SerializeToString(deterministic=True)
            request = replaced_plan(request, packed)
        command, whole = messages.as_command(plan), packed
        if is_root:
            whole = command.SerializeToString(deterministic=True)
        return PlanRequest(
            request,
            packed,
            SentPlan(whole, read) if messages.has_relations(command) else SentSql(text),
            reading,
            is_root,
            messages.plan_id(command),
        )


def check_still(still: Callable[[], bool]) -> None:
    """Raise RequestError if Spark may have read tables that HAProc did not check or wait for.

    ``still``: of a `Fit`; False if the session or an object that the statement reads was changed.
    """
    if not still():
        raise RequestError(
            FailureKind.AVAILABILITY,
            "the session was changed, or what the statement reads defined anew, before Spark had "
            "read it; it may have read other tables than were asked about or waited for",
            error_class=ErrorClass.NOT_FRESH,
            hint="send it again",
        )


def _size(packed: bytes) -> int:
    """Return a plan's size in bytes; for a compressed plan the largest size that is allowed."""
    try:
        return OPENED_BYTES_MAX if fields_of(packed, _COMPRESSED) else len(packed)
    except ValueError:
        return len(packed)  # its reader reports the fault


def _opened(packed: bytes, most: int) -> tuple[bytes, Any, PlanReading]:
    """Return a plan in the form to send on, decompressed; its message; and its reading.

    Raises RefusedError if the plan may not run, or if it has more than ``most`` expressions.
    """
    sent = parse(protos.base.Plan, packed)
    plan = opened(sent)
    if plan is not sent:
        packed = plan.SerializeToString(deterministic=True)
    if len(packed) > LARGE_PLAN:
        expressions.check_count(plan, most)
    try:
        return packed, plan, read_opened(messages.as_command(plan))
    except RefusedError as error:
        if error.error_class != ErrorClass.NESTED_WRITE or not as_tables(plan):
            raise
    packed = plan.SerializeToString(deterministic=True)
    return packed, plan, read_opened(messages.as_command(plan))


async def _answered(plan_request: PlanRequest, answer: Answer) -> AsyncGenerator[bytes, None]:
    """Yield the ring's answer as responses: rows for a root, a relation for a SQL command."""
    for response in _ring_responses(plan_request, [chunk async for chunk in answer.result]):
        yield response
    if answer.observed:
        yield messages.observed(answer.observed)


def _ring_responses(plan_request: PlanRequest, chunks: Sequence[Chunk]) -> Iterator[bytes]:
    data = [chunk.data for chunk in chunks]
    if plan_request.is_root:
        yield messages.schema(data)
        yield from map(messages.rows, chunks or [Chunk(empty_stream(), 0)])
    elif plan_request.reading.does is Does.RUNS_SQL:
        yield messages.sql_result(data, plan_request.plan_id)


def _parts(session_id: str, statement: Sent) -> dict[str, Any]:
    match statement:
        case SentSql(text):
            content = text.encode("utf-8", "surrogatepass")
        case SentPlan(plan):
            content = plan
        case _:
            raise AssertionError("rows do not come here")
    return {"session_id": session_id, "plan": hashlib.sha256(content).hexdigest()}
