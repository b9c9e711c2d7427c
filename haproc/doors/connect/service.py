"""The handlers of all calls of spark.connect.SparkConnectService; messages are bytes.

A call that runs a plan is handled like a statement (`execute`). Its client receives the responses,
also if it has to ask several times (`delivery`). Questions about Spark Connect operations are
answered here. All other calls are relayed into the Spark session behind the client's session, and
what they change is recorded in the session's journal.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import grpc

from haproc import protos, wire
from haproc.classify.plans.parsing import parse
from haproc.config.model import Config
from haproc.doors.connect import messages, options
from haproc.doors.connect.calls import EXECUTE_OPERATION, Boundary, Call, check_id, text_of
from haproc.doors.connect.delivery import Deliveries, Source
from haproc.doors.connect.errors import Enriched, Key, OperationState
from haproc.doors.connect.execute import Behind, Executing, check_still
from haproc.doors.connect.messages import plans_of
from haproc.doors.connect.server import Figures
from haproc.engine.confs import POOL
from haproc.engine.rewriting import to_client, with_operation
from haproc.failure import ErrorClass, refused
from haproc.route.offload import Texts, plan_work
from haproc.sessions.client import ClientSession, KnownSettings
from haproc.sessions.durable import PIECE_BYTES_MAX
from haproc.sessions.journal import ArtifactEntry, ConfEntry
from haproc.statements.registry import Registry

_base = protos.base
SERVICE: Final = "spark.connect.SparkConnectService"
CONTROL_S: Final = 60.0
"""The time limit of calls that run no statement; a server that had just started took over 10 s for
the first one."""
RESENT_S: Final = 900.0
"""The age that is assumed of a request which PySpark may have sent before: PySpark does not say it.
It repeats for ten minutes (15 times, at last a minute apart), and the attempts themselves take
time."""
SETTINGS_KEPT_MAX: Final = 32
SETTINGS_BYTES_MAX: Final = 4 << 10
"""How many of Spark's answers about settings are kept for each session, and the most bytes of such
an answer with its question. Chosen: PySpark asks for two or three settings at once, in half a
kilobyte."""
_REATTACH_OPERATION, _REATTACH_LAST = 3, 5


class ConnectService:
    """The handlers of calls; each raises RequestError, or RelayedError with Spark's own error."""

    def __init__(
        self,
        config: Config,
        behind: Behind,
        registry: Registry,
        texts: Texts,
        deliveries: Deliveries,
    ) -> None:
        self._settings = config.connect
        self._behind = behind
        self._sessions = behind.sessions
        self._texts = texts
        self._executing = Executing(config, behind, registry, texts)
        self.deliveries = deliveries

    def handlers(self, boundary: Boundary) -> grpc.GenericRpcHandler:
        """Return the handlers in the form that a gRPC server needs."""
        unary: Mapping[str, Callable[[Call, bytes], Any]] = {
            "AnalyzePlan": self.analyze,
            "Config": self.config,
            "ArtifactStatus": self.relayed,
            "FetchErrorDetails": partial(self.error_details, boundary.enriched),
            "Interrupt": self.interrupt,
            "GetStatus": self.status,
            "ReleaseExecute": self.release_execute,
            "ReleaseSession": self.release_session,
            "CloneSession": self.clone_session,
        }
        made = {rpc: boundary.unary(rpc, handle) for rpc, handle in unary.items()}
        made["ExecutePlan"] = boundary.streaming("ExecutePlan", self.execute)
        made["ReattachExecute"] = boundary.streaming("ReattachExecute", self.reattach)
        made["AddArtifacts"] = boundary.uploading("AddArtifacts", self.add_artifacts)
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def figures(self) -> Figures:
        """Return the numbers of this door for operators."""
        running = {does.value: count for does, count in self._executing.running.items()}
        return Figures(running, self.deliveries.kept, self.deliveries.resumed)

    # -- operations --------------------------------------------------------------------------

    async def execute(self, call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        """ExecutePlan: run a plan, and yield the responses."""
        operation_id = text_of(request, EXECUTE_OPERATION)
        if not operation_id:
            operation_id = str(uuid.uuid4())
            request = with_operation(request, operation_id)
        key, names = _key(call, operation_id), to_client("ExecutePlan", call.names, operation_id)
        source = self._source(call, operation_id, resent=self.deliveries.was_sought(key))
        async with aclosing(
            self.deliveries.deliver_responses(key, request, source, names=names)
        ) as responses:
            async for response in responses:
                yield response

    async def reattach(self, call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        """ReattachExecute: yield the responses of an operation after those that the client has."""
        operation_id = text_of(request, _REATTACH_OPERATION)
        last = text_of(request, _REATTACH_LAST) or None
        key, names = _key(call, operation_id), to_client("ExecutePlan", call.names, operation_id)
        source = self._source(call, operation_id, resent=True)
        async with aclosing(self.deliveries.reattach(key, last, source, names=names)) as responses:
            async for response in responses:
                yield response

    def _source(self, call: Call, operation_id: str, *, resent: bool) -> Source:
        age_s = max(options.age_s(call.metadata), RESENT_S if resent else 0.0)
        return lambda request: self._executing.execute_plan(call, operation_id, request, age_s)

    async def release_execute(self, call: Call, request: bytes) -> bytes:
        """ReleaseExecute: forget responses that the client has read, or a whole operation."""
        parsed = parse(_base.ReleaseExecuteRequest, request)
        until = parsed.release_until.response_id if parsed.HasField("release_until") else None
        self.deliveries.release(_key(call, parsed.operation_id), until)
        return _answer(call, _base.ReleaseExecuteResponse(operation_id=parsed.operation_id))

    async def interrupt(self, call: Call, request: bytes) -> bytes:
        """Interrupt: stop Spark Connect operations; the answer names those that were stopped."""
        parsed = parse(_base.InterruptRequest, request)
        kinds = _base.InterruptRequest.InterruptType
        which: dict[str, str] = {}
        if parsed.interrupt_type == kinds.INTERRUPT_TYPE_TAG:
            which["tag"] = parsed.operation_tag
        elif parsed.interrupt_type == kinds.INTERRUPT_TYPE_OPERATION_ID:
            which["operation_id"] = parsed.operation_id
        elif parsed.interrupt_type != kinds.INTERRUPT_TYPE_ALL:
            raise refused(ErrorClass.BAD_REQUEST, "this kind of interrupt is not known")
        stopped = await self.deliveries.interrupt(call.user, call.names.session_id, **which)
        return _answer(call, _base.InterruptResponse(interrupted_ids=stopped))

    async def status(self, call: Call, request: bytes) -> bytes:
        """GetStatus: return the states of operations here, and of writes through any HAProc."""
        parsed = parse(_base.GetStatusRequest, request)
        response = _base.GetStatusResponse()
        if parsed.HasField("operation_status"):
            wanted = list(parsed.operation_status.operation_ids)
            found = self.deliveries.status(call.user, call.names.session_id, wanted)
            for operation_id, state in found.items():
                if state is OperationState.UNKNOWN:
                    state = self._executing.state_of_write(call.user, operation_id)
                response.operation_statuses.add(operation_id=operation_id, state=state.value)
        return _answer(call, response)

    # -- the session -------------------------------------------------------------------------

    async def _session(self, call: Call) -> ClientSession:
        return await self._behind.enter_session(call.names.session_id, call.user)

    async def analyze(self, call: Call, request: bytes) -> bytes:
        """AnalyzePlan: let Spark analyse plans, which may run parts of them."""
        request, plans = await plan_work(self._texts, len(request), plans_of, request)
        session = await self._session(call)
        counts = [await self._executing.check(call, session, plan) for plan in plans]
        await session.spark.ready()
        async with self._behind.planning.turn(call.user, CONTROL_S):
            answer = await self._relayed(call, session, request)
        for still in counts:
            check_still(still)
        return answer

    async def config(self, call: Call, request: bytes) -> bytes:
        """Config: read or change settings of the session."""
        parsed = parse(_base.ConfigRequest, request)
        reserved, session = options.reserved(parsed.operation), None
        held: Mapping[str, str] = {}
        if reserved:
            session = await self._session(call)
            answer = await self._configured(session, options.get_request(reserved))
            held = options.values(answer)
        operation = options.checked(parsed.operation, held)
        session = session or await self._session(call)
        left, entry = options.for_spark(operation), options.entry(operation)
        if left is not None:
            parsed.operation.CopyFrom(left)
        relayed = parsed.SerializeToString() if left is not None else None
        if entry is None:
            response = await self._settings_of(session, operation, relayed)
        else:
            silent = operation.WhichOneof("op_type") == "set" and operation.set.silent
            response = await self._set(session, relayed, entry, silent=silent)
        found = self._executing.options_of(session, call.metadata)
        return options.answer(operation, response, found) + to_client("Config", call.names)

    async def _settings_of(
        self, session: ClientSession, operation: Any, request: bytes | None
    ) -> bytes:
        """Return Spark's answer about settings, from memory if no statement may have changed it.

        PySpark asks for the same settings at each `collect`, and only a statement changes them.
        """
        if request is None:
            return b""
        known = session.known_settings.get(request)
        if known is not None and known.still() and known.epoch == session.spark.epoch:
            return known.response
        still, epoch = session.unchanged(), session.spark.epoch
        response = await self._configured(session, request)
        is_short = len(request) + len(response) <= SETTINGS_BYTES_MAX
        if is_short and operation.WhichOneof("op_type") != "get_all":
            if len(session.known_settings) >= SETTINGS_KEPT_MAX:
                session.known_settings.clear()
            session.known_settings[request] = KnownSettings(response, epoch, still)
        return response

    async def _set(
        self, session: ClientSession, relayed: bytes | None, entry: ConfEntry, *, silent: bool
    ) -> bytes:
        async with self._sessions.changing(session), session.settling:
            response = await self._configured(session, relayed, changes=True)
            if silent and relayed is not None:
                reading = options.get_request([key for key, _ in entry.sets])
                held = options.values(await self._configured(session, reading))
                entry = options.taken(entry, held)
            if entry.unsets:  # the value of this server's other sessions, not Spark's own
                back = await session.spark.untouched(entry.unsets)
                reading = options.get_request([*entry.unsets])
                now = options.values(await self._configured(session, reading)).items()
                if values := {k: v for k, v in back.items() if v is not None and (k, v) not in now}:
                    setting = options.setting(values)
                    await self._configured(session, setting, changes=True)
            if entry != ConfEntry():
                await self._sessions.record(session, entry)
            # An unset setting gets the ring's default; HAProc's own settings stay.
            if entry.unsets or POOL in dict(entry.sets):
                await session.spark.configure(session.settings)
        return response

    async def _configured(
        self, session: ClientSession, request: bytes | None, *, changes: bool = False
    ) -> bytes:
        if request is None:
            return b""
        relay = session.spark.relay
        return await relay.unary("Config", request, timeout_s=CONTROL_S, changes=changes)

    async def add_artifacts(
        self, call: Call, first: bytes, following: AsyncIterator[bytes]
    ) -> bytes:
        """AddArtifacts: add files to the client's session, and record them in its journal."""
        requests, size = [first], len(first)
        async for request in following:
            size += len(request)
            if size > self._settings.artifacts_bytes_max:
                raise refused(
                    ErrorClass.TOO_LARGE,
                    f"the files have more than {self._settings.artifacts_bytes_max} bytes",
                    "add them in several calls, or raise connect.artifacts_bytes_max",
                )
            call.held.reserve_bytes(len(request))
            requests.append(request)
        files = messages.files_of(requests, allow_jars=self._settings.allow_jars)
        session = await self._session(call)
        async with self._sessions.changing(session):
            response = await session.spark.relay.upload(
                call.rpc, requests, timeout_s=CONTROL_S, changes=True
            )
            for each in messages.arrived(files, wire.parsed(_base.AddArtifactsResponse, response)):
                blobs = [
                    await self._sessions.put_blob(session, piece)
                    for piece in each.pieces(PIECE_BYTES_MAX)
                ]
                entry = ArtifactEntry(each.name, tuple(blobs), each.size)
                await self._sessions.record(session, entry)
        return response + to_client(call.rpc, call.names)

    async def relayed(self, call: Call, request: bytes) -> bytes:
        """Relay a call into the Spark session behind the client's session; return the answer."""
        return await self._relayed(call, await self._session(call), request)

    async def _relayed(self, call: Call, session: ClientSession, request: bytes) -> bytes:
        response = await session.spark.relay.unary(call.rpc, request, timeout_s=CONTROL_S)
        return response + to_client(call.rpc, call.names)

    async def error_details(self, enriched: Enriched, call: Call, request: bytes) -> bytes:
        """FetchErrorDetails: return the details of HAProc's error, or relay the call to Spark."""
        parsed = parse(_base.FetchErrorDetailsRequest, request)
        found = enriched.find(parsed.error_id)
        if found is None:
            return await self.relayed(call, request)
        return found + to_client(call.rpc, call.names)

    async def release_session(self, call: Call, request: bytes) -> bytes:
        """ReleaseSession: close the session for good, or let its id be used for a new one."""
        parsed = parse(_base.ReleaseSessionRequest, request)
        self.deliveries.close_session(call.user, call.names.session_id)
        if parsed.allow_reconnect:
            await self._sessions.begin_afresh(call.user, call.names.session_id)
        else:
            await self._sessions.close(call.user, call.names.session_id)
        return to_client(call.rpc, call.names)

    async def clone_session(self, call: Call, request: bytes) -> bytes:
        """CloneSession: make a new session with the content of the client's session."""
        parsed = parse(_base.CloneSessionRequest, request)
        new_id = parsed.new_session_id or str(uuid.uuid4())
        check_id(new_id, "the new session's")
        copy = await self._sessions.clone(await self._session(call), new_id)
        response = _base.CloneSessionResponse(
            new_session_id=copy.id, new_server_side_session_id=copy.server_id
        )
        return _answer(call, response)


def _key(call: Call, operation_id: str) -> Key:
    return Key(call.user, call.names.session_id, check_id(operation_id, "the operation's"))


def _answer(call: Call, response: Any) -> bytes:
    return bytes(response.SerializeToString()) + to_client(call.rpc, call.names)
