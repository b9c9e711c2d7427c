"""Clients that write and read through haclient, each noting all that it asks and is told.

A client is a thread with a connection of its own and its own order of the servers. What it does
follows from the run's seed and its name. Values are never used twice: client number n counts from
n million.
"""

from __future__ import annotations

import itertools
import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

import haclient
from haclient.request_ids import new_request_id
from tests.fault.torture.history import COLUMNS, Content, History, Outcome, Verb, content_json, pack
from tests.fault.torture.part import Part
from tests.fault.torture.replay import TableKind

SETS = ("set_0", "set_1")
REGISTERS = ("reg_0",)
LISTS = ("app_0", "app_1")
TABLES = {
    **dict.fromkeys(SETS, TableKind.SET),
    **dict.fromkeys(REGISTERS, TableKind.REGISTER),
    **dict.fromkeys(LISTS, TableKind.LIST),
}
LIST_KEYS = ("0", "1", "2")
SHARED_KEYS = ("0", "1", "2", "3")
_MILLION = 1_000_000
_TIMEOUTS_S = (8.0, 20.0, 60.0, 60.0)
"""Short ones, so that there are unknown outcomes as well."""
_OUTCOMES = {
    haclient.Outcome.NOT_SENT: Outcome.NOT_SENT,
    haclient.Outcome.REJECTED: Outcome.REJECTED,
    haclient.Outcome.UNKNOWN: Outcome.UNKNOWN,
}


def make_tables(servers: Sequence[str]) -> None:
    """Create what the clients use, before anything breaks."""
    with haclient.connect(servers, timeout_s=180.0) as connection:
        for table, kind in TABLES.items():
            match kind:
                case TableKind.SET:
                    columns = "id BIGINT, writer STRING"
                case TableKind.REGISTER:
                    columns = "k BIGINT, v BIGINT"
                case TableKind.LIST:
                    columns = "k BIGINT, l STRING"
            connection.execute(f"CREATE TABLE {table} ({columns}) USING delta")
            if kind is TableKind.LIST:
                rows = ", ".join(f"({key}, '')" for key in LIST_KEYS)
                connection.execute(f"INSERT INTO {table} VALUES {rows}")


def select(table: str) -> str:
    """Return the query for all that a table holds."""
    match TABLES.get(table, TableKind.SET):
        case TableKind.SET:
            return f"SELECT id FROM {table}"
        case TableKind.REGISTER:
            return f"SELECT k, v FROM {table}"
        case TableKind.LIST:
            return f"SELECT k, l FROM {table}"


def content_of(table: str, rows: Sequence[Sequence[Any]]) -> Content:
    """Return what the rows of `select` say."""
    match TABLES.get(table, TableKind.SET):
        case TableKind.SET:
            return {"": tuple(sorted(int(row[0]) for row in rows))}
        case TableKind.REGISTER:
            found: dict[str, tuple[int, ...]] = {}
            for key, value in rows:
                found[str(key)] = (*found.get(str(key), ()), int(value))
            return {key: tuple(sorted(values)) for key, values in found.items()}
        case TableKind.LIST:
            return {
                str(key): tuple(int(part) for part in text.split(",") if part) for key, text in rows
            }


