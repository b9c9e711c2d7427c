"""Clients that write and read through haclient, and note their requests and the answers.

A client is a thread with its own connection and its own order of the servers. Its actions follow
from the run's seed and its name. Values are never used twice: client number n counts from n
million.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

import haclient
from haclient.request_ids import new_request_id
from tests.fault.torture.history import (
    COLUMNS,
    Content,
    History,
    Level,
    Outcome,
    Verb,
    content_json,
    pack,
)
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
LEVELS = (Level.LINEARIZABLE, Level.SESSION, Level.BOUNDED)
NUMBER_MAX = 49
"""The greatest number of a client of haclient; programs have higher ones."""
READERS = 4
"""The number of clients that read at these levels in turn."""
BOUNDS = (0, 2, 10)
LIST_KEYS = ("0", "1", "2")
SHARED_KEYS = ("0", "1", "2", "3")
_MILLION = 1_000_000
_TIMEOUTS_S = (8.0, 20.0, 60.0, 60.0)
"""Short ones, so that there are unknown outcomes as well."""
_CACHED = 0.5
"""The share of reads that accept a cached answer."""
_OUTCOMES = {
    haclient.Outcome.NOT_SENT: Outcome.NOT_SENT,
    haclient.Outcome.REJECTED: Outcome.REJECTED,
    haclient.Outcome.UNKNOWN: Outcome.UNKNOWN,
}


def make_tables(servers: Sequence[str]) -> None:
    """Create the tables of the clients before the first fault."""
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
    """Return the query for the whole content of a table."""
    match TABLES.get(table, TableKind.SET):
        case TableKind.SET:
            return f"SELECT id FROM {table}"
        case TableKind.REGISTER:
            return f"SELECT k, v FROM {table}"
        case TableKind.LIST:
            return f"SELECT k, l FROM {table}"


def content_of(table: str, rows: Sequence[Sequence[Any]]) -> Content:
    """Return the content in the rows of `select`."""
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
    """One client; ``step`` is its next action."""

    pause_s = (0.5, 2.5)
    """Chosen so that two cores with three Spark servers are busy but not overloaded.

    An UPDATE takes each of them about a second.
    """

    def __init__(
        self, name: str, number: int, servers: Mapping[str, str], seed: int, history: History
    ) -> None:
        """``servers``: the clusters' names by URL, in the client's order."""
        super().__init__(name, history)
        self._servers = servers
        self._random = random.Random(f"{seed} {name}")
        self._values = itertools.count(number * _MILLION + 1)
        self._connection: haclient.Connection

    def work(self) -> None:
        """Take one step after another."""
        # What the ring tells of itself would lead past the links that are cut.
        with haclient.connect([*self._servers], user=self.name, discover=False) as self._connection:
            while not self._stopped.wait(self._random.uniform(*self.pause_s)):
                self.step()

    @abstractmethod
    def step(self) -> None:
        """Do the next action."""

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
        sent_to, answered_by = self._current, ""
        try:
            ha = run(request_id, timeout_s) if run else self._execute(sql, request_id, timeout_s)
            answered_by = self._current
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
            sent_to=sent_to,
            answered_by=answered_by,
        )
        return outcome

    @property
    def _current(self) -> str:
        """The cluster that receives the next request first, or that answered last."""
        return self._servers.get(self._connection.server, "")

    def read(self, table: str, level: Level = Level.ANY, lag_max: int = 0) -> None:
        """Read a whole table, with one line in the history."""
        # A kept answer has to show what any other would.
        cache = self._random.random() < _CACHED
        options: dict[str, Any] = {"consistency": level.value, "cache": cache}
        if level is Level.BOUNDED:
            options["acceptable_offset_lag"] = lag_max
        known = {"process": self.name, "table": table, "level": level, "lag_max": lag_max}
        known |= {"sent_to": self._current, "token": self._connection.after_offset}
        timeout_s, invoked = self._random.choice(_TIMEOUTS_S), round(self._history.now(), 4)
        with self._connection.cursor() as cursor:
            try:
                cursor.execute(select(table), timeout_s=timeout_s, **options)
                rows = cursor.fetchall()
            except haclient.Error as error:
                failed_as = {"failure": error.kind, "error": f"{error.error_class} {error}"[:400]}
                self._history.write("read-failed", invoked=invoked, **known, **failed_as)
                return
            self._history.write(
                "read",
                invoked=invoked,
                **known,
                cluster=cursor.ha["cluster"],
                answered_by=self._servers.get(cursor.server, ""),
                cache=cursor.ha.get("cache"),
                after_offset=cursor.ha.get("after_offset"),
                content=content_json(content_of(table, rows)),
                position=None,
            )

    def _execute(self, sql: str, request_id: str, timeout_s: float) -> dict[str, Any]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, request_id=request_id, timeout_s=timeout_s)
            return dict(cursor.ha)


class SetWriter(Client):
    """Inserts new ids: one row, several, or a stream of rows; sometimes sends a wrong statement."""

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


class RevokingWriter(SetWriter):
    """Inserts new ids by statements that take seconds, and revokes most of them meanwhile."""

    pause_s = (6.0, 14.0)
    _COUNTED = 40_000_000
    """Rows that are read for nothing: seconds of a core, on each cluster."""

    def step(self) -> None:
        table, ids = self._random.choice(SETS), self._ids(1)
        slow = f"SELECT count(*) FROM range({self._COUNTED}) WHERE hash(id) = 7"
        sql = f"INSERT INTO {table} SELECT {ids[0]}, '{self.name}' WHERE ({slow}) >= 0"
        became: list[str | None] = []

        def run(request_id: str, timeout_s: float) -> dict[str, Any]:
            with self._connection.cursor() as cursor:

                def want_back() -> None:
                    with contextlib.suppress(haclient.Error):
                        became.append(cursor.cancel())

                timer = threading.Timer(self._random.uniform(0.1, 6.0), want_back)
                timer.start()
                try:
                    cursor.execute(sql, request_id=request_id, timeout_s=60.0)
                finally:
                    timer.cancel()
                    timer.join()
                return dict(cursor.ha)

        outcome = self.write(Verb.INSERT, table, sql, values=ids, run=run)
        if "revoked" in became and outcome is Outcome.ACK:
            raise RuntimeError(f"{ids[0]}: told revoked, and acknowledged")


class RegisterWriter(Client):
    """Writes values of shared keys, and of a key of its own that it deletes and inserts."""

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
    """Appends one more element to a list."""

    pause_s = (4.0, 10.0)

    def step(self) -> None:
        table, key = self._random.choice(LISTS), self._random.choice(LIST_KEYS)
        value = next(self._values)
        sql = f"UPDATE {table} SET l = concat(l, ',{value}') WHERE k = {key}"
        self.write(Verb.APPEND, table, sql, key, [value])


class DdlWriter(Client):
    """Creates tables, adds rows and columns, and mostly drops the tables again."""

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
    """Reads whole tables and notes the content and the cluster."""

    pause_s = (1.5, 4.0)

    def step(self) -> None:
        self.read(self._random.choice(list(TABLES)))


class FreshReader(Client):
    """Reads registers and lists at one level."""

    pause_s = (0.8, 2.4)
    level = Level.LINEARIZABLE

    def step(self) -> None:
        self.read(self._random.choice(REGISTERS + LISTS), self.level)


class BoundedReader(FreshReader):
    """Accepts that a few records are missing."""

    level = Level.BOUNDED

    def step(self) -> None:
        lag_max = self._random.choice(BOUNDS)
        self.read(self._random.choice(REGISTERS + LISTS), self.level, lag_max)


class SessionClient(RegisterWriter):
    """Writes now and then, and reads at least what it has written and seen."""

    pause_s = (0.8, 2.4)

    def step(self) -> None:
        choice = self._random.random()
        if choice < 0.15:
            super().step()
        else:
            level = Level.ANY if choice < 0.3 else Level.SESSION
            self.read(self._random.choice(REGISTERS + LISTS), level)


_WRITERS: Mapping[str, type[Client]] = {
    "set-1": SetWriter,
    "set-2": SetWriter,
    "register-1": RegisterWriter,
    "register-2": RegisterWriter,
    "list-1": ListWriter,
    "list-2": ListWriter,
    "ddl-1": DdlWriter,
    "revoking-1": RevokingWriter,
}
_OF_LEVELS: Mapping[Level, type[Client]] = {
    Level.ANY: Reader,
    Level.BOUNDED: BoundedReader,
    Level.SESSION: SessionClient,
    Level.LINEARIZABLE: FreshReader,
}


def make_clients(
    url: Callable[[str], str],
    names: Sequence[str],
    seed: int,
    history: History,
    levels: Sequence[Level] = LEVELS,
    load: float = 1.0,
    only: Collection[str] = (),
) -> list[Client]:
    """Return all clients of a run; each prefers another cluster than the one before.

    ``load``: the writers' pauses are longer by 1 / load. ``only``: the names of the clients to
    return.
    """
    kinds: list[tuple[str, type[Client]]] = [
        *_WRITERS.items(),
        ("read-1", Reader),
        ("read-2", Reader),
    ]
    for number, level in enumerate(itertools.islice(itertools.cycle(levels), READERS), 1):
        kinds.append((f"{level}-{number}", _OF_LEVELS[level]))
    clients = []
    for number, (name, kind) in enumerate(kinds, 1):
        first = number % len(names)
        servers = {url(each): each for each in (*names[first:], *names[:first])}
        client = kind(name, number, servers, seed, history)
        if name in _WRITERS:
            shortest_s, longest_s = client.pause_s
            client.pause_s = (shortest_s / load, longest_s / load)
        clients.append(client)
    return [client for client in clients if not only or client.name in only]
