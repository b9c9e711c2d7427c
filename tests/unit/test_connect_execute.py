"""ExecutePlan: the relayed request equals the one that was read; retries are recognised."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import AsyncMock

import pyarrow as pa
import pytest

from dmq.memory import MemoryKeys, MemoryKeyValueStore
from haproc import protos
from haproc.classify.model import Kind, RefusedError
from haproc.classify.plans import expressions
from haproc.classify.plans.parsing import Does, PlanFindings
from haproc.classify.rights import UNBOUNDED
from haproc.config.model import Reads
from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.doors.connect.delivery import Deliveries
from haproc.doors.connect.execute import Executing, Permitted, PlanRequest
from haproc.doors.connect.operation import DeliveryLimits
from haproc.doors.connect.service import RESENT_S, ConnectService
from haproc.engine.rewriting import Names
from haproc.failure import ErrorClass, RequestError, refused
from haproc.route.model import Request, SentPlan
from haproc.route.offload import LARGE_PLAN, Inline, Texts
from haproc.sessions.journal import SqlEntry
from tests.unit import session_rig

T = TypeVar("T")
base = protos.base
_WRITE = "CREATE TABLE t (a INT)"


def _field(tag: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes((tag, len(value))) + value


def _sql(text: str) -> Any:
    plan = base.Plan()
    plan.command.sql_command.input.sql.query = text
    return plan


def _config(limits: Limits | None = None) -> Any:
    connect = SimpleNamespace(statement_s=1.0)
    return SimpleNamespace(reads=Reads(), limits=limits or Limits(), connect=connect)


async def _read(
    request: bytes, texts: Texts | None = None, limits: Limits | None = None
) -> PlanRequest:
    behind: Any = SimpleNamespace(sessions=None)
    registry: Any = None
    call: Any = SimpleNamespace(user="alice")
    executing = Executing(_config(limits), behind, registry, texts or Inline())
    return await executing._read(call, request)


def _disguised(plan: bytes) -> bytes:
    """Return a request whose plan, read together with the numbers before it, would only hold
    rows.
    """
    for padding in range(1, 9):
        schema = _field(2 << 3 | 2, b" " * padding)
        rows = schema + bytes((1 << 3 | 2, len(plan)))
        relation = bytes((11 << 3 | 2, len(rows) + len(plan))) + rows
        before = bytes((1 << 3 | 2, len(relation) + len(plan))) + relation
        if len(before) % 8 == 0:
            break
    numbers = [before[at : at + 8] for at in range(0, len(before), 8)]
    return b"".join(bytes((3 << 3 | 1,)) + each for each in numbers) + _field(3 << 3 | 2, plan)


async def test_write_behind_numbers_that_disguise_it_as_rows_is_read_as_spark_reads_it() -> None:
    request = _disguised(_sql(_WRITE).SerializeToString())
    assert base.ExecutePlanRequest.FromString(request).plan == _sql(_WRITE)
    requested = await _read(request)
    assert requested.reading.does is Does.RUNS_SQL
    assert base.ExecutePlanRequest.FromString(requested.request).plan == _sql(_WRITE)


async def test_compressed_plan_is_relayed_uncompressed() -> None:
    inner = protos.relations.Relation()
    inner.range.end, inner.range.step = 3, 1
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(inner.SerializeToString())
    request = base.ExecutePlanRequest(session_id="s")
    packed = request.plan.compressed_operation
    packed.data = sink.getvalue().to_pybytes()
    packed.op_type = base.Plan.CompressedOperation.OP_TYPE_RELATION
    packed.compression_codec = base.COMPRESSION_CODEC_ZSTD
    requested = await _read(request.SerializeToString())
    assert base.ExecutePlanRequest.FromString(requested.request).plan == base.Plan(root=inner)
    assert isinstance(requested.statement, SentPlan)
    assert base.Plan.FromString(requested.statement.plan) == base.Plan(root=inner)


_OPTIONS = 12


def _with_frame() -> bytes:
    """Return a text with an argument and a DataFrame that is read with several options."""
    request = base.ExecutePlanRequest(session_id="s")
    both = request.plan.command.sql_command.input.with_relations
    both.root.sql.query = "INSERT INTO t SELECT * FROM df WHERE a = :a"
    both.root.sql.named_arguments["a"].literal.integer = 1
    frame = both.references.add().subquery_alias
    frame.alias = "df"
    frame.input.read.named_table.unparsed_identifier = "s"
    for number in range(_OPTIONS):
        frame.input.read.named_table.options[f"option{number}"] = "x"
    return bytes(request.SerializeToString(deterministic=True))


def _read_in_another_process(request: bytes) -> bytes:
    """Return the plan of the request's statement as another process reads it."""
    script = (
        "import asyncio, sys\n"
        "from tests.unit.test_connect_execute import _read\n"
        "asked = asyncio.run(_read(bytes.fromhex(sys.argv[1])))\n"
        "print(asked.statement.plan.hex())"
    )
    command = [sys.executable, "-c", script, request.hex()]
    reported = subprocess.run(command, capture_output=True, check=True, text=True)
    return bytes.fromhex(reported.stdout)


