"""Tests of an operation's result at its client: held, streamed, reattached, resumed on a peer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dmq.log import LogUnavailableError
from dmq.memory import MemoryKeyValueStore
from haproc.config.shares import Shares
from haproc.doors.connect.delivery import RUNNING, Deliveries
from haproc.doors.connect.errors import Key, OperationState
from haproc.doors.connect.operation import DeliveryLimits
from haproc.doors.connect.responses import ResultPosition, Way, id_text, packed, read_id
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import ErrorClass, RequestError
from tests.unit.delivery_rig import Rig, failing, read
from tests.unit.door_rig import until
from tests.unit.spark_responses import (
    OPERATION,
    SESSION,
    Client,
    Response,
    complete,
    progress,
    request,
    result,
    schema,
)

KEY = Key("ann", SESSION, OPERATION)
TABLE = pa.table({"a": list(range(20_000)), "b": [f"row {i}" for i in range(20_000)]})
CUT = list(range(1000, 20_000, 1000))
AWAY = EngineError(ErrorKind.AVAILABILITY, "the connection broke")
WRONG = EngineError(ErrorKind.APPLICATION, "division by zero", error_class="DIVIDE_BY_ZERO")
LONG = request("select " + " ".join(f"{i * 7919 % 10007}" for i in range(9000)))
"""A request that does not fit into an id."""


@pytest.fixture
async def rig() -> AsyncGenerator[Rig, None]:
    made = Rig()
    yield made
    for deliveries in made.all:
        await deliveries.aclose()
    assert made.memory.taken == 0


async def test_result_is_held_until_it_is_complete(rig: Rig) -> None:
    haproc, gate = rig.haproc(), asyncio.Event()
    table = pa.table({"a": [1]})
    names = bytes(Response(session_id=SESSION).SerializeToString())
    stream = haproc.deliver_responses(
        KEY, request(), rig.source(result(table, [])[:-1], gate), names=names
    )
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    assert not first.done() and haproc.kept == 1
    gate.set()
    client = Client()
    client.take(await first)
    assert (await read(stream, client)).has_all_of(table)  # completed by us, as Spark would


async def test_small_result_is_resumed_on_any_haproc_without_running_again(rig: Rig) -> None:
    table = pa.table({"a": [1, 2]})
    responses = result(table, [1])
    for count in (1, 2):  # schema and rows; rows and metrics; the end is the third
        haproc = rig.haproc()
        client = await read(haproc.deliver_responses(KEY, LONG, rig.source(responses)), count=count)
        await haproc.aclose()
        runs = len(rig.requests)
        other = rig.haproc()
        await read(other.reattach(KEY, client.last_id, rig.source([])), client)
        assert client.has_all_of(table) and len(rig.requests) == runs
        assert other.release(KEY)


@pytest.mark.parametrize("execute_request", [request("select * from t"), LONG])
@settings(max_examples=25, deadline=None)
@given(st.data())
async def test_large_result_arrives_whole_though_its_haprocs_die(
    execute_request: bytes, data: st.DataObject
) -> None:
    rig, client, last = Rig(), Client(), ""
    for left in range(8, 0, -1):
        edges = data.draw(st.lists(st.integers(0, 20_000), min_size=10, max_size=20))
        haproc, source = rig.haproc(), rig.source(result(TABLE, edges))
        stream = (
            haproc.reattach(KEY, last, source)
            if last
            else haproc.deliver_responses(KEY, execute_request, source)
        )
        await read(stream, client, data.draw(st.integers(1, 15)) if left > 1 else 1 << 30)
        last = client.last_id
        if client.seen[-1:] == ["result_complete"]:
            haproc.release(KEY)
            await haproc.aclose()
            break
        await haproc.aclose()
    assert client.has_all_of(TABLE)
    assert set(rig.requests) == {execute_request}
    assert rig.keys.kept == {}


async def test_request_is_stored_before_the_first_piece_and_deleted_at_the_end(rig: Rig) -> None:
    haproc = rig.haproc()
    stream = haproc.deliver_responses(KEY, LONG, rig.source(result(TABLE, CUT)))
    client = await read(stream, count=1)
    (kept,) = rig.keys.kept
    assert kept == f"{RUNNING}ann/{SESSION}/{OPERATION}"
    await read(haproc.reattach(KEY, client.last_id, rig.source([])), client)
    assert client.has_all_of(TABLE) and len(rig.requests) == 1 and rig.keys.kept
    haproc.release(KEY)
    await haproc.aclose()
    assert rig.keys.kept == {}


async def test_request_that_another_haproc_took_over_is_not_deleted_by_the_first(rig: Rig) -> None:
    one, other = rig.haproc(), rig.haproc()
    client = await read(one.deliver_responses(KEY, LONG, rig.source(result(TABLE, CUT))), count=3)
    await read(other.reattach(KEY, client.last_id, rig.source(result(TABLE, []))), client, 1)
    one.release(KEY)
    await one.aclose()
    assert len(rig.keys.kept) == 1
    other.release(KEY)
    await other.aclose()
    assert rig.keys.kept == {}


async def test_resumed_result_with_other_rows_ends_with_result_changed(rig: Rig) -> None:
    client = await read(
        rig.haproc().deliver_responses(KEY, request(), rig.source(result(TABLE, CUT))), count=9
    )
    assert client.rows > 2
    shuffled = TABLE.take(pa.array(list(reversed(range(20_000)))))
    again = rig.haproc().reattach(KEY, client.last_id, rig.source(result(shuffled, CUT)))
    assert await failing(again) == ErrorClass.RESULT_CHANGED


async def test_failure_before_the_result_is_complete_returns_only_an_error(rig: Rig) -> None:
    haproc = rig.haproc()
    source = rig.source([schema(), WRONG])
    assert await failing(haproc.deliver_responses(KEY, request(), source)) == "DIVIDE_BY_ZERO"
    assert await failing(haproc.reattach(KEY, None, source)) == "DIVIDE_BY_ZERO"
    assert len(rig.requests) == 1
    haproc.release(KEY)
    assert haproc.status("ann", SESSION) == {OPERATION: OperationState.FAILED}


async def test_spark_failure_before_the_first_response_lets_the_client_send_its_plan_again(
    rig: Rig,
) -> None:
    haproc = rig.haproc()
    with pytest.raises(EngineError, match="broke"):
        await read(haproc.deliver_responses(KEY, request(), rig.source([schema(), AWAY])))
    gone = await failing(haproc.reattach(KEY, None, rig.source([])))
    assert gone == "INVALID_HANDLE.OPERATION_NOT_FOUND"  # a client sends its plan again then
    table = pa.table({"a": [1]})
    assert (
        await read(haproc.deliver_responses(KEY, request(), rig.source(result(table, []))))
    ).has_all_of(table)


@pytest.mark.parametrize("same", [True, False])
async def test_spark_failure_amid_a_result_ends_the_stream_and_a_reattach_resumes_it(
    rig: Rig, same: bool
) -> None:
    haproc, client = rig.haproc(), Client()
    with pytest.raises(EngineError, match="broke"):
        await read(
            haproc.deliver_responses(KEY, LONG, rig.source([*result(TABLE, CUT)[:15], AWAY])),
            client,
        )
    assert client.rows
    other = haproc if same else rig.haproc()
    await read(other.reattach(KEY, client.last_id, rig.source(result(TABLE, [77]))), client)
    assert client.has_all_of(TABLE) and other.resumed == 1
    other.release(KEY)


async def test_newer_stream_ends_the_older_one(rig: Rig) -> None:
    haproc, client = rig.haproc(), Client()
    older = haproc.deliver_responses(KEY, request(), rig.source(result(TABLE, CUT)))
    client.take(await anext(older))
    newer = haproc.reattach(KEY, client.last_id, rig.source([]))
    client.take(await anext(newer))
    assert await failing(older) == "INVALID_CURSOR.DISCONNECTED"
    assert (await read(newer, client)).has_all_of(TABLE)


async def test_released_responses_and_operations_are_not_available_any_more(rig: Rig) -> None:
    haproc, table = rig.haproc(), pa.table({"a": [1]})
    source = rig.source(result(table, []))
    client = await read(haproc.deliver_responses(KEY, request(), source))
    assert haproc.status("ann", SESSION) == {OPERATION: OperationState.TERMINATING}
    assert (await read(haproc.deliver_responses(KEY, request(), source))).has_all_of(table)
    assert (await read(haproc.reattach(KEY, None, source))).has_all_of(table)
    other_plan = haproc.deliver_responses(KEY, request("select 2"), source)
    assert await failing(other_plan) == "INVALID_HANDLE.OPERATION_ALREADY_EXISTS"
    with pytest.raises(RequestError, match="bogus"):
        haproc.release(KEY, "bogus")
    assert haproc.release(KEY, client.last_id)
    gone = await failing(haproc.reattach(KEY, None, source))
    assert gone == "INVALID_CURSOR.POSITION_NOT_AVAILABLE"
    assert haproc.release(KEY) and not haproc.release(KEY)
    assert haproc.status("ann", SESSION) == {OPERATION: OperationState.SUCCEEDED}
    for last in (None, client.last_id):
        gone = await failing(haproc.reattach(KEY, last, source))
        assert gone == "INVALID_HANDLE.OPERATION_NOT_FOUND"
    assert (
        await failing(haproc.deliver_responses(KEY, request(), source))
        == "INVALID_HANDLE.OPERATION_ABANDONED"
    )
    assert len(rig.requests) == 1


async def test_operation_that_a_client_looked_for_in_vain_is_remembered_as_sought(
    rig: Rig,
) -> None:
    haproc = rig.haproc()
    assert not haproc.was_sought(KEY)
    await failing(haproc.reattach(KEY, None, rig.source([])))
    assert haproc.was_sought(KEY)
    assert not haproc.was_sought(dataclasses.replace(KEY, user="bob"))


async def test_unknown_operation_is_not_found(rig: Rig) -> None:
    haproc = rig.haproc()
    for last in (None, "bogus"):
        gone = await failing(haproc.reattach(KEY, last, rig.source([])))
        assert gone == "INVALID_HANDLE.OPERATION_NOT_FOUND"
    assert haproc.status("ann", SESSION, [OPERATION]) == {OPERATION: OperationState.UNKNOWN}
    assert await haproc.interrupt("ann", SESSION) == []
    await read(haproc.deliver_responses(KEY, request(), rig.source([complete()])))
    assert await failing(haproc.reattach(KEY, "x", rig.source([]))) == (
        "INVALID_CURSOR.POSITION_NOT_FOUND"
    )
    invented_id = id_text(read_id_run(haproc), 99, ResultPosition(), Way.NOTHING)
    assert await failing(haproc.reattach(KEY, invented_id, rig.source([]))) == (
        "INVALID_CURSOR.POSITION_NOT_FOUND"
    )


def read_id_run(haproc: Deliveries) -> bytes:
    return haproc._operations[KEY].run


@pytest.mark.parametrize("revocable", [False, True])
async def test_interrupted_write_is_answered_whether_it_was_revoked_or_not(
    rig: Rig, revocable: bool
) -> None:
    rig.revocable = {KEY} if revocable else set()
    haproc, gate = rig.haproc(), asyncio.Event()
    rig.going_on.add(KEY)
    stream = haproc.deliver_responses(KEY, request(), rig.source(result(TABLE, CUT), gate))
    reading = asyncio.ensure_future(read(stream))
    await asyncio.sleep(0.01)
    assert await haproc.interrupt("ann", SESSION) == ([OPERATION] if revocable else [])
    gate.set()
    assert (await reading).has_all_of(TABLE)


async def test_released_operation_that_goes_on_has_the_state_unknown(rig: Rig) -> None:
    haproc, gate = rig.haproc(), asyncio.Event()
    rig.going_on.add(KEY)
    reading = asyncio.ensure_future(
        failing(haproc.deliver_responses(KEY, request(), rig.source([], gate)))
    )
    await asyncio.sleep(0.01)
    haproc.release(KEY)
    reading.cancel()
    assert haproc.status("ann", SESSION) == {OPERATION: OperationState.UNKNOWN}


@pytest.mark.parametrize("by", [{"operation_id": OPERATION}, {"tag": "t"}, {}])
async def test_interrupted_operation_ends_as_canceled_and_stops_on_spark(
    rig: Rig, by: dict[str, str]
) -> None:
    haproc, gate = rig.haproc(), asyncio.Event()
    stream = haproc.deliver_responses(KEY, request(tags=["t"]), rig.source([schema()], gate))
    reading = asyncio.ensure_future(failing(stream))
    await asyncio.sleep(0.01)
    assert await haproc.interrupt("ann", SESSION, tag="another") == []
    assert await haproc.interrupt("bob", SESSION, **by) == []
    assert await haproc.interrupt("ann", SESSION, **by) == [OPERATION]
    assert await reading == "OPERATION_CANCELED"
    assert await haproc.interrupt("ann", SESSION, **by) == []
    assert rig.closed_early == 1
    for _ in range(2):
        assert haproc.status("ann", SESSION) == {OPERATION: OperationState.CANCELLED}
        haproc.release(KEY)


async def test_operation_without_a_reader_is_abandoned(rig: Rig) -> None:
    haproc = rig.haproc(abandoned_after_s=0.02, look_interval_s=0.01)
    await read(haproc.deliver_responses(KEY, LONG, rig.source(result(TABLE, CUT))), count=1)
    await until(lambda: not haproc.kept and not rig.keys.kept)
    assert rig.closed_early == 1 and rig.operations.taken == 0
    gone = await failing(haproc.reattach(KEY, None, rig.source([])))
    assert gone == "INVALID_HANDLE.OPERATION_ABANDONED"


async def test_client_that_returns_from_another_haproc_can_resume(rig: Rig) -> None:
    """Although this HAProc had abandoned the operation, or still has its own run of it."""
    for give_up in (True, False):
        one, other = rig.haproc(), rig.haproc()
        client = await read(
            one.deliver_responses(KEY, request(), rig.source(result(TABLE, CUT))), count=4
        )
        if give_up:
            one.close_session("ann", SESSION)
        await read(other.reattach(KEY, client.last_id, rig.source(result(TABLE, [5]))), client, 1)
        await other.aclose()
        await read(one.reattach(KEY, client.last_id, rig.source(result(TABLE, [9]))), client)
        assert client.has_all_of(TABLE)


async def test_client_that_reattaches_twice_at_the_same_position_finds_one_run(rig: Rig) -> None:
    client = await read(
        rig.haproc().deliver_responses(KEY, LONG, rig.source(result(TABLE, CUT))), count=4
    )
    other, last = rig.haproc(), client.last_id
    lost = Client()
    await read(other.reattach(KEY, last, rig.source(result(TABLE, CUT))), lost_of(client, lost), 1)
    await read(other.reattach(KEY, last, rig.source([])), client)
    assert client.has_all_of(TABLE) and len(rig.requests) == 2


def lost_of(client: Client, lost: Client) -> Client:
    """Return a copy of a client, for responses that never arrived."""
    lost.rows, lost.batches, lost.seen = client.rows, [*client.batches], [*client.seen]
    return lost


async def test_result_whose_request_was_not_stored_cannot_be_resumed_on_another_haproc(
    rig: Rig,
) -> None:
    class Away(MemoryKeyValueStore):
        async def put(self, key: str, value: bytes) -> int:
            raise LogUnavailableError("no store")

    haproc = rig.haproc(Away())
    client = await read(
        haproc.deliver_responses(KEY, LONG, rig.source(result(TABLE, CUT))), count=4
    )
    other = rig.haproc()
    assert await failing(other.reattach(KEY, client.last_id, rig.source([]))) == (
        ErrorClass.RESULT_LOST
    )
    await read(haproc.reattach(KEY, client.last_id, rig.source([])), client)
    assert client.has_all_of(TABLE)
    stored = id_text(b"12345678", 3, ResultPosition(), Way.STORED)
    assert await failing(other.reattach(KEY, stored, rig.source([]))) == ErrorClass.RESULT_LOST


async def test_id_with_the_request_of_another_operation_is_refused(rig: Rig) -> None:
    other = dataclasses.replace(KEY, operation_id=SESSION)
    for rest in (request(), b"no request", b""):
        invented_id = id_text(b"12345678", 0, ResultPosition(), Way.REQUEST, packed(rest))
        gone = await failing(rig.haproc().reattach(other, invented_id, rig.source([])))
        assert gone == ErrorClass.RESULT_LOST
    invented_id = id_text(b"12345678", 0, ResultPosition(), Way.TAIL, packed(b"no responses"))
    gone = await failing(rig.haproc().reattach(KEY, invented_id, rig.source([])))
    assert gone == "INVALID_CURSOR.POSITION_NOT_FOUND"
    assert rig.requests == []


async def test_stream_ends_after_its_byte_limit_and_is_reattached(rig: Rig) -> None:
    haproc, client, streams = rig.haproc(stream_bytes_max=100_000), Client(), 1
    await read(haproc.deliver_responses(KEY, request(), rig.source(result(TABLE, CUT))), client)
    while client.seen[-1:] != ["result_complete"]:
        await read(haproc.reattach(KEY, client.last_id, rig.source([])), client)
        streams += 1
    assert client.has_all_of(TABLE) and 3 < streams < 12 and len(rig.requests) == 1


async def test_stream_of_a_client_that_cannot_reattach_is_not_cut_and_leaves_nothing(
    rig: Rig,
) -> None:
    haproc, execute_request = (
        rig.haproc(stream_bytes_max=1000, stream_s=0),
        request(reattachable=False),
    )
    client = await read(
        haproc.deliver_responses(KEY, execute_request, rig.source(result(TABLE, CUT)[:-1]))
    )
    assert client.table(TABLE).equals(TABLE) and client.seen == ["schema", "metrics"]
    gone = await failing(haproc.reattach(KEY, client.last_id, rig.source([])))
    assert gone == "INVALID_HANDLE.OPERATION_NOT_FOUND"
    stream = haproc.deliver_responses(
        dataclasses.replace(KEY, operation_id=SESSION),
        execute_request,
        rig.source(result(TABLE, CUT)),
    )
    await read(stream, count=1)  # and goes away
    assert haproc.kept == 0 and rig.operations.taken == 0


async def test_run_waits_for_its_client_and_keeps_few_bytes(rig: Rig) -> None:
    haproc, produced = rig.haproc(retained_bytes=50_000), []
    responses = result(TABLE, CUT)

    def counted() -> Iterable[bytes]:
        for response in responses:
            produced.append(response)
            yield response

    stream = haproc.deliver_responses(KEY, request(), rig.source(counted()))
    client = await read_slowly(stream, rig, produced)
    assert client.has_all_of(TABLE)
    assert rig.memory.taken < 200_000


async def read_slowly(
    stream: AsyncGenerator[bytes, None], rig: Rig, produced: list[bytes]
) -> Client:
    client, most = Client(), 0
    async for response in stream:
        client.take(response)
        await asyncio.sleep(0.002)
        most = max(most, rig.memory.taken)
        assert len(produced) < len(client.batches) * 2 + 16
    assert most < 300_000
    return client


async def test_results_are_held_only_within_the_memory_limit() -> None:
    rig = Rig(DeliveryLimits(), memory=100_000)
    haproc, gate = rig.haproc(), asyncio.Event()
    stream = haproc.deliver_responses(KEY, request(), rig.source(result(TABLE, CUT), gate))
    client = await read(stream, count=2)  # though it is not complete
    gate.set()
    await read(haproc.reattach(KEY, client.last_id, rig.source([])), client)
    assert client.has_all_of(TABLE)
    await haproc.aclose()
    assert rig.memory.taken == 0


async def test_progress_of_a_long_statement_is_sent_before_held_responses(rig: Rig) -> None:
    haproc, gate = rig.haproc(progress_after_s=0), asyncio.Event()
    table = pa.table({"a": [1]})
    source = rig.source([schema(), progress(), *result(table, [])[2:]], gate)
    stream, client = haproc.deliver_responses(KEY, LONG, source), Client()
    client.take(await anext(stream))
    assert client.seen == [] and rig.keys.kept  # what follows can be gone on with elsewhere
    other = rig.haproc()
    await read(other.reattach(KEY, client.last_id, rig.source(result(table, []))), client)
    assert client.has_all_of(table)


async def test_operations_beyond_the_limit_are_refused_until_others_are_released(rig: Rig) -> None:
    rig.operations = Shares(1)
    haproc = rig.haproc()
    await read(haproc.deliver_responses(KEY, request(), rig.source([complete()])))
    other = dataclasses.replace(KEY, operation_id=SESSION)
    assert (
        await failing(haproc.deliver_responses(other, request(), rig.source([]))) == ErrorClass.BUSY
    )
    haproc.release(KEY)
    await read(haproc.deliver_responses(other, request(), rig.source([complete()])))


async def test_every_response_has_the_names_that_the_door_gave(rig: Rig) -> None:
    names = bytes(Response(server_side_session_id="s", operation_id=OPERATION).SerializeToString())
    stream = rig.haproc().deliver_responses(
        KEY, request(), rig.source(result(TABLE, [])), names=names
    )
    async for message in stream:
        response = Response.FromString(message)
        assert (response.server_side_session_id, response.operation_id) == ("s", OPERATION)
        assert read_id(response.response_id) is not None
