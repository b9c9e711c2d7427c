"""Real requests of PySpark's own client, sent to a server that only records them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.proto import base_pb2 as base
from pyspark.sql.connect.session import SparkSession

from haproc.classify.model import RefusedError
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import PlanReading, parse

Program = Callable[[Any], Any]
_SETTINGS = {
    "spark.connect.session.planCompression.threshold": "-1",
    "spark.connect.session.planCompression.defaultAlgorithm": "NONE",
    "spark.sql.session.localRelationCacheThreshold": "1048576",
    "spark.sql.session.localRelationSizeLimit": "3221225472",
    "spark.sql.session.localRelationChunkSizeRows": "10000",
    "spark.sql.session.localRelationChunkSizeBytes": "16777216",
    "spark.sql.session.localRelationBatchOfChunksSizeBytes": "1073741824",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}


class Written(grpc.Channel):
    """A channel that keeps each request, and answers with the minimum that the client needs."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def _answer(self, request: Any) -> Any:
        self.requests.append(request)
        if isinstance(request, base.ConfigRequest):
            answer = base.ConfigResponse(session_id=request.session_id)
            for key in self._keys(request.operation):
                answer.pairs.add(key=key, value=_SETTINGS.get(key, "false"))
            return answer
        if isinstance(request, base.AnalyzePlanRequest):
            answer = base.AnalyzePlanResponse(session_id=request.session_id)
            answer.schema.schema.struct.SetInParent()
            return answer
        if isinstance(request, base.ArtifactStatusesRequest):
            return base.ArtifactStatusesResponse(session_id=request.session_id)
        return None

    @staticmethod
    def _keys(operation: Any) -> list[str]:
        kind = operation.WhichOneof("op_type")
        of = getattr(operation, kind)
        if kind in ("get", "get_option", "is_modifiable"):
            return list(of.keys)
        return [pair.key for pair in of.pairs]

    def _stream(self, request: Any) -> Iterator[Any]:
        self.requests.append(request)
        ids = {"session_id": request.session_id, "operation_id": request.operation_id}
        if request.plan.command.HasField("sql_command"):
            answer = base.ExecutePlanResponse(response_id="1", **ids)
            answer.sql_command_result.relation.CopyFrom(request.plan.command.sql_command.input)
            yield answer
        answer = base.ExecutePlanResponse(response_id="2", **ids)
        answer.result_complete.SetInParent()
        yield answer

    def unary_unary(self, *_: Any, **__: Any) -> Any:
        return lambda request, **_: self._answer(request)

    def unary_stream(self, *_: Any, **__: Any) -> Any:
        return lambda request, **_: self._stream(request)

    def stream_unary(self, *_: Any, **__: Any) -> Any:
        def send(requests: Iterator[Any], **_: Any) -> Any:
            self.requests.extend(requests)
            return base.AddArtifactsResponse()

        return send

    def stream_stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def subscribe(self, *_: Any, **__: Any) -> None:
        pass

    def unsubscribe(self, *_: Any, **__: Any) -> None:
        pass

    def close(self) -> None:
        pass

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class _Builder(DefaultChannelBuilder):
    def __init__(self, channel: Written) -> None:
        super().__init__("sc://127.0.0.1:1")
        self._channel = channel

    def toChannel(self) -> Any:
        return self._channel


def session() -> tuple[Any, Written]:
    """Return a session of Spark Connect, and the channel that keeps its requests."""
    channel = Written()
    return SparkSession(_Builder(channel), "user"), channel


def recorded(program: Program) -> Any:
    """Return the last plan that a program sends; its handling of the answer does not matter."""
    spark, channel = session()
    error: Exception | None = None
    try:
        program(spark)
    except Exception as caught:
        error = caught
    plans = [each.plan for each in channel.requests if isinstance(each, base.ExecutePlanRequest)]
    if not plans:
        raise AssertionError("no plan was sent") from error
    return plans[-1]


def read(program: Program) -> PlanReading:
    """Return the reading of the last plan that a program sends."""
    return read_plan(parse(base.Plan, recorded(program).SerializeToString()))


def refused(call: Callable[..., object], *args: Any) -> str:
    """Return the class of the error with which a call is refused, with advice."""
    with pytest.raises(RefusedError) as caught:
        call(*args)
    assert caught.value.hint
    return caught.value.error_class
