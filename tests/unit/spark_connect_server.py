"""A small real Spark Connect server that answers as a HAProc does, and misbehaves on demand.

The table that is read determines the behaviour: ``quick`` (some rows), ``slow`` (waits first),
``halting`` (waits after the first rows), ``cut`` (the stream ends after the first rows, and
continues when attached to again), ``wrong`` (an error of the statement), ``busy`` (unavailable,
each time). Response ids contain the progress of a result, so each server continues where another
one was; ``forgotten`` is ``halting`` that no other server knows.

python -m tests.unit.spark_connect_server NAME SECONDS   # a separate process; prints its port
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa
import pyspark.sql.connect.proto as pb2
import pyspark.sql.connect.proto.base_pb2_grpc as pb2_grpc
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

BATCHES = 3
ROWS = BATCHES * 2
SERVING, NOT_SERVING = b"\x08\x01", b"\x08\x02"


@dataclass(frozen=True, slots=True)
class Seen:
    """One call that the server received."""

    method: str
    operation_id: str
    metadata: dict[str, str]
    request: Any


def rows(name: str, batch: int) -> bytes:
    """Return a batch of the result: the numbers from its first one on, and the server's name."""
    table = pa.table({"n": pa.array([2 * batch, 2 * batch + 1], pa.int64()), "by": [name] * 2})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def status(code: int, error_class: str, message: str) -> Any:
    """Return an error as servers send it, with its class."""
    detail = any_pb2.Any()
    detail.Pack(
        error_details_pb2.ErrorInfo(
            reason="said",
            domain="test",
            metadata={"errorClass": error_class, "outcome": "NOT_SENT"},
        )
    )
    text = f"[{error_class}] {message}"
    return rpc_status.to_status(status_pb2.Status(code=code, message=text, details=[detail]))


