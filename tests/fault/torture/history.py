"""The events of a run as lines of JSON: written while it runs, and loaded for the checker.

Several processes of one machine write into one file: each line is one write at its end.

Every line has a ``type`` and the times ``t`` (seconds since the run began, monotonic) and ``wall``.
An operation has two lines, ``invoke`` and ``complete``; if the second is missing, because the run
itself died, the outcome is unknown.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias


class Verb(StrEnum):
    """The effect of an operation. The verbs of a table show its kind."""

    INSERT = "insert"
    """Rows with new ids, all or none; in a register: one more row for the key."""
    PUT = "put"
    """Set a register's value, whether it has one or not."""
    UPDATE = "update"
    """Set a register's value, if it has one."""
    DELETE = "delete"
    APPEND = "append"
    """One more element at the end of a key's list."""
    CREATE = "create"
    ADD_COLUMN = "add column"
    DROP = "drop"
    WRONG = "wrong"
    """A statement that must be refused."""


class Outcome(StrEnum):
    """The result of a write, as the client received it."""

    ACK = "ack"
    REJECTED = "rejected"
    """It has no effect anywhere, now or later."""
    NOT_SENT = "not sent"
    """It is in no log."""
    UNKNOWN = "unknown"

    @property
    def failed(self) -> bool:
        """True if the write surely has no effect."""
        return self in (Outcome.REJECTED, Outcome.NOT_SENT)


class Level(StrEnum):
    """The required freshness of a read."""

    ANY = "any"
    BOUNDED = "bounded"
    SESSION = "session"
    LINEARIZABLE = "linearizable"


Content: TypeAlias = Mapping[str, tuple[int, ...]]
"""A table by key: a list's elements in order, a register's rows, a set's ids under ``""``."""
COLUMNS = "columns"
"""The key of a table's added columns, by their numbers, in a table with its own DDL."""


@dataclass(frozen=True, slots=True)
class Op:
    """One write of a client."""

    id: str
    process: str
    verb: Verb
    table: str
    key: str = ""
    values: tuple[int, ...] = ()
    invoked_s: float = 0.0
    completed_s: float = math.inf
    """Infinite if the outcome is unknown: it may yet be applied."""
    outcome: Outcome = Outcome.UNKNOWN
    cluster: str = ""
    offset: int | None = None
    error: str = ""
    took_s: float = math.inf
    sent_to: str = ""
    """The cluster of the HAProc that the client meant to ask."""
    answered_by: str = ""
    """The cluster of the HAProc that answered."""

    @property
    def failed_over(self) -> bool:
        """True if another HAProc answered than the one that received the request first."""
        return bool(self.answered_by) and self.answered_by != self.sent_to

    def __str__(self) -> str:
        at = f" at offset {self.offset}" if self.offset is not None else ""
        by = f" by {self.cluster}" if self.cluster else ""
        what = f"{self.verb} {self.key}={pack(self.values)}" if self.key else str(self.verb)
        return f"{self.process}'s {what} ({self.id}, {self.outcome}{by}{at})"


@dataclass(frozen=True, slots=True)
class Position:
    """A cluster's stored progress: all below ``low`` and all of ``done`` is applied."""

    low: int
    done: frozenset[int] = frozenset()
    log_end: int = 0
    """The log's end, read after the progress."""

    def claims(self, offset: int | None) -> bool:
        """True if the cluster reports the operation at this offset as applied."""
        return offset is not None and (offset < self.low or offset in self.done)


@dataclass(frozen=True, slots=True)
class Read:
    """The content of a table as a client saw it on one cluster."""

    process: str
    table: str
    cluster: str
    invoked_s: float
    completed_s: float
    content: Content
    position: Position | None = None
    """The cluster's progress, loaded before the table was read."""
    level: Level = Level.ANY
    lag_max: int = 0
    """For `Level.BOUNDED`: the number of records that may be missing."""
    token: int = 0
    """The number of the log's records that show all that the client had written and seen before."""
    after_offset: int | None = None
    """The number of the log's records that show all that the answer shows, as it reports."""
    sent_to: str = ""
    answered_by: str = ""

    @property
    def failed_over(self) -> bool:
        """True if another HAProc answered than the one that received the request first."""
        return bool(self.answered_by) and self.answered_by != self.sent_to

    def __str__(self) -> str:
        level = f"{self.level} " * (self.level is not Level.ANY)
        bound = f"by {self.lag_max} " * (self.level is Level.BOUNDED)
        return f"{self.process}'s {level}{bound}read at {self.completed_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Final:
    """The tables of a cluster at the end; None for a table that does not exist."""

    cluster: str
    position: Position | None
    tables: Mapping[str, Content | None]
    checksums: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Run:
    """A whole history."""

    ops: tuple[Op, ...] = ()
    reads: tuple[Read, ...] = ()
    finals: tuple[Final, ...] = ()
    log: tuple[tuple[int, str], ...] | None = None
    """Offset and request id of every operation in the log, in its order."""
    events: tuple[Mapping[str, Any], ...] = ()
    """All other lines."""


# -- values in JSON ------------------------------------------------------------------------------


def pack(values: Sequence[int]) -> str:
    """Write numbers in short form, in their order: runs that rise by one become ``first-last``."""
    parts: list[str] = []
    start = 0
    for at in range(1, len(values) + 1):
        if at == len(values) or values[at] != values[at - 1] + 1:
            first, last = values[start], values[at - 1]
            parts.append(str(first) if first == last else f"{first}-{last}")
            start = at
    return ",".join(parts)


