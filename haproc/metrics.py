"""The metrics of a HAProc, as Prometheus text.

Each HAProc has one `Metrics` with a registry of its own, so that several in one process (tests,
simulation) don't mix. HAProc's other parts call its methods. The names of the series are part of
the documented interface, and follow Prometheus' conventions: base units at the end, ``_total`` only
for counters, labels of few values. ``tests/unit/test_metrics.py`` checks them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

T = TypeVar("T", Counter, Gauge, Histogram)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BUCKETS_S: Final = (
    *(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0),
)
_BATCH_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
ALL: Final = (
    partial(
        Gauge,
        "haproc_info",
        "Always 1; the labels name the ring and the cluster.",
        ("ring", "cluster"),
    ),
    partial(
        Counter,
        "haproc_requests",
        "Requests answered, by outcome: ok, application, availability, refused, canceled.",
        ("operation_class", "outcome"),
    ),
    partial(
        Histogram,
        "haproc_request_duration_seconds",
        "Time from a request's arrival to its answer.",
        ("operation_class",),
        buckets=LATENCY_BUCKETS_S,
    ),
    partial(Gauge, "haproc_requests_under_way", "Requests that run now."),
    partial(Gauge, "haproc_requests_waiting", "Requests that wait for a permit."),
    partial(
        Gauge,
        "haproc_planning_waiting_statements",
        "Statements that wait until Spark's driver plans them.",
    ),
    partial(
        Counter,
        "haproc_operations_applied",
        "Operations of the log applied here, by outcome: applied, failed, skipped.",
        ("outcome",),
    ),
    partial(
        Histogram,
        "haproc_batch_operations",
        "Operations applied as one statement.",
        buckets=_BATCH_BUCKETS,
    ),
    partial(
        Gauge, "haproc_cursor_offset", "The offset below which every operation is applied here."
    ),
    partial(Gauge, "haproc_log_end_offset", "The offset after the log's newest record."),
    partial(Gauge, "haproc_log_start_offset", "The offset of the log's oldest record."),
    partial(
        Gauge,
        "haproc_trim_held_records",
        "Records that the named cluster keeps from being trimmed; absent if none does.",
        ("by",),
    ),
    partial(Gauge, "haproc_lag_records", "Records of the log that are not applied here."),
    partial(Gauge, "haproc_state", "1 for the state this HAProc is in.", ("state",)),
    partial(
        Gauge,
        "haproc_undecided",
        "1 while clusters differ and no majority shows which is right.",
    ),
    partial(
        Gauge,
        "haproc_verification",
        "1 for the newest verification's result: equal, different, undecided, unavailable.",
        ("finding",),
    ),
    partial(
        Gauge,
        "haproc_verification_tables",
        "This cluster's tables, by their result in the newest verification.",
        ("finding",),
    ),
    partial(
        Gauge,
        "haproc_verification_timestamp_seconds",
        "When this cluster had that result; 0: before this HAProc was started.",
    ),
    partial(
        Counter,
        "haproc_foreign_commits",
        "Commits of tables that the ring did not make, by what may have changed: rows, nothing.",
        ("changed",),
    ),
    partial(
        Gauge,
        "haproc_settings_differing",
        "Versions and settings of Spark for which other clusters have another value.",
    ),
    partial(
        Gauge, "haproc_settings_unfit", "Settings of Spark that do not have the required value."
    ),
    partial(
        Gauge, "haproc_peer_alive", "1 while any HAProc gets heartbeats of the peer.", ("peer",)
    ),
    partial(
        Gauge, "haproc_peer_direct", "1 while this HAProc gets heartbeats of the peer.", ("peer",)
    ),
    partial(Gauge, "haproc_peer_in_sync", "1 while the peer is in sync.", ("peer",)),
    partial(
        Gauge,
        "haproc_peer_lag_records",
        "Records of the log that the peer has not applied.",
        ("peer",),
    ),
    partial(Counter, "haproc_queries", "Queries received, by read level.", ("consistency",)),
    partial(
        Histogram,
        "haproc_read_wait_seconds",
        "Time for which queries waited until this cluster was fresh enough.",
        ("consistency",),
        buckets=LATENCY_BUCKETS_S,
    ),
    partial(
        Counter, "haproc_queries_forwarded", "Queries that a fresher cluster answered.", ("peer",)
    ),
    partial(
        Counter,
        "haproc_cache_queries",
        "Queries for which the cache counts: hit, kept, not_kept.",
        ("outcome",),
    ),
    partial(Gauge, "haproc_cache_answers", "Answers that the cache keeps."),
    partial(Gauge, "haproc_cache_bytes", "Memory of the kept answers."),
    partial(
        Counter,
        "haproc_cache_evictions",
        "Answers removed: written (a table changed), room (no memory).",
        ("reason",),
    ),
    partial(Gauge, "haproc_in_sync_clusters", "Clusters in sync, this one included."),
    partial(
        Gauge,
        "haproc_high_watermark_offset",
        "The offset below which all clusters in sync have applied every operation.",
    ),
    partial(
        Histogram,
        "haproc_write_concern_wait_seconds",
        "Time for which writes waited for other clusters; met: no if refused or failed.",
        ("concern", "met"),
        buckets=LATENCY_BUCKETS_S,
    ),
    partial(
        Gauge,
        "haproc_transport",
        "1 for the transport of heartbeats and reports: mesh or redis.",
        ("way",),
    ),
    partial(Counter, "haproc_redis_messages_published", "Messages sent to Redis."),
    partial(Counter, "haproc_redis_fallbacks", "Times that the mesh took over from Redis."),
    partial(
        Counter,
        "haproc_redis_messages_refused",
        "Messages ignored: strange (wrong signature), repeated, unproven (perhaps old).",
        ("reason",),
    ),
    partial(
        Gauge,
        "haproc_recovery_operations",
        "Progress of recovery: operations applied, and remaining.",
        ("part",),
    ),
    partial(
        Gauge,
        "haproc_recovery_copy_is_faster",
        "1 while copying tables would take less than half the time of the replay.",
    ),
    partial(
        Gauge,
        "haproc_copy_bytes",
        "Progress of a copy of another cluster's tables: bytes done, and remaining.",
        ("part",),
    ),
    partial(Gauge, "haproc_sessions", "Client sessions that this HAProc owns."),
    partial(Gauge, "haproc_sessions_of_ring", "Open client sessions of the ring."),
    partial(Counter, "haproc_sessions_adopted", "Sessions taken over from another HAProc."),
    partial(
        Gauge, "haproc_connect_statements", "Statements of PySpark clients that run now.", ("does",)
    ),
    partial(
        Gauge,
        "haproc_connect_operations",
        "Those statements, and results that clients have not released yet.",
    ),
    partial(
        Counter, "haproc_connect_results_resumed", "Results that continued after they broke off."
    ),
    partial(Gauge, "haproc_job_attempts_running", "Attempts of jobs that run beside this HAProc."),
    partial(Gauge, "haproc_jobs", "Jobs of the ring, by state.", ("state",)),
    partial(
        Counter,
        "haproc_job_attempts",
        "Attempts of jobs that ended here, by outcome.",
        ("outcome",),
    ),
    partial(Gauge, "haproc_results_kept", "Results kept for clients that fetch them in chunks."),
    partial(Gauge, "haproc_results_kept_bytes", "Bytes of those results."),
)
"""Every series: its Prometheus name, its text in the documents, and its labels."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What this HAProc has done since it was started: counts of requests and operations.

    ``within``: how many requests took at most each of `LATENCY_BUCKETS_S`; the last entry counts
    all.
    """

    by_class: Mapping[str, int]
    failed: int
    applied: int
    within: tuple[int, ...]


class Metrics:
    """The Prometheus series of one HAProc, with a method for each event that changes them."""

    def __init__(self, ring: str, cluster: str, states: Iterable[str]) -> None:
        self._registry = CollectorRegistry()
        self._series = {each.args[0]: each(registry=self._registry) for each in ALL}
        self._states = tuple(states)
        self._evicted = dict[str, int]()
        self._gauge("haproc_info", ring, cluster).set(1)
        for state in self._states:
            self._gauge("haproc_state", state).set(0)

    def request(self, operation_class: str, outcome: str, seconds: float) -> None:
        """Count an answered request.

        ``outcome``: ok, application, availability, refused or canceled.
        """
        self._counter("haproc_requests", operation_class, outcome).inc()
        self._histogram("haproc_request_duration_seconds", operation_class).observe(seconds)

    def under_way(self, requests: Callable[[], int], waiting: Callable[[], int]) -> None:
        """Register functions that return how many requests are served, and how many wait."""
        self._gauge("haproc_requests_under_way").set_function(requests)
        self._gauge("haproc_requests_waiting").set_function(waiting)

    def planning(self, waiting: Callable[[], int]) -> None:
        """Register a function that returns how many statements wait for the cluster's driver."""
        self._gauge("haproc_planning_waiting_statements").set_function(waiting)

    def applied(self, outcome: str, operations: int = 1) -> None:
        """Count operations that one statement applied; ``outcome``: applied, failed or skipped."""
        self._counter("haproc_operations_applied", outcome).inc(operations)
        self._histogram("haproc_batch_operations").observe(operations)

    def position(self, cursor: int, log_end: int, lag: int) -> None:
        """Set this cluster's cursor and lag, and the log's end."""
        self._gauge("haproc_cursor_offset").set(cursor)
        self._gauge("haproc_log_end_offset").set(log_end)
        self._gauge("haproc_lag_records").set(lag)

    def state(self, state: str) -> None:
        """Set the state this HAProc is in."""
        for other in self._states:
            self._gauge("haproc_state", other).set(other == state)

    def undecided(self, undecided: bool) -> None:
        """Set whether clusters differ while nothing proves which of them is right."""
        self._gauge("haproc_undecided").set(undecided)

    def verification(self, finding: str, tables: Mapping[str, int], at_ms: int | None) -> None:
        """Set the result of the newest verification for this cluster and its tables.

        ``finding``: the cluster's result. ``tables``: every possible result, with the number of
        this cluster's tables that have it.
        """
        for each, count in tables.items():
            self._gauge("haproc_verification", each).set(each == finding)
            self._gauge("haproc_verification_tables", each).set(count)
        self._gauge("haproc_verification_timestamp_seconds").set((at_ms or 0) / 1000)

    def foreign(self, found: Mapping[str, int]) -> None:
        """Count Delta commits that were made past HAProc, by what they changed.

        ``found``: those found since the last call.
        """
        for changed, commits in found.items():
            self._counter("haproc_foreign_commits", changed).inc(commits)

    def settings(self, differing: int, unfit: int) -> None:
        """Set how many Spark settings differ between clusters, and how many are not as required."""
        self._gauge("haproc_settings_differing").set(differing)
        self._gauge("haproc_settings_unfit").set(unfit)

    def peer(self, peer: str, alive: bool, direct: bool, in_sync: bool, lag: int | None) -> None:
        """Set a peer's state as this HAProc sees it; ``lag`` None: the peer never reported it."""
        self._gauge("haproc_peer_alive", peer).set(alive)
        self._gauge("haproc_peer_direct", peer).set(direct)
        self._gauge("haproc_peer_in_sync", peer).set(in_sync)
        if lag is not None:
            self._gauge("haproc_peer_lag_records", peer).set(lag)

    def count_read(self, level: str) -> None:
        """Count a query by its read level."""
        self._counter("haproc_queries", level).inc()

    def read_waited(self, level: str, seconds: float) -> None:
        """Record how long a query waited until this cluster was fresh enough for its read level."""
        self._histogram("haproc_read_wait_seconds", level).observe(seconds)

    def read_forwarded(self, peer: str) -> None:
        """Count a query that a peer ran."""
        self._counter("haproc_queries_forwarded", peer).inc()

    def cached(self, outcome: str) -> None:
        """Count a query whose answer may be in the cache; ``outcome``: hit, kept, or not_kept."""
        self._counter("haproc_cache_queries", outcome).inc()

    def cache(self, answers: int, bytes_used: int, evicted: Mapping[str, int]) -> None:
        """Set the number and bytes of the answers in the cache, and count evictions.

        ``evicted``: all evictions since the start, by reason.
        """
        self._gauge("haproc_cache_answers").set(answers)
        self._gauge("haproc_cache_bytes").set(bytes_used)
        for why, count in evicted.items():
            self._counter("haproc_cache_evictions", why).inc(count - self._evicted.get(why, 0))
        self._evicted = dict(evicted)

    def in_sync(self, clusters: int, high_watermark: int) -> None:
        """Set the number of clusters in sync, and the offset below which they have applied all."""
        self._gauge("haproc_in_sync_clusters").set(clusters)
        self._gauge("haproc_high_watermark_offset").set(high_watermark)

    def waited(self, concern: str, met: bool, seconds: float) -> None:
        """Count a write that waited for its write concern; ``met``: True if the concern was met."""
        met_text = "yes" if met else "no"
        self._histogram("haproc_write_concern_wait_seconds", concern, met_text).observe(seconds)

    def forget_peer(self, peer: str) -> None:
        """Remove the series of a cluster that the ring does not have any more."""
        for what in ("alive", "direct", "in_sync", "lag_records"):
            with suppress(KeyError):
                self._gauge(f"haproc_peer_{what}").remove(peer)

    def trim(self, log_start: int, held_by: str, held_records: int) -> None:
        """Set the log's first offset, and the cluster that holds up trimming; empty: none does.

        ``held_records``: the number of records that could be deleted without it.
        """
        self._gauge("haproc_log_start_offset").set(log_start)
        self._gauge("haproc_trim_held_records").clear()
        if held_by:
            self._gauge("haproc_trim_held_records", held_by).set(held_records)

    def transport(self, way: str, ways: Iterable[str]) -> None:
        """Set the transport of heartbeats and reports, one of ``ways``."""
        for other in ways:
            self._gauge("haproc_transport", other).set(other == way)

    def redis(self, published: int, fallbacks: int, refused: Mapping[str, int]) -> None:
        """Count messages published through Redis, fallbacks to direct HTTP, and refused messages.

        All counts are those since the last call.
        """
        self._counter("haproc_redis_messages_published").inc(published)
        self._counter("haproc_redis_fallbacks").inc(fallbacks)
        for reason, messages in refused.items():
            self._counter("haproc_redis_messages_refused", reason).inc(messages)

    def catch_up_estimate(self, *, copy_is_faster: bool) -> None:
        """Set whether a copy of tables is expected to take less than half of the replay's time."""
        self._gauge("haproc_recovery_copy_is_faster").set(copy_is_faster)

    def copied(self, done: int, total: int) -> None:
        """Set how many bytes a copy has done, and how many it has in all."""
        self._gauge("haproc_copy_bytes", "done").set(done)
        self._gauge("haproc_copy_bytes", "remaining").set(total - done)

    def recovery(self, applied: int, remaining: int) -> None:
        """Set the numbers of records that a replay has applied, and has still to apply."""
        self._gauge("haproc_recovery_operations", "applied").set(applied)
        self._gauge("haproc_recovery_operations", "remaining").set(remaining)

    def sessions(self, here: int, of_ring: int, adopted: int) -> None:
        """Set the numbers of clients' sessions on this HAProc and in the ring.

        ``adopted``: the sessions that this HAProc took over since the last call.
        """
        self._gauge("haproc_sessions").set(here)
        self._gauge("haproc_sessions_of_ring").set(of_ring)
        self._counter("haproc_sessions_adopted").inc(adopted)

    def connect(self, statements: Mapping[str, int], operations: int, resumed: int) -> None:
        """Set the numbers of PySpark's running statements and Spark Connect operations.

        ``resumed``: results that clients continued to read after a break, since the last call.
        """
        for does, running in statements.items():
            self._gauge("haproc_connect_statements", does).set(running)
        self._gauge("haproc_connect_operations").set(operations)
        self._counter("haproc_connect_results_resumed").inc(resumed)

    def jobs(self, here: int, of_ring: Mapping[str, int], ended: Mapping[str, int]) -> None:
        """Set the numbers of running attempts here and of the ring's jobs by state.

        ``ended``: attempts that ended since the last call, by outcome.
        """
        self._gauge("haproc_job_attempts_running").set(here)
        for state, jobs in of_ring.items():
            self._gauge("haproc_jobs", state).set(jobs)
        for outcome, attempts in ended.items():
            self._counter("haproc_job_attempts", outcome).inc(attempts)

    def results(self, count: int, size_bytes: int) -> None:
        """Set the number and the bytes of the query results that are kept for clients."""
        self._gauge("haproc_results_kept").set(count)
        self._gauge("haproc_results_kept_bytes").set(size_bytes)

    def totals(self) -> Totals:
        """Return the counts since the start, for the status page."""
        by_class, failed = dict[str, int](), 0
        for labels, value in self._values("haproc_requests", "_total"):
            name = labels["operation_class"]
            by_class[name] = by_class.get(name, 0) + value
            failed += value if labels["outcome"] in ("application", "availability") else 0
        within = dict[float, int]()
        for labels, value in self._values("haproc_request_duration_seconds", "_bucket"):
            at = float(labels["le"])
            within[at] = within.get(at, 0) + value
        applied = sum(value for _, value in self._values("haproc_operations_applied", "_total"))
        return Totals(by_class, failed, applied, tuple(within[at] for at in sorted(within)))

    def _values(self, name: str, suffix: str) -> Iterator[tuple[Mapping[str, str], int]]:
        for series in self._series[name].collect():
            for sample in series.samples:
                if sample.name.endswith(suffix):
                    yield sample.labels, int(sample.value)

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self._registry)

    def _gauge(self, name: str, *labels: str) -> Gauge:
        return self._of(Gauge, name, labels)

    def _counter(self, name: str, *labels: str) -> Counter:
        return self._of(Counter, name, labels)

    def _histogram(self, name: str, *labels: str) -> Histogram:
        return self._of(Histogram, name, labels)

    def _of(self, kind: type[T], name: str, labels: tuple[str, ...]) -> T:
        series = self._series[name]
        found = series.labels(*labels) if labels else series
        assert isinstance(found, kind), name
        return found
