"""Sections of the configuration: bounds, and the keys below archive, cache and optimize."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from haproc.classify.bounds import Bounds

# The bounds of what is taken at once, kept, and held in memory.


ENVELOPE_BYTES = 1 << 20
"""What a JSON body may hold beside a statement of the largest size."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one HAProc takes on."""

    operation_bytes_max: int = 64 << 20
    """Bytes of a write; a larger one is refused. ``batch_bytes_max``, ``batch_arrow_bytes_max`` and
    ``part_bytes_max`` are reduced to it where they are not set. Chosen, not measured."""
    statement_bytes_max: int = Bounds().chars_max
    """Text of one statement with its parameters; more is refused. Each copy of 16 MiB blocks the
    HAProc for 5 to 40 ms; send large values as rows."""
    statement_tokens_max: int = Bounds().tokens_max
    """Words, literals and symbols of one statement, steps and expressions of a plan; more is
    refused (``HAPROC_STATEMENT_TOO_COMPLEX``). An INSERT of 480,000 worked on a Spark with 1 GiB of
    heap, one of a million exhausted it: raise it with the driver's memory. It bounds INSERTs that
    are combined into one statement, too."""
    statement_depth_max: int = Bounds().depth_max
    """How deeply a statement may nest: each bracket, CASE, operator in a row, UNION counts 1, a
    join 2, a subquery 9. Spark 4.2.1 with default stacks took all kinds of 200 and overflowed at
    400 to 800: raise it with ``-Xss``."""
    statements_max: int = 256
    """Requests that run at once. Further ones wait in the wait queue, where the user with the
    fewest requests comes first."""
    statement_queue_s: float = 30.0
    """How long a request waits for a permit, at most until its own ``timeout_s``, before it is
    answered 429. Chosen: as long as a client looks for another server."""
    planned_max: int = 8
    """Statements that Spark's driver plans for clients at once, until their tasks run or their rows
    come; further ones wait. A few for each core of the driver: more do not plan more in a second,
    but each takes longer, and the probe with them."""
    large_statements_max: int = 512 << 10
    """Characters of the SQL texts over 32 Ki that Spark's driver holds for clients at once, until
    their first rows are there; further large ones wait, the others do not. Raise it with the
    driver's heap: such a text takes 500 to 1,000 times its size. Eight SELECTs of 20,000 columns,
    of 300 KB each, filled a heap of 1 GiB, and the cluster was down for minutes."""
    writes_waiting_max: int = 2000
    """Writes that are in the log and wait for their outcome, and queries whose cluster is behind.
    They do not count among ``statements_max``, unless there are more than this. Chosen: twice a
    listener's connections."""
    sessions_max: int = 1000
    """The ring's client sessions; the next is refused. Counted every minute."""
    session_entries_max: int = 1000
    """Names that a session holds (views, functions, files …); each takes Spark some 20 ms when the
    session is taken over."""
    session_bytes_max: int = 32 << 20
    """A session's journal, without files."""
    session_files_bytes_max: int = 256 << 20
    """Files that one session was given."""
    session_here_s: float = 3600.0
    """A session that is unused for so long leaves this cluster's Spark; a HAProc takes it over
    again at its next use."""
    session_idle_s: float = 86_400.0
    """A session that is unused for so long is closed, to within an hour. Chosen: a night."""
    connections_max: int = 1000
    """Open connections of each listener. Where all are in use, the one that is idle longest is
    closed, of the user who has most; if each has a request, a new one is answered 429. Chosen, not
    measured."""
    requests_bytes_max: int = 512 << 20
    """Bytes of requests and large answers in memory at a time; the next request is answered 429.
    Chosen: eight operations of the largest size."""
    user_share: float = 0.5
    """Share of connections, statements, sessions, kept results and ``requests_bytes_max`` that one
    user may have at a time, where a ring may have several; above 0, at most 1. Chosen, not
    measured."""
    staged_bytes_max: int = 16 << 30
    """Bytes of rows of one write whose query is run once (a nondeterministic INSERT … SELECT), and
    of one body of rows; they pass through the log, and through a staging table on each cluster."""
    spooled_bytes_max: int = 32 << 30
    """Bodies of rows on disk (in ``state_dir``) at a time, from their first byte until their
    operation is applied here; at least ``staged_bytes_max``. A user's share is ``user_share`` of
    it."""
    part_bytes_max: int = 8 << 20  # a write's rows in one record, and given to a cluster at once
    """Bytes of a write's rows in one record; a cluster gets as many at a time."""
    part_rows_max: int = 200_000
    """Rows in one record. Chosen: a row with almost no bytes still takes a driver some 100 bytes.
    """
    inline_bytes_max: int = 25 << 20
    """A larger result needs EXTERNAL_LINKS or a stream (Databricks' limit)."""
    results_kept_bytes_max: int = 512 << 20
    """Results kept for clients that fetch them in chunks; beyond 64 MiB on disk."""
    results_kept_s: float = 900.0
    """How long results are kept."""
    batch_operations_max: int = 10_000
    """INSERTs combined into one statement."""
    batch_bytes_max: int = 8 << 20
    """Text of one statement that combines INSERTs."""
    batch_rows_max: int = 20_000
    """Rows of VALUES in one such statement; 50,000 were measured to work."""
    batch_arrow_bytes_max: int = 44 << 20
    """Rows in Arrow, of several requests, in one statement; all statements that run side by side
    have at most twice as much. A larger value loads faster; a driver takes some ten times as much
    memory, a HAProc twice, while it sends them. Measured: 232 MiB took 25, 20, 14 s by 12, 24,
    48 MiB; with a heap of 1 GiB 128 MiB at once were slow, 192 MiB too much."""
    lanes: int = 4
    """Statements that are applied side by side, at most 16; on two cores more gave nothing."""
    look_ahead_records_max: int = 16_384
    """Records read ahead of the cursor."""
    look_ahead_bytes_max: int = 128 << 20
    """Bytes of the records that are read ahead of the cursor."""
    window_records: int = 65_536
    """Size of the idempotency window in records: how far back a repeated request id is recognised.
    It is more than six seconds of writes. To raise it, raise it on every HAProc before a client
    writes through any: a HAProc with less than a record asks for stops (TOO_FAR_BEHIND). To lower
    it, stop all HAProcs when all lags are 0."""

    @property
    def bounds(self) -> Bounds:
        """What a statement's text may be like."""
        chars_max = min(self.statement_bytes_max, self.operation_bytes_max)
        return Bounds(chars_max, self.statement_tokens_max, self.statement_depth_max)

    @property
    def statement_body_bytes_max(self) -> int:
        """What the body of a request may hold that brings a statement."""
        return self.bounds.chars_max + ENVELOPE_BYTES


