"""A session of a Spark server that has HAProc's plugin, used directly."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc, relations_pb2


class SparkError(Exception):
    """Spark's error; ``condition`` is its name, or the status's if it has none."""

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(f"{condition}: {message}")
        self.condition = condition
        self.message = message


class Spark:
    """A separate session."""

    def __init__(self, port: int, token: str, user: str = "ann") -> None:
        limit = ("grpc.max_receive_message_length", -1)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[limit])
        self._stub = base_pb2_grpc.SparkConnectServiceStub(self._channel)
        self._metadata = [("authorization", f"Bearer {token}")]
        self._session, self._user = str(uuid.uuid4()), user

    def rows(self, sql: str, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Run a statement and return its rows; raises SparkError."""
        return self._rows(_sql(sql), timeout_s)

    def read(self, sql: str, timeout_s: float = 60, *, analyze: bool = True) -> str:
        """Return the plugin's reading of a statement, as JSON; raises SparkError."""
        answer = self._rows(_question(sql, analyze=analyze), timeout_s)
        return str(next(iter(answer[0].values())))

    def close(self) -> None:
        """End the session's state on the server and the connection."""
        request = base_pb2.ReleaseSessionRequest(session_id=self._session)
        request.user_context.user_id = self._user
        try:
            self._stub.ReleaseSession(request, metadata=self._metadata, timeout=30)
        finally:
            self._channel.close()

    def _rows(self, relation: Any, timeout_s: float) -> list[dict[str, Any]]:
        request = base_pb2.ExecutePlanRequest(session_id=self._session)
        request.user_context.user_id = self._user
        request.plan.root.CopyFrom(relation)
        rows: list[dict[str, Any]] = []
        try:
            for part in self._stub.ExecutePlan(request, metadata=self._metadata, timeout=timeout_s):
                if part.HasField("arrow_batch"):
                    rows += _decoded(part.arrow_batch.data)
        except grpc.RpcError as error:
            raise _named(error) from error
        return rows


def _decoded(data: bytes) -> Iterator[dict[str, Any]]:
    table = pa.ipc.open_stream(data).read_all()
    names = [f"{at} {name}" for at, name in enumerate(table.column_names)]
    yield from table.rename_columns(names).to_pylist()


def _sql(text: str) -> Any:
    relation = relations_pb2.Relation()
    relation.sql.query = text
    return relation


def _question(text: str, *, analyze: bool) -> Any:
    plan = base_pb2.Plan(root=_sql(text)).SerializeToString()
    fields = {"plan": base64.b64encode(plan).decode(), "analyze": analyze}
    packed = any_pb2.Any(type_url="haproc/read", value=json.dumps(fields).encode())
    return relations_pb2.Relation(extension=packed)


def _named(error: Any) -> SparkError:
    message = str(error.details())
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info):
            # Without a condition it is an accident: its class tells more than nothing.
            error_class = info.metadata.get("errorClass") or info.reason
            return SparkError(error_class, message)
    return SparkError(error.code().name, message)
