"""Traces by OpenTelemetry, sent with OTLP; needs the extra ``otel``.

The exporter and the sampler are set by OpenTelemetry's own environment variables. The trace context
of W3C travels in the header or metadata ``traceparent``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from haproc.tracing import StatementSpan

LINKS_MAX: Final = 100
"""The most requests that the span of a combined statement links to; chosen, not measured."""
_W3C: Final = TraceContextTextMapPropagator()


class OtelTracing:
    """Implements `haproc.tracing.Tracing` with OpenTelemetry.

    Without an ``exporter``, which tests give, spans are sent by OTLP.
    """

    def __init__(
        self,
        ring: str,
        cluster: str,
        processor: SpanProcessor | None = None,
        exporter: SpanExporter | None = None,
    ) -> None:
        of_ring = {"haproc.ring": ring, "haproc.cluster": cluster}
        own = Resource({"service.name": "haproc", "service.instance.id": cluster, **of_ring})
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come first.
        described = own.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=Resource.create(described.attributes))
        self._provider.add_span_processor(
            processor or BatchSpanProcessor(exporter or OTLPSpanExporter())
        )
        self._tracer = self._provider.get_tracer("haproc")
        self._under_way: dict[tuple[str, str], context.Context] = {}

    def shutdown(self) -> None:
        """Send the spans that are not sent yet, and end."""
        self._provider.shutdown()

    @contextmanager
    def received(self, carrier: Mapping[str, str], call: str = "") -> Iterator[None]:
        """Continue, within this context, the client's trace that the headers ``carrier`` name.

        With ``call``, a span of this name covers the context.
        """
        token = context.attach(_W3C.extract(carrier))
        try:
            if call:
                with self._tracer.start_as_current_span(
                    call,
                    kind=trace.SpanKind.SERVER,
                    record_exception=False,
                    set_status_on_exception=False,
                ):
                    yield
            else:
                yield
        finally:
            context.detach(token)

    @contextmanager
    def request(self, key: tuple[str, str]) -> Iterator[None]:
        """Make a span of a request within this context; ``key``: its user and request id."""
        user, request_id = key
        # An error's text may have values of the statement, so it is not recorded.
        with self._tracer.start_as_current_span(
            "haproc.request",
            kind=trace.SpanKind.SERVER,
            attributes={"haproc.request_id": request_id, "haproc.user": user},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            mine = self._under_way[key] = context.get_current()
            try:
                yield
            except BaseException as error:
                kind = str(getattr(error, "error_class", type(error).__name__))
                span.set_status(trace.StatusCode.ERROR, kind)
                raise
            finally:
                if self._under_way.get(key) is mine:
                    del self._under_way[key]

    def reached(self, moment: str, offset: int) -> None:
        """Add the event ``moment`` and the operation's ``offset`` to the current task's span."""
        span = trace.get_current_span()
        span.set_attribute("haproc.offset", offset)
        span.add_event(moment)

    @contextmanager
    def applying(self, keys: Iterable[tuple[str, str]], offsets: Sequence[int]) -> Iterator[None]:
        """Make a span of operations that are applied in one statement.

        There is none if no request with a running span sent one of them. ``keys``: the user and
        request id of each operation.
        """
        known = [self._under_way[key] for key in keys if key in self._under_way]
        if not known:
            yield
            return
        others = [trace.get_current_span(each) for each in known[1 : LINKS_MAX + 1]]
        with self._tracer.start_as_current_span(
            "haproc.apply",
            known[0],
            links=[trace.Link(each.get_span_context()) for each in others],
            attributes={
                "haproc.offset": offsets[0],
                "haproc.offset_last": offsets[-1],
                "haproc.operations": len(offsets),
            },
            record_exception=False,
            set_status_on_exception=False,
        ):
            yield

    def statement(self, rpc: str) -> StatementSpan | None:
        """Begin the span of a call to Spark; None if the current task has no trace."""
        if not trace.get_current_span().get_span_context().is_valid:
            return None
        span = self._tracer.start_span(f"spark.{rpc}", kind=trace.SpanKind.CLIENT)
        headers: dict[str, str] = {}
        _W3C.inject(headers, trace.set_span_in_context(span))
        return StatementSpan(tuple(headers.items()), span.end)

    def headers(self) -> Mapping[str, str]:
        """Return the HTTP headers that continue this task's trace at a peer; empty: no trace."""
        found: dict[str, str] = {}
        _W3C.inject(found)
        return found