class Client(Part):
    """One client; ``step`` does its next thing."""

    pause_s = (0.5, 2.5)
    """Chosen so that two cores with three Spark servers are busy but not swamped: an UPDATE takes
    each of them about a second."""

    def __init__(
        self, name: str, number: int, servers: Sequence[str], seed: int, history: History
    ) -> None:
        super().__init__(name, history)
        self._servers = list(servers)
        self._random = random.Random(f"{seed} {name}")
        self._values = itertools.count(number * _MILLION + 1)
        self._connection: haclient.Connection

    def work(self) -> None:
        """Take one step after another."""
        # What the ring tells of itself would lead past the links that are cut.
        with haclient.connect(self._servers, user=self.name, discover=False) as self._connection:
            while not self._stopped.wait(self._random.uniform(*self.pause_s)):
                self.step()

    @abstractmethod
    def step(self) -> None:
        """Do the next thing."""

    def write(
        self,
        verb: Verb,
        table: str,
        sql: str,
        key: str = "",
        values: Sequence[int] = (),
        run: Callable[[str, float], dict[str, Any]] | None = None,
    ) -> Outcome:
        """Run one write, with its two lines in the history."""
        request_id, timeout_s = new_request_id(), self._random.choice(_TIMEOUTS_S)
        self._history.write(
            "invoke",
            id=request_id,
            process=self.name,
            verb=verb,
            table=table,
            key=key,
            values=pack(values),
        )
        outcome, ha, error = Outcome.ACK, dict[str, Any](), ""
        try:
            ha = run(request_id, timeout_s) if run else self._execute(sql, request_id, timeout_s)
        except haclient.Error as caught:
            outcome = _OUTCOMES[caught.outcome]
            ha = {"cluster": caught.cluster, "log_offset": caught.failure.log_offset}
            error = f"{caught.error_class} {caught.message}"[:400]
        self._history.write(
            "complete",
            id=request_id,
            outcome=outcome,
            cluster=str(ha.get("cluster") or ""),
            offset=ha.get("log_offset"),
            error=error,
        )
        return outcome

    def _execute(self, sql: str, request_id: str, timeout_s: float) -> dict[str, Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, request_id=request_id, timeout_s=timeout_s)
            return dict(cursor.ha)


class SetWriter(Client):
    """New ids: one row, several, or a stream of rows; sometimes a statement that is wrong."""

    def step(self) -> None:
        table = self._random.choice(SETS)
        choice = self._random.random()
        if choice < 0.05:
            self._wrong(table)
        elif choice < 0.20:
            ids = self._ids(self._random.randint(2, 6))
            rows = ", ".join(f"({each}, '{self.name}')" for each in ids)
            self.write(Verb.INSERT, table, f"INSERT INTO {table} VALUES {rows}", values=ids)
        elif choice < 0.30:
            ids = self._ids(self._random.randint(1, 40))
            data = pa.table({"id": ids, "writer": [self.name] * len(ids)})

            def append(request_id: str, timeout_s: float) -> dict[str, Any]:
                return self._connection.append(
                    table, data, request_id=request_id, timeout_s=timeout_s
                )

            self.write(Verb.INSERT, table, "", values=ids, run=append)
        else:
            ids = self._ids(1)
            sql = f"INSERT INTO {table} VALUES ({ids[0]}, '{self.name}')"
            self.write(Verb.INSERT, table, sql, values=ids)

    def _ids(self, count: int) -> list[int]:
        return list(itertools.islice(self._values, count))

    def _wrong(self, table: str) -> None:
        ids = self._ids(1)
        column = self._random.choice(("no_such", "id"))
        sql = f"INSERT INTO {table} ({column}) VALUES ('x{ids[0]}')"
        self.write(Verb.WRONG, table, sql, values=ids)