# What the archive may read, and what is shown of it: keys below ``archive``.


class Mask(StrEnum):
    """What of a statement's literals the archive does not show."""

    LITERALS = "literals"
    """All of them."""
    SECRETS = "secrets"
    """Values behind words such as ``password``, ``secret``, ``token`` or ``key``."""


@dataclass(frozen=True, slots=True)
class Archive:
    """Who may read what was applied, and what is shown of it."""

    user: str | None = None
    """The one user who may read what was applied, the statements of all users included. Without it
    nobody may."""
    mask: Mask = Mask.LITERALS
    """What the archive hides. ``literals``: all texts and numbers; ``secrets``: values behind words
    such as ``password``, ``token`` or ``key``."""
    unmasked: tuple[str, ...] = ()
    """Patterns of tables (``spark_catalog.sales.*``). Of statements that write only these, the
    archive hides secrets alone."""
    statement_characters_max: int = 4000
    """Longer statements are cut."""
    holds_trimming: bool = False
    """Whether the log keeps what is not archived yet, however long that takes: a stopped archive
    lets the log grow."""


# Answers that are kept to be given again: keys below ``cache``.


@dataclass(frozen=True, slots=True)
class Cache:
    """Which queries' answers are kept, and how much of them."""

    by_default: bool = False
    """Whether answers are kept to queries of which neither the request nor a rule says anything."""
    bytes_max: int = 128 << 20
    """Memory for all kept answers; the least recently used answer goes first. Chosen: little beside
    what requests may take."""
    answer_bytes_max: int = 8 << 20
    """A larger answer is not kept. Chosen: what is read at a glance, not whole tables."""


# Which tables' small files are put together by the ring: keys below ``optimize``.


@dataclass(frozen=True, slots=True)
class OptimizeRule:
    """Of several that match a table the first one counts."""

    table: str
    """A pattern of names, such as ``spark_catalog.sales.*``; the first that matches counts."""
    after_commits: int = 100
    """Commits since the last OPTIMIZE after which the next one is submitted. Chosen: with two files
    of each, a query of the table reads at most so many besides the large ones."""


@dataclass(frozen=True, slots=True)
class Optimize:
    """OPTIMIZE as the ring submits it by itself."""

    tables: tuple[OptimizeRule, ...] = ()
    """Tables whose small files the ring compacts. Empty: it submits no OPTIMIZE."""
    interval_s: float = 60.0
    """How often the tables that were written are checked. Chosen, not measured."""
