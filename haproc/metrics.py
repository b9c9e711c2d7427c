"""What a HAProc counts, as Prometheus text.

One `Metrics` for each HAProc with a registry of its own, so that several in one process (tests,
simulation) don't mix. The core calls its methods; the names of the series are part of the
documented interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LATENCY_BUCKETS_S: Final = (
    *(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0),
)
_BATCH_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Metrics:
    """The series of one HAProc."""

    def __init__(self, ring: str, cluster: str, states: Iterable[str]) -> None:
        self._registry = CollectorRegistry()
        self._states = tuple(states)
        info = Gauge("haproc_info", "Always 1.", ["ring", "cluster"], registry=self._registry)
        info.labels(ring, cluster).set(1)
        self._requests = self._counter(
            "haproc_requests", "Requests answered.", "operation_class", "outcome"
        )
        self._latency = Histogram(
            "haproc_request_seconds",
            "Time from a request's arrival to its answer.",
            ["operation_class"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._under_way = self._gauge("haproc_requests_under_way", "Requests being served.")
        self._applied = self._counter(
            "haproc_operations_applied", "Operations of the log applied here.", "outcome"
        )
        self._batch = Histogram(
            "haproc_batch_operations",
            "Operations applied as one statement.",
            buckets=_BATCH_BUCKETS,
            registry=self._registry,
        )
        self._cursor = self._gauge("haproc_cursor", "Every operation below is applied.")
        self._log_end = self._gauge("haproc_log_end", "The offset after the log's newest record.")
        self._log_start = self._gauge("haproc_log_start", "The offset of the log's oldest record.")
        self._held = self._gauge(
            "haproc_trim_held_records", "Records that the cluster keeps from being trimmed.", "by"
        )
        self._lag = self._gauge("haproc_lag_records", "Records between the cursor and the end.")
        self._state = self._gauge("haproc_state", "1 for the state this HAProc is in.", "state")
        self._undecided = self._gauge(
            "haproc_undecided", "1 while clusters differ and nothing says which of them is right."
        )
        self._differing = self._gauge(
            "haproc_settings_differing",
            "Versions and settings of Spark that other clusters have otherwise.",
        )
        self._unfit = self._gauge(
            "haproc_settings_unfit", "Settings of Spark without the value that they must have."
        )
        self._peer = self._gauge("haproc_peer_alive", "1 while anybody hears the peer.", "peer")
        self._direct = self._gauge("haproc_peer_direct", "1 while it is heard here.", "peer")
        self._in_sync = self._gauge("haproc_peer_in_sync", "1 while it lags little.", "peer")
        self._peer_lag = self._gauge(
            "haproc_peer_lag_records", "Records between its cursor and the log's end.", "peer"
        )
        self._reads = self._counter("haproc_queries", "Queries that came here.", "consistency")
        self._read_waits = Histogram(
            "haproc_read_wait_seconds",
            "Time for which a query waited until this cluster was fresh enough.",
            ["consistency"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._forwarded = self._counter(
            "haproc_queries_forwarded", "Queries that a fresher cluster answered.", "peer"
        )
        self._in_sync_count = self._gauge(
            "haproc_in_sync_clusters", "Clusters in sync, this one too."
        )
        self._high_watermark = self._gauge(
            "haproc_high_watermark", "All clusters in sync have applied every operation below."
        )
        self._concern = Histogram(
            "haproc_write_concern_seconds",
            "Time for which writes waited for other clusters; 0 for one that was refused.",
            ["concern", "met"],
            buckets=_LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self._transport = self._gauge(
            "haproc_transport", "1 for what carries heartbeats and reports.", "way"
        )
        self._published = self._counter("haproc_redis_published", "Messages sent to Redis.")
        self._fallbacks = self._counter(
            "haproc_redis_fallbacks", "Times that the mesh took over from Redis."
        )
        self._refused = self._counter(
            "haproc_redis_refused", "Messages in Redis that did not count.", "reason"
        )
        self._recovery = self._gauge("haproc_recovery_operations", "Progress of recovery.", "part")
        self._recovery_rate = self._gauge(
            "haproc_recovery_operations_per_second", "Operations applied per second in recovery."
        )
        self._sessions = self._gauge("haproc_sessions", "Client sessions kept.")
        self._results = self._gauge("haproc_results_kept", "Results kept for clients.")
        self._results_bytes = self._gauge("haproc_results_kept_bytes", "Their size.")
        for state in self._states:
            self._state.labels(state).set(0)

    def request(self, operation_class: str, outcome: str, seconds: float) -> None:
        """Count an answered request; ``outcome`` is ok, application, availability or refused."""
        self._requests.labels(operation_class, outcome).inc()
        self._latency.labels(operation_class).observe(seconds)

    def under_way(self, requests: int) -> None:
        """Set how many requests are being served."""
        self._under_way.set(requests)

    def applied(self, outcome: str, operations: int = 1) -> None:
        """Count operations applied by one statement; ``outcome`` is ok, failed or skipped."""
        self._applied.labels(outcome).inc(operations)
        self._batch.observe(operations)

    def position(self, cursor: int, log_end: int) -> None:
        """Set how far this cluster is, and how far the log."""
        self._cursor.set(cursor)
        self._log_end.set(log_end)
        self._lag.set(max(0, log_end - cursor))

    def state(self, state: str) -> None:
        """Set the state this HAProc is in."""
        for other in self._states:
            self._state.labels(other).set(other == state)

    def undecided(self, undecided: bool) -> None:
        """Set whether clusters differ and nothing says which of them is right."""
        self._undecided.set(undecided)

    def settings(self, differing: int, unfit: int) -> None:
        """Set how many of Spark's settings are not as they should be."""
        self._differing.set(differing)
        self._unfit.set(unfit)

    def peer(self, peer: str, alive: bool, direct: bool, in_sync: bool, lag: int | None) -> None:
        """Set how a peer is seen from here; no lag if it never told any."""
        self._peer.labels(peer).set(alive)
        self._direct.labels(peer).set(direct)
        self._in_sync.labels(peer).set(in_sync)
        if lag is not None:
            self._peer_lag.labels(peer).set(lag)

    def read(self, level: str) -> None:
        """Count a query by its level."""
        self._reads.labels(level).inc()

    def read_waited(self, level: str, seconds: float) -> None:
        """Note how long a query waited for this cluster."""
        self._read_waits.labels(level).observe(seconds)

    def read_forwarded(self, peer: str) -> None:
        """Count a query that a peer ran."""
        self._forwarded.labels(peer).inc()

    def in_sync(self, clusters: int, high_watermark: int) -> None:
        """Set how many clusters are in sync, and what all of them have applied."""
        self._in_sync_count.set(clusters)
        self._high_watermark.set(high_watermark)

    def waited(self, concern: str, met: bool, seconds: float) -> None:
        """Count a write that waited for other clusters, and whether its concern was met."""
        self._concern.labels(concern, "yes" if met else "no").observe(seconds)

    def forget_peer(self, peer: str) -> None:
        """Tell no more of a cluster that the ring does not have any more."""
        for series in (self._peer, self._direct, self._in_sync, self._peer_lag):
            with suppress(KeyError):
                series.remove(peer)

    def trim(self, log_start: int, held_by: str, held_records: int) -> None:
        """Set where the log begins, and which cluster keeps how much of it from being trimmed."""
        self._log_start.set(log_start)
        self._held.clear()
        if held_by:
            self._held.labels(held_by).set(held_records)

    def transport(self, way: str, ways: Iterable[str]) -> None:
        """Set what carries heartbeats and reports."""
        for other in ways:
            self._transport.labels(other).set(other == way)

    def redis(self, published: int, fallbacks: int, refused: Mapping[str, int]) -> None:
        """Count what went through Redis since the last call."""
        self._published.inc(published)
        self._fallbacks.inc(fallbacks)
        for reason, messages in refused.items():
            self._refused.labels(reason).inc(messages)

    def recovery(self, applied: int, remaining: int, rate_per_s: float) -> None:
        """Set the progress of recovery."""
        self._recovery.labels("applied").set(applied)
        self._recovery.labels("remaining").set(remaining)
        self._recovery_rate.set(rate_per_s)

    def sessions(self, count: int) -> None:
        """Set how many client sessions are kept."""
        self._sessions.set(count)

    def results(self, count: int, size_bytes: int) -> None:
        """Set how many results are kept and how large they are together."""
        self._results.set(count)
        self._results_bytes.set(size_bytes)

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self._registry)
