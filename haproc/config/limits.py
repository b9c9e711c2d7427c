"""The bounds of what is taken at once, kept, and held in memory."""

from __future__ import annotations

from dataclasses import dataclass

from haproc.classify.bounds import Bounds

ENVELOPE_BYTES = 1 << 20
"""What a JSON body may hold beside a statement of the largest size."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one HAProc takes on."""

    operation_bytes_max: int = 64 << 20
    """A larger operation is refused; chosen, not measured."""
    statement_bytes_max: int = Bounds().chars_max
    """Text of a statement, with its parameters. Each copy of 16 MiB that is made on its way keeps
    everybody else waiting for 5 to 40 ms; large values travel better as rows."""
    statement_tokens_max: int = Bounds().tokens_max
    """Words, literals and symbols of a statement. An INSERT of 480,000 was measured to work with a
    driver's heap of 1 GiB, one of a million to exhaust it; raise it with the heap."""
    statement_depth_max: int = Bounds().depth_max
    """How deeply a statement may nest: brackets, CASE, operators in a row, joins, subqueries. Spark
    4.2.1 with default stacks read and analysed all kinds of 200, and overflowed at 400 to 800."""
    statements_max: int = 256
    """Requests under way at once; the next ones wait in line."""
    statement_queue_s: float = 30.0
    """How long they wait before they are answered 429; 0: not at all. Chosen: as long as a client
    looks for another server."""
    planned_max: int = 8
    """Statements that the cluster's driver plans for clients at once; the next ones wait in line.
    On two cores more plan no more of them in a second, and each takes longer."""
    large_statements_max: int = 512 << 10
    """Characters of the large statements (over 32 Ki) that the driver has under way for clients at
    once. Eight SELECTs of 20,000 columns, of 300 KB each, filled a heap of 1 GiB, and the cluster
    was down for minutes."""
    writes_waiting_max: int = 2000
    """Writes that are in the log and wait for what becomes of them, and queries whose cluster is
    behind, beside those; further ones count among them. Chosen: twice a listener's connections."""
    sessions_max: int = 1000
    """Client sessions of the ring; the next one is refused."""
    session_entries_max: int = 1000
    """Steps of a session's journal; each takes Spark some 20 ms when the session is taken over."""
    session_bytes_max: int = 32 << 20
    """A session's journal, without files. Chosen: it is read as a whole."""
    session_files_bytes_max: int = 256 << 20
    """Files that a session was given. Chosen, not measured."""
    session_here_s: float = 3600.0
    """An unused session leaves this cluster's Spark; it is taken over again when asked for."""
    session_idle_s: float = 86_400.0
    """An unused session is closed; to within an hour. Chosen: a night."""
    connections_max: int = 1000
    """Open at a time on each listener; beyond it idle ones give way. Chosen, not measured."""
    requests_bytes_max: int = 512 << 20
    """Requests and answers in memory at a time; the next one is answered 429. Chosen: eight
    operations of the largest size."""
    user_share: float = 0.5
    """How much of connections, statements, sessions, results kept and bytes of requests one user
    may take, where there are several: so nobody takes all. Chosen, not measured."""
    staged_bytes_max: int = 16 << 30
    """Rows of one write whose query is run once, and of one body of rows. Chosen: as many records
    of a Kafka log (1 MiB each) are a quarter of the window of request ids."""
    spooled_bytes_max: int = 32 << 30
    """Bodies of rows on disk at a time, in state_dir, while they go into the log. Chosen: two of
    the largest."""
    part_bytes_max: int = 8 << 20  # a write's rows in one record, and given to a cluster at once
    part_rows_max: int = 200_000
    """Chosen: rows of next to no bytes take a driver some 100 bytes each all the same."""
    inline_bytes_max: int = 25 << 20
    """A larger result needs EXTERNAL_LINKS or a stream (Databricks' limit)."""
    results_kept_bytes_max: int = 512 << 20
    """Results kept on disk for clients that fetch them in chunks."""
    results_kept_s: float = 900.0
    batch_operations_max: int = 10_000
    """INSERTs combined into one statement."""
    batch_bytes_max: int = 8 << 20
    batch_rows_max: int = 20_000
    """Of VALUES; 50,000 were measured to work."""
    batch_arrow_bytes_max: int = 56 << 20
    """Rows, as Arrow, in one statement; in all that run side by side twice that. Measured: 232 MiB
    took 25, 20, 14 s by 12, 24, 48; with a heap of 1 GiB 128 at once were slow, 192 too much."""
    lanes: int = 4
    """Statements applied side by side; on two cores more gave nothing."""
    look_ahead_records_max: int = 16_384
    """Records read ahead of the cursor."""
    look_ahead_bytes_max: int = 128 << 20
    window_records: int = 65_536
    """How far back a repeated request id is recognised, in records."""

    @property
    def bounds(self) -> Bounds:
        """What a statement's text may be like."""
        chars_max = min(self.statement_bytes_max, self.operation_bytes_max)
        return Bounds(chars_max, self.statement_tokens_max, self.statement_depth_max)

    @property
    def statement_body_bytes_max(self) -> int:
        """What the body of a request may hold that brings a statement."""
        return self.bounds.chars_max + ENVELOPE_BYTES
