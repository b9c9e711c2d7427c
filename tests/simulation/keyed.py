"""Writes by key that a cluster which lags may combine, held against the log's statements in order.

Keys stand twice or more; some statements violate a check, if there is a row for them to violate it
with, and later ones would hide that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from dmq import decode
from haproc.classify.model import InsertShape, Kind
from haproc.engine.statement import SqlText
from haproc.replicate.archive.account import ArchivedStatus, Fates
from haproc.replicate.log_state.members import Claims
from haproc.replicate.records.operation import Operation, from_record
from tests.simulation.clock import run
from tests.simulation.merging import executed
from tests.simulation.ring import LIMITS, Ring
from tests.simulation.scenario import SETUP as PLAIN
from tests.simulation.scenario import Report, Scenario, operation
from tests.simulation.scenario import build as plain_build
from tests.simulation.violations import Problem, Violation

ACCOUNTS = "CREATE TABLE accounts (k, v, w CHECK (w <> 'bad'))"
KEYS = 3
MIX = (
    *(*("enter",) * 6, *("append",) * 6, *("upsert",) * 3),
    *("ensure", "swap", "leave", "leave", "spoil", "spoil", "mend", "put", "set"),
)
_UPSERT = "MERGE INTO accounts AS a USING (SELECT {key} AS k, ',{op}' AS v) AS s ON a.k = s.k "
_COMES = " WHEN NOT MATCHED THEN INSERT (k, v, w) VALUES (s.k, s.v, 'new')"
_TEXTS = {
    "upsert": f"{_UPSERT}WHEN MATCHED THEN UPDATE SET v = a.v || s.v{_COMES}",
    "ensure": f"{_UPSERT}{_COMES.strip()}",
    "swap": f"{_UPSERT}WHEN MATCHED THEN DELETE{_COMES}",
    "append": "UPDATE accounts SET v = v || ',{op}' WHERE k = {key}",
    "put": "UPDATE accounts SET v = '{op}' WHERE k IN ({key}, {next})",
    "mend": "UPDATE accounts SET w = '{op}' WHERE k = {key}",
    "spoil": "UPDATE accounts SET w = 'bad', v = v || ',{op}' WHERE k = {key}",
    "leave": "DELETE FROM accounts WHERE k = {key}",
}


def build(what: str, op_id: str, origin: str, rng_value: int) -> Operation:
    """Return the operation of a workload step."""
    key = rng_value % KEYS
    writes = frozenset({"accounts"})
    if what == "enter":
        head, row = "INSERT INTO accounts VALUES ", f"({key}, '{op_id}', 'new')"
        shape = InsertShape(len(head), 1, "i,s,s")
        if rng_value % 2:
            head, row = "INSERT INTO accounts (v, k) VALUES ", f"('{op_id}', {key})"
            shape = InsertShape(len(head), 1, "s,i")
        return operation(op_id, Kind.INSERT, head + row, origin, writes=writes, insert=shape)
    if what not in _TEXTS:
        return plain_build(what, op_id, origin, rng_value)
    kind = Kind[_TEXTS[what].partition(" ")[0]]
    sql = _TEXTS[what].format(op=op_id, key=key, next=(key + 1) % KEYS)
    return operation(op_id, kind, sql, origin, writes=writes)


class Keyed(Scenario):
    """See the module."""

    setup = (*PLAIN, ACCOUNTS)
    mix = MIX
    build = staticmethod(build)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ring = Ring(seed, limits=replace(LIMITS, window_records=5000))

    def check(self, report: Report) -> None:
        """Hold every cluster against the log's statements, one after another."""
        super().check(report)
        expected, found = told(self.ring)
        missing = [a.id for a in self.attempts if a.acknowledged and a.id not in found]
        if missing:
            report.wrong(Violation.LOST, f"acknowledged, and not in the log: {missing}")
        for name, node in self.ring.nodes.items():
            report.problems += _differs(name, node.spark.dump().get("accounts"), expected)


def told(ring: Ring) -> tuple[list[tuple[object, ...]], set[str]]:
    """Return what the accounts come to by the log, and which operations stand in it."""
    messages = [from_record(decode(data)) for data in ring.store.everything]
    fates = Fates(0, Claims())
    for at, message in enumerate(messages):
        fates.note(at, message)
    disk = sqlite3.connect(":memory:", isolation_level=None)
    disk.execute(ACCOUNTS)
    seen: set[str] = set()
    for at, message in enumerate(messages):
        if not isinstance(message, Operation) or message.id in seen:
            continue
        seen.add(message.id)
        endings = fates.endings(at, ring.names) or {}
        if any(ending.status is ArchivedStatus.REJECTED for ending in endings.values()):
            continue
        if "accounts" in message.writes and isinstance(message.write, SqlText):
            with suppress(sqlite3.IntegrityError):
                executed(disk, message.write.sql)
    return sorted(disk.execute("SELECT * FROM accounts"), key=repr), seen


def _differs(
    name: str, held: list[tuple[object, ...]] | None, expected: list[tuple[object, ...]]
) -> Iterator[Problem]:
    if held is not None and held != expected:
        text = f"{name} holds {held}, the log comes to {expected}"
        yield Problem(Violation.OTHERWISE, text)


def simulate(seed: int) -> Report:
    """Run one seed and return what it came to."""
    return run(Keyed(seed).main())