def unpack(text: str) -> tuple[int, ...]:
    """Parse the text of `pack`."""
    values: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        values.extend(range(int(first), int(last or first) + 1))
    return tuple(values)


def content_json(content: Content | None) -> dict[str, str] | None:
    """Return a table's content in the form of a history."""
    return None if content is None else {key: pack(values) for key, values in content.items()}


def _content(packed: Mapping[str, str] | None) -> Content | None:
    return None if packed is None else {key: unpack(text) for key, text in packed.items()}


def position_json(position: Position | None) -> dict[str, Any] | None:
    """Return a cluster's progress in the form of a history."""
    if position is None:
        return None
    done = pack(sorted(position.done))
    return {"low": position.low, "done": done, "log_end": position.log_end}


def _position(packed: Mapping[str, Any] | None) -> Position | None:
    if packed is None:
        return None
    return Position(packed["low"], frozenset(unpack(packed["done"])), packed["log_end"])


# -- writing -------------------------------------------------------------------------------------


class History:
    """Appends events to a file; threads share it, and so do processes.

    ``began`` is the time at which the run began, by the machine's clock: now, unless another
    process began it.
    """

    def __init__(
        self,
        file: Path,
        clock: Callable[[], float] = time.monotonic,
        began: float | None = None,
    ) -> None:
        self.file = file
        self.began = clock() if began is None else began
        self._raw = file.open("ab", buffering=0)
        self._clock = clock
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the seconds since the run began."""
        return self._clock() - self.began

    def write(self, kind: str, **fields: Any) -> float:
        """Write one event and return its time."""
        with self._lock:
            # Within the lock, so that the lines stand in the order of their times.
            at = round(self.now(), 4)
            line = json.dumps({"t": at, "wall": round(time.time(), 3), "type": kind, **fields})
            if not self._raw.closed:
                self._raw.write(f"{line}\n".encode())
            return at

    def close(self) -> None:
        """Close the file; later writes are dropped."""
        with self._lock:
            self._raw.close()


# -- reading -------------------------------------------------------------------------------------


def load(file: Path) -> Run:
    """Load a history; a last line that was cut off is left out."""
    lines: list[dict[str, Any]] = []
    with file.open(encoding="utf-8") as text:
        for line in text:
            if line.endswith("\n"):
                lines.append(json.loads(line))
    return from_lines(lines)


def from_lines(lines: Iterable[Mapping[str, Any]]) -> Run:
    """Return the history of these lines."""
    ops: dict[str, Op] = {}
    reads: list[Read] = []
    finals: list[Final] = []
    log: list[tuple[int, str]] | None = None
    events: list[Mapping[str, Any]] = []
    for line in lines:
        match line["type"]:
            case "invoke":
                ops[line["id"]] = _invoked(line)
            case "complete":
                ops[line["id"]] = _completed(ops[line["id"]], line)
            case "read":
                reads.append(_read(line))
            case "final":
                finals.append(_final(line))
            case "log":
                log = [*(log or []), *((offset, key) for offset, key in line["entries"])]
            case _:
                events.append(line)
    if log is not None:
        log = _that_count(log)
        ops = {each: _placed(op, log) for each, op in ops.items()}
    return Run(
        tuple(ops.values()),
        tuple(reads),
        tuple(finals),
        None if log is None else tuple(log),
        tuple(events),
    )


def _invoked(line: Mapping[str, Any]) -> Op:
    return Op(
        id=line["id"],
        process=line["process"],
        verb=Verb(line["verb"]),
        table=line["table"],
        key=line["key"],
        values=unpack(line["values"]),
        invoked_s=line["t"],
    )


def _completed(op: Op, line: Mapping[str, Any]) -> Op:
    outcome = Outcome(line["outcome"])
    return replace(
        op,
        completed_s=math.inf if outcome is Outcome.UNKNOWN else line["t"],
        outcome=outcome,
        cluster=line["cluster"],
        offset=line["offset"],
        error=line["error"],
        took_s=line["t"] - op.invoked_s,
        sent_to=line.get("sent_to", ""),
        answered_by=line.get("answered_by", ""),
    )


def _that_count(log: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the log's operations by their requests' ids.

    One that was rejected and made again, as ``ID~2`` and so on, does not count.
    """
    last: dict[str, int] = {}
    read = []
    for offset, key in log:
        request_id, _, number = key.partition("~")
        read.append((offset, request_id, int(number or 1)))
        last[request_id] = max(last.get(request_id, 0), read[-1][2])
    return [(offset, each) for offset, each, number in read if number == last[each]]


def _placed(op: Op, log: Sequence[tuple[int, str]]) -> Op:
    """Return an acknowledged write with its offset, which a PySpark program does not receive."""
    if op.outcome is not Outcome.ACK or op.offset is not None:
        return op
    return replace(op, offset=next((offset for offset, key in log if key == op.id), None))


def _read(line: Mapping[str, Any]) -> Read:
    return Read(
        process=line["process"],
        table=line["table"],
        cluster=line["cluster"],
        invoked_s=line["invoked"],
        completed_s=line["t"],
        content=_content(line["content"]) or {},
        position=_position(line["position"]),
        level=Level(line.get("level", Level.ANY)),
        lag_max=line.get("lag_max", 0),
        token=line.get("token", 0),
        after_offset=line.get("after_offset"),
        sent_to=line.get("sent_to", ""),
        answered_by=line.get("answered_by", ""),
    )


def _final(line: Mapping[str, Any]) -> Final:
    return Final(
        cluster=line["cluster"],
        position=_position(line["position"]),
        tables={name: _content(content) for name, content in line["tables"].items()},
        checksums=line["checksums"],
    )