class Server(pb2_grpc.SparkConnectServiceServicer):
    """One such server."""

    def __init__(self, name: str, wait_s: float = 60.0, credentials: Any = None) -> None:
        self.name = name
        self.wait_s = wait_s
        self.seen: list[Seen] = []
        self.draining = False
        self.health_delay_s = 0.0
        self.go_on = threading.Event()
        self.port = 0
        self._credentials = credentials
        self._operations: dict[str, str] = {}
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, at the same port as before."""
        self.go_on.clear()
        pool = ThreadPoolExecutor(32)
        self._server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        pb2_grpc.add_SparkConnectServiceServicer_to_server(self, self._server)
        self._server.add_generic_rpc_handlers((_Health(self),))
        host_and_port = f"127.0.0.1:{self.port}"
        if self._credentials is None:
            self.port = self._server.add_insecure_port(host_and_port)
        else:
            self.port = self._server.add_secure_port(host_and_port, self._credentials)
        self._server.start()

    def stop(self, grace_s: float | None = None) -> None:
        """Close the door; running calls are broken off."""
        stopped = self._server.stop(grace_s)
        if grace_s is None:
            self.go_on.set()
            stopped.wait()

    def calls(self, method: str) -> list[Seen]:
        """Return the calls of one method."""
        return [each for each in self.seen if each.method == method]

    def _note(self, method: str, request: Any, context: grpc.ServicerContext) -> None:
        metadata = {name: str(value) for name, value in context.invocation_metadata()}
        operation_id = getattr(request, "operation_id", "")
        self.seen.append(Seen(method, operation_id, metadata, request))
        if self.draining and method != "ReattachExecute":
            leaving = status(code_pb2.UNAVAILABLE, "HAPROC_DRAINING", f"{self.name} drains")
            context.abort_with_status(leaving)

    def ExecutePlan(self, request: Any, context: Any) -> Iterator[Any]:
        self._note("ExecutePlan", request, context)
        if request.plan.HasField("command"):
            return self._command(request)
        table = request.plan.root.read.named_table.unparsed_identifier or "quick"
        self._operations[request.operation_id] = table
        if table == "wrong":
            wrong = status(code_pb2.INTERNAL, "TABLE_OR_VIEW_NOT_FOUND", "no such table")
            context.abort_with_status(wrong)
        if error_class := {"busy": "HAPROC_BUSY", "away": "HAPROC_DOWN"}.get(table):
            context.abort_with_status(status(code_pb2.UNAVAILABLE, error_class, "not now"))
        return self._result(request, table, 0, context)

    def ReattachExecute(self, request: Any, context: Any) -> Iterator[Any]:
        self._note("ReattachExecute", request, context)
        table, _, done = request.last_response_id.rpartition("/")
        table = table or self._operations.get(request.operation_id, "forgotten")
        if table == "forgotten" and request.operation_id not in self._operations:
            gone = status(code_pb2.INTERNAL, "INVALID_HANDLE.OPERATION_NOT_FOUND", "who?")
            context.abort_with_status(gone)
        return self._result(request, table, int(done or 0), context)

    def _result(self, request: Any, table: str, done: int, context: Any) -> Iterator[Any]:
        if table == "slow":
            self.go_on.wait(self.wait_s)
        for batch in range(done, BATCHES):
            if batch == 1 and done == 0 and table == "cut":
                return
            if batch == 1 and done == 0 and table in ("halting", "forgotten"):
                self.go_on.wait(self.wait_s)
            data = pb2.ExecutePlanResponse.ArrowBatch(row_count=2, data=rows(self.name, batch))
            yield self._response(request, f"{table}/{batch + 1}", arrow_batch=data)
        complete = pb2.ExecutePlanResponse.ResultComplete()
        yield self._response(request, f"{table}/{BATCHES}", result_complete=complete)

    def _command(self, request: Any) -> Iterator[Any]:
        if request.plan.command.HasField("checkpoint_command"):
            handle = pb2.CheckpointCommandResult()
            handle.relation.relation_id = "only here"
            yield self._response(request, "quick/1", checkpoint_command_result=handle)
        complete = pb2.ExecutePlanResponse.ResultComplete()
        yield self._response(request, f"quick/{BATCHES}", result_complete=complete)

    def _response(self, request: Any, response_id: str, **content: Any) -> Any:
        return pb2.ExecutePlanResponse(
            session_id=request.session_id,
            server_side_session_id="of the ring",
            operation_id=request.operation_id,
            response_id=response_id,
            **content,
        )

    def Config(self, request: Any, context: Any) -> Any:
        self._note("Config", request, context)
        answer = pb2.ConfigResponse(
            session_id=request.session_id, server_side_session_id="of the ring"
        )
        for key in request.operation.get.keys:
            answer.pairs.add(key=key, value=self.name)
        for pair in request.operation.get_with_default.pairs:
            answer.pairs.add(key=pair.key, value=pair.value)
        return answer

    def AddArtifacts(self, requests: Iterator[Any], context: Any) -> Any:
        answer = pb2.AddArtifactsResponse(server_side_session_id="of the ring")
        for request in requests:
            self._note("AddArtifacts", request, context)
            answer.session_id = request.session_id
            if self.wait_s < 60.0:
                time.sleep(self.wait_s)
        return answer

    def ReleaseExecute(self, request: Any, context: Any) -> Any:
        self._note("ReleaseExecute", request, context)
        return pb2.ReleaseExecuteResponse(
            session_id=request.session_id, server_side_session_id="of the ring"
        )

    def ReleaseSession(self, request: Any, context: Any) -> Any:
        self._note("ReleaseSession", request, context)
        return pb2.ReleaseSessionResponse(
            session_id=request.session_id, server_side_session_id="of the ring"
        )


class _Health(grpc.GenericRpcHandler):
    """gRPC's health check."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method != "/grpc.health.v1.Health/Check":
            return None

        def check(request: bytes, context: Any) -> bytes:
            time.sleep(self._server.health_delay_s)
            return NOT_SERVING if self._server.draining else SERVING

        return grpc.unary_unary_rpc_method_handler(check)


if __name__ == "__main__":
    server = Server(sys.argv[1], float(sys.argv[2]))
    print(server.port, flush=True)
    sys.stdin.read()
    server.stop()
