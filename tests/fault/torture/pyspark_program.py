"""A PySpark program that writes, reads and uses its session until the run ends.

Its session holds settings, a temporary view, a Python function and variables with values of one
moment, which must all survive every kill; the program checks each of them now and then, and most of
its writes use one. It caches tables that it and all others read. It must see no error: `_failed`
has the only exception.

It notes the outcomes of its writes as the other clients do. The id of a write is that of the
operation that PySpark creates for it, which is read when it is sent.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.types import LongType

import haclient
from tests.fault.torture import pyspark_writes
from tests.fault.torture.history import History, Level, Outcome, Verb, content_json, pack
from tests.fault.torture.programs import ProgramArguments, Way
from tests.fault.torture.workloads import LISTS, REGISTERS, TABLES, content_of

_MILLION = 1_000_000
_PAUSE_S = (1.0, 4.0)
_OUTAGE_S = 400.0
"""haclient's own time limit: no outage of a run is as long."""
_GIVES_UP_S = 120.0
"""No client gives up sooner: PySpark's fifteen tries take ten minutes."""
_SETTINGS = {"spark.sql.shuffle.partitions": "3", "spark.sql.session.timeZone": "Asia/Tokyo"}
_COLUMNS = {"set": "id", "reg": "k, v", "app": "k, l"}


class Noting:
    """PySpark's stub; reports each plan before it is sent."""

    def __init__(self, stub: Any, sends: Callable[[str], None]) -> None:
        self._stub = stub
        self._sends = sends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    def ExecutePlan(self, request: Any, **more: Any) -> Any:
        """Send a plan, possibly again."""
        self._sends(request.operation_id)
        return self._stub.ExecutePlan(request, **more)


def opened(way: Way, doors: Sequence[str]) -> Any:
    """Return a new session."""
    if way is Way.CHANNEL:
        return haclient.spark(f"sc://{','.join(doors)}", outage_s=_OUTAGE_S)

    class Doors(DefaultChannelBuilder):
        def toChannel(self) -> Any:
            return self._insecure_channel("ipv4:" + ",".join(doors))

    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    builder: Any = SparkSession.builder
    return builder.channelBuilder(Doors(f"sc://{doors[0]}")).create()