async def test_plan_read_by_another_process_has_the_same_bytes() -> None:
    """Each process writes the entries of maps in an order of its own."""
    statement = (await _read(_with_frame())).statement
    assert isinstance(statement, SentPlan)
    assert _read_in_another_process(_with_frame()) == statement.plan


def test_numbers_before_a_disguised_plan_turn_it_into_rows() -> None:
    plan = _sql(_WRITE).SerializeToString()
    request = _disguised(plan)
    joined = b"".join(request[at + 1 : at + 9] for at in range(0, len(request) - len(plan) - 2, 9))
    held = base.Plan.FromString(joined + plan)
    assert held.root.local_relation.data == plan
    assert held != base.ExecutePlanRequest.FromString(request).plan


_ID = "00000000-0000-0000-0000-00000000000a"


async def _ages(*, looked_for: bool, **metadata: str) -> list[float]:
    """Return the ages of the ExecutePlan requests that the ring receives."""
    reported: list[float] = []

    async def run(*requested: Any) -> AsyncGenerator[bytes, None]:
        reported.append(requested[3])
        yield base.ExecutePlanResponse().SerializeToString()

    async with AsyncExitStack() as stack:
        deliveries = Deliveries(
            MemoryKeyValueStore(MemoryKeys()),
            DeliveryLimits(),
            memory=Shares(1 << 20),
            operations=Shares(1),
            goes_on=lambda key: False,
            take_back=AsyncMock(return_value=False),
        )
        stack.push_async_callback(deliveries.aclose)
        behind: Any = SimpleNamespace(sessions=None)
        registry: Any = None
        service = ConnectService(_config(), behind, registry, Inline(), deliveries)
        service._executing = SimpleNamespace(execute_plan=run)  # type: ignore[assignment]
        call: Any = SimpleNamespace(user="alice", names=Names("s", "i"), metadata=metadata)
        if looked_for:
            requested = base.ReattachExecuteRequest(session_id="s", operation_id=_ID)
            with pytest.raises(RequestError, match="not found"):
                await anext(service.reattach(call, requested.SerializeToString()))
        request = base.ExecutePlanRequest(session_id="s", operation_id=_ID)
        async for _ in service.execute(call, request.SerializeToString()):
            pass
    return reported


async def test_request_age_is_the_client_header_or_the_resend_time() -> None:
    """A write that is sent again is looked for in the log as far back as its record may be."""
    assert await _ages(looked_for=False) == [0.0]
    assert await _ages(looked_for=True) == [RESENT_S]
    assert await _ages(looked_for=False, **{"haproc-age-s": "7.5"}) == [7.5]
    with pytest.raises(RequestError, match="seconds"):
        await _ages(looked_for=False, **{"haproc-age-s": "soon"})


class Beside(Inline):
    """Counts the work that is done outside the event loop."""

    def __init__(self) -> None:
        self.count = 0

    async def beside(self, work: Callable[..., T], *values: Any) -> T:
        self.count += 1
        return await super().beside(work, *values)


