"""Answers of a server that cannot be read become errors with a clear text."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from haproc import protos
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import EngineAddress, Settings
from haproc.engine.statement import SqlText

DEEP = 400
"""Structs inside structs, three messages each; HAProc reads a thousand of them."""


def field(message: Any, name: str, value: bytes) -> bytes:
    """Return a message with one field; protobuf does not write messages deeper than it reads."""
    tag = message.DESCRIPTOR.fields_by_name[name].number << 3 | 2
    numbers = (bytes((number & 127 | 128, number >> 7)) for number in (tag, len(value)))
    return b"".join((*numbers, value))


def nested(depth: int) -> bytes:
    """Return the type of structs inside structs."""
    types = protos.data_types.DataType
    found = field(types, "integer", b"")
    for _ in range(depth):
        inside = field(types.StructField, "data_type", found)
        found = field(types, "struct", field(types.Struct, "fields", inside))
    return found


class Server(grpc.GenericRpcHandler):
    """A Spark Connect server whose every result is nested this deep."""

    def __init__(self, depth: int) -> None:
        analyzed = protos.base.AnalyzePlanResponse
        schema = field(analyzed.Schema, "schema", nested(depth))
        self._answers = {
            "ExecutePlan": field(protos.base.ExecutePlanResponse, "schema", nested(depth)),
            "AnalyzePlan": field(analyzed, "schema", schema),
        }

    def service(self, call: Any) -> Any:
        name = call.method.rpartition("/")[2]
        answer = self._answers.get(name, b"")

        async def once(request: bytes, context: Any) -> bytes:
            return answer

        async def stream(request: bytes, context: Any) -> AsyncIterator[bytes]:
            yield answer

        if name == "ExecutePlan":
            return grpc.unary_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(once)


@pytest.fixture
async def engine() -> AsyncIterator[SparkConnectEngine]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Server(DEEP),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    engine = SparkConnectEngine(EngineAddress("127.0.0.1", port), ring="r", cluster="a")
    yield engine
    await engine.aclose()
    await server.stop(None)


async def test_query_with_a_type_nested_too_deep_is_an_application_error(
    engine: SparkConnectEngine, caplog: pytest.LogCaptureFixture
) -> None:
    session = engine.session("x")
    with pytest.raises(EngineError, match="nested") as caught:
        async for _ in await session.query(SqlText("SELECT deep"), timeout_s=10):
            pass
    assert caught.value.kind is ErrorKind.APPLICATION
    with pytest.raises(EngineError, match="nested") as caught:
        await session.columns("SELECT deep")
    assert caught.value.kind is ErrorKind.APPLICATION
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_write_with_an_unreadable_answer_is_an_environment_error(
    engine: SparkConnectEngine,
) -> None:
    """The write may be committed: the next attempt reads that from the tables."""
    lane = engine.lane(0)
    with pytest.raises(EngineError, match="nested") as caught:
        await lane.apply(SqlText("INSERT INTO t VALUES (1)"), Settings(), None, timeout_s=10)
    assert caught.value.kind is ErrorKind.ENVIRONMENT