class PysparkProgram:
    """See the module."""

    def __init__(
        self, arguments: ProgramArguments, history: History, stopped: threading.Event
    ) -> None:
        self._arguments = arguments
        self._history = history
        self._stopped = stopped
        self._random = random.Random(f"{arguments.seed} {arguments.name}")
        self._values = itertools.count(arguments.number * _MILLION + 1)
        self._write: dict[str, Any] | None = None
        self._id = ""
        self._kept: tuple[Any, ...] = ()
        self.session = opened(arguments.way, arguments.doors)
        client = self.session.client
        client._stub = Noting(client._stub, self._sends)

    def work(self) -> None:
        """Take one step after another, and the last steps after the last fault."""
        while not self._tried("its session's things", self._furnish):
            self._stopped.wait(1.0)
        while not self._stopped.wait(self._random.uniform(*_PAUSE_S)):
            choice = self._random.random()
            if choice < 0.4:
                self._insert()
            elif choice < 0.55:
                self._change()
            elif choice < 0.75:
                self._tried("a read", self._read)
            elif choice < 0.82:
                self._tried("caching", self._cache)
            else:
                self._tried("a look at its session", self._look)
        self._add()
        self._tried("a look at its session", self._look)

    # -- the session -------------------------------------------------------------------------

    def _furnish(self) -> None:
        number = self._arguments.number
        for name, value in _SETTINGS.items():
            self.session.conf.set(name, value)
        self.session.range(10).createOrReplaceTempView("steps")
        self.session.udf.register("marked", lambda value: value + number, LongType())
        for table in TABLES:
            columns = _COLUMNS[table[:3]]
            text = f"SELECT {columns}, _metadata.file_path AS path FROM {table}"
            self.session.sql(text).createOrReplaceTempView(f"of_{table}")
        self.session.sql("DECLARE OR REPLACE VARIABLE rows_then BIGINT")
        self.session.sql("SET VAR rows_then = (SELECT count(*) FROM set_0)")
        self.session.sql("DECLARE OR REPLACE VARIABLE chance STRING DEFAULT uuid()")
        self._kept = self._variables()

    def _variables(self) -> tuple[Any, ...]:
        return tuple(self.session.sql("SELECT rows_then, chance").collect()[0])

    def _cache(self) -> None:
        """Let Spark cache a table's rows, which all sessions of that Spark then share."""
        table = self._random.choice(list(TABLES))
        if self._random.random() < 0.5:
            self.session.sql(f"CACHE TABLE {table}")
        else:
            self.session.table(table).select(*_COLUMNS[table[:3]].split(", ")).persist().count()

    def _look(self) -> None:
        found = {name: self.session.conf.get(name) for name in _SETTINGS}
        text = "SELECT sum(marked(id)), current_timezone() FROM steps"
        total, zone = self.session.sql(text).collect()[0]
        ok = found == _SETTINGS and zone == _SETTINGS["spark.sql.session.timeZone"]
        ok = ok and total == sum(range(10)) + 10 * self._arguments.number
        kept = self._variables()
        ok = ok and kept == self._kept
        state = {"settings": found, "total": total, "zone": zone, "kept": [self._kept, kept]}
        self._history.write("session", process=self._arguments.name, ok=ok, found=state)

    # -- reads -------------------------------------------------------------------------------

    def _read(self) -> None:
        table = self._random.choice(list(TABLES))
        invoked = round(self._history.now(), 4)
        way = self._random.random()
        if way < 0.3:
            rows = self.session.table(f"of_{table}").collect()
        elif way < 0.6:
            # Maybe what is cached; of another table comes on which cluster that was.
            where = "(SELECT max(_metadata.file_path) FROM app_0) AS path"
            rows = self.session.sql(f"SELECT {_COLUMNS[table[:3]]}, {where} FROM {table}").collect()
        else:
            columns = _COLUMNS[table[:3]].split(", ")
            rows = self.session.table(table).select(*columns, "_metadata.file_path").collect()
        if not rows:
            return  # nothing says which cluster that was
        clusters = {str(row[-1]).rpartition("/clusters/")[2].partition("/")[0] for row in rows}
        assert len(clusters) == 1, clusters
        self._history.write(
            "read",
            invoked=invoked,
            process=self._arguments.name,
            table=table,
            level=Level.SESSION,
            lag_max=0,
            sent_to="",
            token=0,
            cluster=clusters.pop(),
            answered_by="",
            after_offset=None,
            content=content_json(content_of(table, [tuple(row)[:-1] for row in rows])),
            position=None,
        )

    # -- writes ------------------------------------------------------------------------------

    def _insert(self) -> None:
        if self._random.random() < 0.05:
            value = next(self._values)
            table = pyspark_writes.table_for(self._random)
            text = f"INSERT INTO {table} (no_such) VALUES ({value})"
            self._written(Verb.WRONG, table, "", [value], lambda: self.session.sql(text))
        else:
            self._add()

    def _add(self) -> None:
        way = self._random.choice(pyspark_writes.WAYS)
        ids = list(itertools.islice(self._values, way.rows(self._random)))
        table = pyspark_writes.table_for(self._random)
        self._written(
            Verb.INSERT,
            table,
            "",
            ids,
            lambda: way.write(self.session, table, ids, self._arguments.name),
        )

    def _change(self) -> None:
        value = next(self._values)
        changes = pyspark_writes.changes(self.session, self._random, REGISTERS, LISTS, value)
        self._written(changes.verb, changes.table, changes.key, [value], changes.run)

    def _written(
        self, verb: Verb, table: str, key: str, values: Sequence[int], run: Callable[[], object]
    ) -> None:
        """Run one write, with its two lines in the history."""
        self._id = ""
        self._write = {"verb": verb, "table": table, "key": key, "values": pack(values)}
        what = f"{verb} {key} {pack(values)} into {table}"
        outcome, error = Outcome.UNKNOWN, ""
        try:
            if verb is Verb.WRONG:
                outcome, error = self._refused(run)
            elif self._tried(what, run):
                outcome = Outcome.ACK
        finally:
            self._write = None
            if self._id:
                answered = {"cluster": "", "offset": None, "error": error}
                self._history.write("complete", id=self._id, outcome=outcome, **answered)

    def _refused(self, run: Callable[[], object]) -> tuple[Outcome, str]:
        try:
            run()
        except AnalysisException as refusal:
            return Outcome.REJECTED, str(refusal)[:400]
        except (PySparkException, grpc.RpcError) as error:
            self._failed("a wrong statement", error, 0.0)
            return Outcome.UNKNOWN, str(error)[:400]
        return Outcome.ACK, ""

    def _sends(self, operation_id: str) -> None:
        """Note a write that is sent for the first time."""
        if self._write is None or operation_id == self._id:
            return
        if self._id:
            self._history.write(
                "program-error",
                process=self._arguments.name,
                what=str(self._write),
                error=f"it was sent as {self._id} and as {operation_id}",
                took_s=0.0,
                given_up=False,
            )
        self._id = operation_id
        self._history.write("invoke", id=operation_id, process=self._arguments.name, **self._write)

    # -- errors ------------------------------------------------------------------------------

    def _tried(self, what: str, run: Callable[[], object]) -> bool:
        """Run a callable; an error is noted. Return whether there was none."""
        began = self._history.now()
        try:
            run()
        except (PySparkException, grpc.RpcError) as error:
            self._failed(what, error, self._history.now() - began)
            return False
        return True

    def _failed(self, what: str, error: Exception, took_s: float) -> None:
        """Note an error of the program; only a very long time without an answer is allowed."""
        unavailable = (
            isinstance(error, SparkConnectGrpcException)
            and error.getGrpcStatusCode() is grpc.StatusCode.UNAVAILABLE
        )
        self._history.write(
            "program-error",
            process=self._arguments.name,
            what=what,
            error=f"{type(error).__name__} {error}"[:1000],
            took_s=round(took_s, 2),
            given_up=unavailable and took_s >= _GIVES_UP_S,
        )


def main() -> None:
    """Work until the input ends."""
    given = json.loads(sys.argv[1])
    arguments = ProgramArguments(
        **(given | {"way": Way(given["way"]), "doors": tuple(given["doors"])})
    )
    history = History(Path(arguments.file), began=arguments.began)
    stopped = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.buffer.read()
        stopped.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    program = PysparkProgram(arguments, history, stopped)
    program.work()
    program.session.stop()
    history.close()


if __name__ == "__main__":
    main()
