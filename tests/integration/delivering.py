"""A process that only delivers one Spark's results to PySpark.

``python -m tests.integration.delivering PORT SPARK_PORT`` with the Spark's token in the environment
variable SPARK_TOKEN. All other calls pass through; sessions are the clients' own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final
from unittest.mock import AsyncMock

import grpc
import grpc.aio

from dmq.memory import MemoryKeyValueStore
from haproc import protos
from haproc.config.shares import Shares
from haproc.doors.connect.delivery import Deliveries
from haproc.doors.connect.errors import Key
from haproc.doors.connect.operation import DeliveryLimits
from haproc.engine.rewriting import Names, to_client, to_spark
from haproc.failure import RequestError

SERVICE: Final = "spark.connect.SparkConnectService"
OPTIONS: Final = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", 128 << 20),
    ("grpc.max_receive_message_length", 128 << 20),
]
_base = protos.base


class Delivering:
    """The handlers, and one connection to Spark."""

    def __init__(self, spark_port: int, token: str) -> None:
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._spark = grpc.aio.insecure_channel(f"127.0.0.1:{spark_port}", options=OPTIONS)
        self.deliveries = Deliveries(
            MemoryKeyValueStore(),
            DeliveryLimits(),
            memory=Shares(256 << 20),
            operations=Shares(1000),
            goes_on=lambda key: False,
            take_back=AsyncMock(return_value=False),
        )

    def handlers(self) -> grpc.GenericRpcHandler:
        made = {
            name: grpc.unary_unary_rpc_method_handler(self._passing(name))
            for name in ("AnalyzePlan", "Config", "ReleaseSession", "FetchErrorDetails")
        }
        made["ReleaseExecute"] = grpc.unary_unary_rpc_method_handler(self._release)
        made["ExecutePlan"] = grpc.unary_stream_rpc_method_handler(self._execute)
        made["ReattachExecute"] = grpc.unary_stream_rpc_method_handler(self._reattach)
        return grpc.method_handlers_generic_handler(SERVICE, made)

    def _passing(self, name: str) -> Any:
        call = self._spark.unary_unary(f"/{SERVICE}/{name}")

        async def handle(request: bytes, context: Any) -> bytes:
            return bytes(await call(request, metadata=self._metadata))

        return handle

    async def _run(self, request: bytes) -> AsyncGenerator[bytes, None]:
        read = _base.ExecutePlanRequest.FromString(request)
        names = Names(read.session_id, read.client_observed_server_side_session_id)
        user = read.user_context.user_id
        made = to_spark("ExecutePlan", request, names, user, str(uuid.uuid4()))
        call = self._spark.unary_stream(f"/{SERVICE}/ExecutePlan")(made, metadata=self._metadata)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    async def _execute(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        read = _base.ExecutePlanRequest.FromString(request)
        made = self.deliveries.deliver_responses(_key(read), request, self._run, names=_names(read))
        async with contextlib.aclosing(self._responses(made, context)) as responses:
            async for response in responses:
                yield response

    async def _reattach(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        read = _base.ReattachExecuteRequest.FromString(request)
        last = read.last_response_id if read.HasField("last_response_id") else None
        made = self.deliveries.reattach(_key(read), last, self._run, names=_names(read))
        async with contextlib.aclosing(self._responses(made, context)) as responses:
            async for response in responses:
                yield response

    async def _responses(
        self, responses: AsyncGenerator[bytes, None], context: Any
    ) -> AsyncGenerator[bytes, None]:
        try:
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response
        except RequestError as error:
            code, what = grpc.StatusCode.INTERNAL, f"[{error.error_class}] {error.message}"
            packed = _status(code, what)
            await context.abort(code, what, (("grpc-status-details-bin", packed),))

    async def _release(self, request: bytes, context: Any) -> bytes:
        read = _base.ReleaseExecuteRequest.FromString(request)
        until = read.release_until.response_id if read.HasField("release_until") else None
        self.deliveries.release(_key(read), until)
        names = Names(read.session_id, "")
        return to_client("ReleaseExecute", names)


def _key(read: Any) -> Key:
    return Key(read.user_context.user_id, read.session_id, read.operation_id)


def _names(read: Any) -> bytes:
    names = Names(read.session_id, read.client_observed_server_side_session_id)
    return to_client("ExecutePlan", names, read.operation_id)


def _status(code: Any, message: str) -> bytes:
    from google.rpc import status_pb2

    return bytes(status_pb2.Status(code=code.value[0], message=message).SerializeToString())


async def main(port: int, spark_port: int) -> None:
    server = grpc.aio.server(options=OPTIONS)
    delivering = Delivering(spark_port, os.environ["SPARK_TOKEN"])
    server.add_generic_rpc_handlers((delivering.handlers(),))
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
