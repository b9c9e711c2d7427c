"""Tests of traces: what a span covers, which trace it belongs to, and that off means none."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from haproc import protos, tracing
from haproc.cli import nodes
from haproc.config.model import Reads
from haproc.doors.connect.calls import Call
from haproc.engine.channel import Channel, EngineLimits
from haproc.engine.interface import EngineAddress
from haproc.otel import OtelTracing
from tests.unit.test_connect_calls import SESSION, Context, boundary_of
from tests.unit.test_reads_between_doors import pair

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


class Spans:
    """The finished spans of a tracer."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.taken = OtelTracing("demo", "a", SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.exporter.get_finished_spans() if each.name == name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    tracing.use(found.taken)
    yield found
    tracing.use(None)
    found.taken.shutdown()


def context_of(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def trace_of(span: ReadableSpan) -> str:
    return f"{context_of(span).trace_id:032x}"


async def test_write_is_a_span_from_its_arrival_through_the_log_to_its_outcome(
    tmp_path: Path, spans: Spans
) -> None:
    async with pair(tmp_path) as ring:
        ring.http.headers.update(PARENT)
        written = await ring.ask(ring.a, "INSERT INTO t VALUES (4711)", request_id="r1")
    (span,) = spans.named("haproc.request")
    assert trace_of(span) == TRACE and span.parent is not None
    assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert [each.name for each in span.events] == ["durable", "applied"]
    offset = written["ha"]["log_offset"]
    assert span.attributes == {
        "haproc.request_id": "r1",
        "haproc.user": "anonymous",
        "haproc.offset": offset,
    }
    # In a process of its own b would know nothing of the request, and take no span.
    applied, *_ = spans.named("haproc.apply")
    assert applied.parent is not None
    assert applied.parent.span_id == context_of(span).span_id
    assert applied.attributes is not None and applied.attributes["haproc.offset"] == offset
    assert "4711" not in "".join(each.to_json() for each in spans.exporter.get_finished_spans())


async def test_failed_request_has_a_span_without_the_statements_text(
    tmp_path: Path, spans: Spans
) -> None:
    async with pair(tmp_path) as ring:
        await ring.ask(ring.a, "SELEKT 4711")
    (span,) = spans.named("haproc.request")
    assert not span.status.is_ok and span.status.description
    assert "4711" not in span.to_json()


async def test_query_that_a_peer_answers_continues_in_the_same_trace(
    tmp_path: Path, spans: Spans
) -> None:
    async with pair(tmp_path, Reads(wait_s=0.2)) as ring:
        ring.b.spark.go.clear()
        await ring.ask(ring.a, "INSERT INTO t VALUES (1)")
        ring.http.headers.update(PARENT)
        bounded = {"consistency": "bounded", "acceptable_offset_lag": 0}
        assert await ring.name_from(ring.b, **bounded) == "a"
        ring.b.spark.go.set()
    traced = [each for each in spans.named("haproc.request") if trace_of(each) == TRACE]
    assert len(traced) == 2  # at b, which was asked, and at a
    ids = {context_of(each).span_id for each in traced}
    assert len([each for each in traced if each.parent and each.parent.span_id in ids]) == 1


async def test_pyspark_call_continues_its_clients_trace(tmp_path: Path, spans: Spans) -> None:
    class Traced(Context):
        def invocation_metadata(self) -> list[tuple[str, str]]:
            return [*super().invocation_metadata(), *PARENT.items()]

    seen: list[Mapping[str, str]] = []

    async def handle(call: Call, request: bytes) -> bytes:
        seen.append(spans.taken.headers())
        return b""

    request = protos.base.GetStatusRequest(session_id=SESSION).SerializeToString()
    handler = boundary_of(tmp_path).unary("GetStatus", handle)
    await handler.unary_unary(request, Traced())
    assert TRACE in seen[0]["traceparent"]
    assert spans.taken.headers() == {}, "the trace ends with its call"


async def test_pyspark_call_that_executes_a_plan_is_a_span_until_its_last_row(
    tmp_path: Path, spans: Spans
) -> None:
    class Taking(Context):
        async def write(self, response: bytes) -> None:
            assert spans.named("pyspark.ExecutePlan") == []

    async def handle(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        with tracing.request(("ann", "r1")):
            pass
        yield b"rows"

    request = protos.base.ExecutePlanRequest(session_id=SESSION).SerializeToString()
    await boundary_of(tmp_path).streaming("ExecutePlan", handle).unary_stream(request, Taking())
    (call,), (inside,) = spans.named("pyspark.ExecutePlan"), spans.named("haproc.request")
    assert call.parent is None and inside.parent is not None
    assert inside.parent.span_id == context_of(call).span_id


# -- what goes to Spark ------------------------------------------------------------------------


@pytest.fixture
async def spark() -> AsyncIterator[tuple[Channel, list[dict[str, Any]]]]:
    """A connection to a server that returns nothing, and the metadata that the server received."""
    seen: list[dict[str, Any]] = []

    async def answer(request: bytes, context: Any) -> None:
        seen.append(dict(context.invocation_metadata()))

    method = grpc.unary_stream_rpc_method_handler(answer)
    handlers = grpc.method_handlers_generic_handler(
        "spark.connect.SparkConnectService", {"ExecutePlan": method}
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = Channel(EngineAddress("127.0.0.1", port, token="spark-token"), EngineLimits())
    yield channel, seen
    await channel.aclose()
    await server.stop(None)


async def ended(call: Any) -> None:
    async for _ in call:
        pass
    await asyncio.sleep(0)  # what is called when it is done


@pytest.mark.parametrize("relayed", [False, True])
async def test_statement_in_spark_is_a_child_span_and_carries_the_trace(
    spans: Spans, spark: tuple[Channel, Sequence[Mapping[str, str]]], relayed: bool
) -> None:
    channel, seen = spark
    start = channel.relay("ExecutePlan") if relayed else channel.execute
    with spans.taken.request(("ann", "r1")):
        await ended(start(b"", 10.0))
    (child,), (span,) = spans.named("spark.ExecutePlan"), spans.named("haproc.request")
    assert child.parent is not None and child.parent.span_id == context_of(span).span_id
    assert f"{context_of(child).span_id:016x}" in seen[0]["traceparent"]
    assert seen[0]["authorization"] == "Bearer spark-token"


async def test_statement_without_a_request_begins_no_trace(
    spans: Spans, spark: tuple[Channel, Sequence[Mapping[str, str]]]
) -> None:
    channel, seen = spark
    await ended(channel.execute(b"", 10.0))
    tracing.use(None)
    await ended(channel.execute(b"", 10.0))
    assert [("traceparent" in each) for each in seen] == [False, False]
    assert spans.exporter.get_finished_spans() == ()


def test_operations_of_several_requests_are_applied_under_the_first_and_linked(
    spans: Spans,
) -> None:
    taken = spans.taken
    with taken.request(("ann", "r1")), taken.request(("bob", "r2")):
        with taken.applying([("ann", "r0"), ("ann", "r1"), ("bob", "r2")], (5, 6, 7)):
            pass
        with taken.applying([("ann", "r9")], (8,)):
            pass
    second, first = spans.named("haproc.request")
    (applied,) = spans.named("haproc.apply")
    assert applied.parent is not None
    assert applied.parent.span_id == context_of(first).span_id
    assert [each.context.span_id for each in applied.links] == [context_of(second).span_id]


@pytest.mark.parametrize("name", ["haproc", "sales-haproc"])
def test_spans_contain_the_names_of_ring_and_cluster(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "haproc":
        monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    found = Spans()
    with found.taken.request(("ann", "r1")):
        pass
    (span,) = found.named("haproc.request")
    resource_names = {"haproc.ring": "demo", "haproc.cluster": "a", "service.instance.id": "a"}
    assert span.resource.attributes.items() >= (resource_names | {"service.name": name}).items()


# -- on and off --------------------------------------------------------------------------------


def test_tracing_that_is_off_creates_nothing_for_a_request() -> None:
    assert tracing.on is None
    assert tracing.request(("ann", "r1")) is tracing.received(PARENT) is tracing._OFF
    assert tracing.applying([], ()) is tracing._OFF
    assert tracing.statement("ExecutePlan") is None


def test_environment_variable_switches_tracing_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    assert nodes._begin_tracing("demo", "a") is not None and tracing.on is None
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    assert nodes._begin_tracing("demo", "a") is None
    assert "'zipkin'; HAProc knows otlp and none" in capsys.readouterr().err
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    end = nodes._begin_tracing("demo", "a")
    try:
        assert end is not None and isinstance(tracing.on, OtelTracing)
        end()
    finally:
        tracing.use(None)
    monkeypatch.setitem(sys.modules, "haproc.otel", None)
    assert nodes._begin_tracing("demo", "a") is None
    assert "haproc[otel]" in capsys.readouterr().err