def _one_of(count: int, *texts: str) -> Any:
    """Return a query whose condition contains so many numbers, and these texts."""
    plan = base.Plan()
    where = plan.root.filter
    where.input.read.named_table.unparsed_identifier = "t"
    called = where.condition.unresolved_function
    called.function_name = "in"
    called.arguments.add().unresolved_attribute.unparsed_identifier = "a"
    for number in range(count):
        called.arguments.add().literal.long = number
    for text in texts:
        called.arguments.add().literal.string = text
    return plan


@pytest.mark.parametrize("compressed", [False, True])
async def test_large_plan_is_read_outside_the_event_loop(compressed: bool) -> None:
    plan = _one_of(LARGE_PLAN // 6)
    if compressed:
        packed = base.Plan()
        packed.compressed_operation.op_type = base.Plan.CompressedOperation.OP_TYPE_RELATION
        packed.compressed_operation.compression_codec = base.COMPRESSION_CODEC_ZSTD
        data = plan.root.SerializeToString()
        packed.compressed_operation.data = pa.compress(data, "zstd", asbytes=True)
        # It is small, and nobody knows what it opens to.
        assert packed.ByteSize() < LARGE_PLAN < plan.ByteSize()
        plan = packed
    for sent, beside in ((plan, 1), (_one_of(9), 0)):
        texts, request = Beside(), base.ExecutePlanRequest(session_id="s")
        request.plan.CopyFrom(sent)
        requested = await _read(request.SerializeToString(), texts)
        assert (requested.reading.does, texts.count) == (Does.QUERIES, beside)


def test_plan_findings_skip_numbers_but_not_the_texts_between_them() -> None:
    plan = _one_of(1000, "now")
    assert len(list(expressions._below(plan))) < 20
    found = PlanFindings()
    expressions.take(plan, found)
    assert found.functions == {"in"}


@pytest.mark.parametrize(
    "name", ["release_execute", "interrupt", "status", "release_session", "clone_session"]
)
async def test_call_whose_bytes_are_no_message_is_refused(name: str) -> None:
    connect = SimpleNamespace(statement_s=1.0)
    nothing: Any = SimpleNamespace(sessions=None, connect=connect, reads=Reads(), limits=Limits())
    service = ConnectService(nothing, nothing, nothing, Inline(), nothing)
    with pytest.raises(RefusedError, match="no protocol buffer"):
        await getattr(service, name)(SimpleNamespace(user="alice", names=Names("s", "i")), b"\xff")


@pytest.mark.parametrize(("more", "refused"), [(0, True), (20, False)])
async def test_plan_of_too_many_expressions_is_refused(more: int, refused: bool) -> None:
    request = base.ExecutePlanRequest(session_id="s")
    request.plan.CopyFrom(_one_of(LARGE_PLAN // 6))
    limits = Limits(statement_tokens_max=LARGE_PLAN // 6 + more)
    with pytest.raises(RefusedError, match="tokens_max") if refused else nullcontext():
        assert (
            await _read(request.SerializeToString(), limits=limits)
        ).reading.does is Does.QUERIES


def _nowhere(behind: Any) -> Executing:
    nobody: Any = None
    return Executing(_config(), behind, nobody, Inline())


@pytest.mark.parametrize("still", [True, False])
async def test_temporary_view_counts_only_if_its_names_mean_the_same_after_its_creation(
    still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: Any) -> list[bytes]:
        ran.append("made")
        return [b"done"]

    async def left(*_: Any) -> SqlEntry:
        return SqlEntry("v")

    ran: list[str] = []
    monkeypatch.setattr(Executing, "_change", run)
    monkeypatch.setattr("haproc.doors.connect.execute.left_by_plan", left)
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)
    executing = _nowhere(SimpleNamespace(sessions=member.sessions))
    requested: Any = SimpleNamespace(reading=SimpleNamespace(kind=Kind.TEMPORARY_VIEW), plan=b"")
    request: Any = SimpleNamespace(id="r")
    permitted = Permitted(session, requested, request, lambda: bool(ran) and still)
    answer = executing._changed(permitted)
    if still:
        assert [piece async for piece in answer] == [b"done"]
        assert len(session.entries) == 1 and session.spark.stands
    else:
        with pytest.raises(RequestError) as caught:
            await anext(answer)
        assert caught.value.error_class == ErrorClass.NOT_FRESH
        assert not session.entries and not session.spark.stands


@pytest.mark.parametrize("still", [True, False])
async def test_answer_is_withheld_if_the_session_changed_before_spark_read_the_query(
    still: bool,
) -> None:
    async def nothing() -> None:
        pass

    async def responses(*args: Any, **options: Any) -> AsyncGenerator[bytes, None]:
        requested.append("begun")
        yield b"rows"
        yield b"more"

    requested: list[str] = []
    validity = iter([still])  # it is asked once, when Spark has begun to answer
    relay = SimpleNamespace(execute=responses)
    session: Any = SimpleNamespace(spark=SimpleNamespace(ready=nothing, relay=relay))
    turns = SimpleNamespace(departures=lambda: 0, turn=lambda *args: nullcontext())
    request: Any = SimpleNamespace(timeout_s=9.0, statement=SentPlan(b""), user="u")
    executing = _nowhere(SimpleNamespace(sessions=None, planning=turns))
    reported: Any = SimpleNamespace(request=b"")
    permitted = Permitted(session, reported, request, lambda: bool(requested) and next(validity))
    answer = executing._relayed(permitted)
    if still:
        assert [piece async for piece in answer] == [b"rows", b"more"]
    else:
        with pytest.raises(RequestError) as caught:
            await anext(answer)
        assert caught.value.error_class == ErrorClass.NOT_FRESH


async def test_spark_settings_are_queried_again_after_a_statement_that_may_change_them() -> None:
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)
    requested: list[bytes] = []

    async def unary(rpc: str, request: bytes, **_: Any) -> bytes:
        requested.append(request)
        return bytes(base.ConfigResponse(session_id=str(len(requested))).SerializeToString())

    spark: Any = SimpleNamespace(epoch=0, relay=SimpleNamespace(unary=unary))
    session.spark = spark
    behind: Any = SimpleNamespace(sessions=member.sessions)
    nobody: Any = None
    service = ConnectService(_config(), behind, nobody, Inline(), nobody)

    async def reported(**operation: Any) -> int:
        request = base.ConfigRequest()
        request.operation.CopyFrom(base.ConfigRequest.Operation(**operation))
        data = request.SerializeToString()
        response = await service._settings_of(session, request.operation, data)
        return int(base.ConfigResponse.FromString(response).session_id)

    get = {"get": base.ConfigRequest.Get(keys=["a"])}
    assert [await reported(**get), await reported(**get)] == [1, 1]
    assert await reported(get=base.ConfigRequest.Get(keys=["b"])) == 2
    async with member.sessions.changing(session):
        assert [await reported(**get), await reported(**get)] == [
            3,
            4,
        ]  # it may have run by now, or not
    assert [await reported(**get), await reported(**get)] == [5, 5]
    spark.epoch += 1  # another Spark session, which is given the same settings
    assert [await reported(**get), await reported(**get)] == [6, 6]
    every = {"get_all": base.ConfigRequest.GetAll()}
    assert [await reported(**every), await reported(**every)] == [7, 8]


async def test_request_arrives_at_the_time_of_its_call_however_long_the_adoption_takes() -> None:
    """A later time would hide copies of the request that other HAProcs received meanwhile."""
    requested: list[Request] = []

    @asynccontextmanager
    async def having(request: Request, decide: object) -> AsyncIterator[Any]:
        requested.append(request)
        raise refused(ErrorClass.NOT_NOW, "enough is known")
        yield

    session = SimpleNamespace(id="s", options={}, check_handles=lambda handles: None)
    behind: Any = SimpleNamespace(
        sessions=None, decide=None, enter_session=AsyncMock(return_value=session)
    )
    registry: Any = SimpleNamespace(having=having)
    call: Any = SimpleNamespace(
        user="alice", names=Names("s", ""), metadata={}, arrived_s=5.0, rights=UNBOUNDED
    )
    call.authorization = None
    request = base.ExecutePlanRequest(session_id="s", plan=_sql(_WRITE)).SerializeToString()
    executing = Executing(_config(), behind, registry, Inline())
    with pytest.raises(RequestError):
        async for _ in executing.execute_plan(call, "op", request):
            pass
    assert requested[0].arrived_s == 5.0