class RegisterWriter(Client):
    """Values of keys that all share, and of a key of its own that it deletes and inserts."""

    pause_s = (4.0, 10.0)

    def step(self) -> None:
        table = self._random.choice(REGISTERS)
        value = next(self._values)
        key = self._random.choice(SHARED_KEYS)
        choice = self._random.random()
        if choice < 0.4:
            merge = (
                f"MERGE INTO {table} t USING (SELECT {key}L AS k, {value}L AS v) s ON t.k = s.k "
                "WHEN MATCHED THEN UPDATE SET v = s.v "
                "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)"
            )
            self.write(Verb.PUT, table, merge, key, [value])
        elif choice < 0.7:
            sql = f"UPDATE {table} SET v = {value} WHERE k = {key}"
            self.write(Verb.UPDATE, table, sql, key, [value])
        elif choice < 0.8:
            self.write(Verb.DELETE, table, f"DELETE FROM {table} WHERE k = {key}", key)
        else:
            mine = str(value // _MILLION * 100)
            self.write(Verb.DELETE, table, f"DELETE FROM {table} WHERE k = {mine}", mine)
            sql = f"INSERT INTO {table} VALUES ({mine}, {value})"
            self.write(Verb.INSERT, table, sql, mine, [value])


class ListWriter(Client):
    """One more element at the end of a list."""

    pause_s = (4.0, 10.0)

    def step(self) -> None:
        table, key = self._random.choice(LISTS), self._random.choice(LIST_KEYS)
        value = next(self._values)
        sql = f"UPDATE {table} SET l = concat(l, ',{value}') WHERE k = {key}"
        self.write(Verb.APPEND, table, sql, key, [value])


class DdlWriter(Client):
    """Tables that come, get rows and columns, and mostly go again."""

    pause_s = (8.0, 16.0)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._stages: list[tuple[Verb, str, str, tuple[int, ...]]] = []
        self._table = ""

    def step(self) -> None:
        if not self._stages:
            self._begin()
        verb, sql, key, values = self._stages.pop(0)
        if self.write(verb, self._table, sql, key, values) is not Outcome.ACK:
            # What follows has a known meaning only if this is there.
            self._stages = []

    def _begin(self) -> None:
        number = next(self._values)
        table = self._table = f"d_{number}"
        rows = tuple(itertools.islice(self._values, 2))
        self._stages = [
            (Verb.CREATE, f"CREATE TABLE {table} (id BIGINT) USING delta", "", ()),
            (Verb.INSERT, f"INSERT INTO {table} (id) VALUES ({rows[0]})", "", rows[:1]),
            (
                Verb.ADD_COLUMN,
                f"ALTER TABLE {table} ADD COLUMNS (c{number} INT)",
                COLUMNS,
                (number,),
            ),
            (Verb.INSERT, f"INSERT INTO {table} (id) VALUES ({rows[1]})", "", rows[1:]),
            (Verb.DROP, f"DROP TABLE {table}", "", ()),
        ]
        if self._random.random() < 0.4:
            self._stages.pop()


class Reader(Client):
    """Reads whole tables and notes what it saw, and where."""

    pause_s = (1.5, 4.0)

    def step(self) -> None:
        table = self._random.choice(list(TABLES))
        timeout_s = self._random.choice(_TIMEOUTS_S)
        invoked = self._history.now()
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(select(table), timeout_s=timeout_s)
                rows = cursor.fetchall()
            except haclient.Error as error:
                self._history.write(
                    "read-failed",
                    process=self.name,
                    invoked=round(invoked, 4),
                    table=table,
                    failure=error.kind,
                    error=str(error)[:400],
                )
                return
            self._history.write(
                "read",
                process=self.name,
                invoked=round(invoked, 4),
                table=table,
                cluster=cursor.ha["cluster"],
                content=content_json(content_of(table, rows)),
                position=None,
            )


def make_clients(
    url: Callable[[str], str], names: Sequence[str], seed: int, history: History
) -> list[Client]:
    """Return all clients of a run; every second one prefers another cluster."""
    kinds: list[tuple[str, type[Client]]] = [
        ("set-1", SetWriter),
        ("set-2", SetWriter),
        ("register-1", RegisterWriter),
        ("register-2", RegisterWriter),
        ("list-1", ListWriter),
        ("list-2", ListWriter),
        ("ddl-1", DdlWriter),
        ("read-1", Reader),
        ("read-2", Reader),
    ]
    clients = []
    for number, (name, kind) in enumerate(kinds, 1):
        first = number % len(names)
        servers = [url(each) for each in (*names[first:], *names[:first])]
        clients.append(kind(name, number, servers, seed, history))
    return clients
