"""A real ring for tests: its processes, its clients, and the content of its clusters."""

from __future__ import annotations

import asyncio
import fcntl
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

import haclient
from haproc.cli import clients
from haproc.cli.queue import Asker
from haproc.node.node import VARIABLE
from haproc.ring.holdings import contents, differences
from haproc.ring.local import LocalRing, LogChoice
from haproc.ring.process import launch

SETTLED_S = 240.0
COMMITS_OPTIMIZED = 5
SETTINGS = {
    "timeouts": {
        # Probing three idle clusters each second took a fifth of two cores. Whoever meets an
        # error has the cluster probed at once.
        "probe_interval_s": 3.0,
        "takeover_s": 1.5,
        "peer_s": 1.5,
        "retry_max_s": 1.0,
        "drain_s": 40,
        "stuck_after_attempts": 4,
    },
    "jobs": {"enabled": True, "folders": ["programs"]},
    "optimize": {
        "tables": [{"table": "*.small_files*", "after_commits": COMMITS_OPTIMIZED}],
        "interval_s": 1.0,
    },
}

SPARK_SETTINGS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Expressions are interpreted: for a few rows, a quarter less CPU than compiling them."""

PATIENT = {"connect_timeout_s": 20.0, "silence_s": 5.0}
"""Client options for slow machines.

With these a client stays with the HAProc that a fault is to strike, while it leaves a dying one at
once.
"""


class Rig:
    """One ring on this machine; every call waits with a deadline."""

    def __init__(self, folder: Path, sparks: LocalRing, log: str) -> None:
        """``sparks``: a ring whose Spark servers this one uses, and leaves running."""
        clusters = yaml.safe_load(sparks.file.read_text())["clusters"]
        for cluster in clusters:
            token = cluster["spark"]["token"]
            token["file"] = str(sparks.folder / token["file"])
        # A name of its own: what the ring before it left in the clusters is not taken for its.
        named = {"ring": "on-sqlite"} if log == "sqlite" else {}
        (folder / "clusters").symlink_to(sparks.folder / "clusters")
        self.ring = LocalRing.open_or_create(
            folder,
            spark_settings=SPARK_SETTINGS,
            settings={**SETTINGS, **named, "clusters": clusters},
            log=LogChoice(log),
        )
        self.sparks = sparks
        self.log = log
        self._tables = 0

    def up(self) -> None:
        """Start what does not run, thaw what is frozen, and wait until all serve."""
        for name in self.ring.names:
            for what in ("haproc", "spark"):
                self.ring.signal(name, what, signal.SIGCONT)
        for name in self.ring.brokers:
            self.ring.signal(name, "broker", signal.SIGCONT)
        asyncio.run(self._start())
        for name in self.ring.names:
            if self.status(name).get("drained"):
                asyncio.run(self.undrain(name))

    async def _start(self) -> None:
        async def one(name: str) -> None:
            # Statements of a test warm it up, too, and only with what is needed.
            await self.ring.sparks[name].start(warm=False)
            await self.ring.start_haproc(name)

        await self.ring.start_brokers()
        await asyncio.gather(*(one(name) for name in self.ring.names))

    async def drain(self, name: str) -> None:
        """Drain a cluster."""
        async with Asker(self.ring.config) as asker:
            await clients.begin(asker, name)

    async def undrain(self, name: str) -> None:
        """Undrain a cluster, and wait until it serves."""
        async with Asker(self.ring.config) as asker:
            await clients.end(asker, name)
            await clients.wait(asker, name, clients.serves, SETTLED_S)

    def down(self) -> None:
        """Stop the HAProcs and the log."""

        async def stop() -> None:
            await asyncio.gather(*(self.ring.stop_haproc(name) for name in self.ring.names))
            if self.ring.kafka is not None:
                await self.ring.kafka.stop()

        asyncio.run(stop())

    # -- its processes ---------------------------------------------------------------------

    def restart(self, name: str, fault: str = "") -> None:
        """Start a cluster's HAProc again, with a fault if one is given.

        It has nothing to recover, so the fault strikes the test's own statements.
        """
        self.settled()
        asyncio.run(self.ring.stop_haproc(name))
        self.start(name, fault)

    def start(self, name: str, fault: str = "", ready: bool = True) -> None:
        """Start a cluster's HAProc if it does not run."""
        environment = {VARIABLE: fault} if fault else None
        asyncio.run(self.ring.start_haproc(name, ready=ready, environment=environment))

    def start_to_die(self, name: str, fault: str) -> None:
        """Start a cluster's HAProc, which dies by its fault while it recovers."""
        launch(self.ring.config, self.ring.file, name, {VARIABLE: fault})
        self.gone(name)

    def gone(self, name: str, timeout_s: float = 60) -> None:
        """Wait until a cluster's HAProc has ended."""
        self.wait(lambda: self.ring.pids(name)["haproc"] is None, timeout_s)

    @staticmethod
    def wait(condition: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, "waited in vain"
            time.sleep(0.02)

    @contextmanager
    def log_held(self) -> Iterator[None]:
        """Keep the log from answering, as if its disk or its broker were stuck."""
        if self.log == "kafka":
            for name in self.ring.brokers:
                self.ring.signal(name, "broker", signal.SIGSTOP)
            try:
                yield
            finally:
                for name in self.ring.brokers:
                    self.ring.signal(name, "broker", signal.SIGCONT)
        else:
            with (self.ring.folder / "log.db-lock").open("rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield

    # -- talking to it ---------------------------------------------------------------------

    def url(self, name: str) -> str:
        return self.ring.config.url(self.ring.config.cluster(name).listen)

    def door(self, name: str) -> str:
        """Return host and port of a cluster's Spark Connect door."""
        address = self.ring.config.cluster(name).connect
        assert address is not None
        return f"{address.host}:{address.port}"

    def connect(self, order: str = "", **options: Any) -> haclient.Connection:
        """Return a client of only these clusters (unless it may discover others), in this order."""
        return haclient.connect(
            [self.url(name) for name in order or self.ring.names], **{"discover": False, **options}
        )

    @contextmanager
    def cursor(self, order: str = "", **options: Any) -> Iterator[haclient.Cursor]:
        with self.connect(order, **options) as connection, connection.cursor() as cursor:
            yield cursor

    def run(self, sql: str, order: str = "", **options: Any) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        with self.cursor(order) as cursor:
            cursor.execute(sql, **options)
            return list(cursor.fetchall()) if cursor.description else []

    def post(self, name: str, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Send plain JSON over HTTP and return the status and the answer."""
        return self.send(name, "POST", path, body, **headers)

    def send(
        self, name: str, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        """Send any request to a client door; bytes are sent unchanged."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url(name) + path,
            data,
            {"Content-Type": "application/json", **headers},
            method=method,
        )
        return self._answer(request)

    def get(self, name: str, path: str) -> tuple[int, Any]:
        return self._answer(urllib.request.Request(self.url(name) + path))

    def status(self, name: str) -> dict[str, Any]:
        """Return a HAProc's own view, from its operator door."""
        url = self.ring.config.peer_url(name) + "/clusterStatus"
        try:
            _, body = self._answer(urllib.request.Request(url))
        except OSError:
            return {"state": "-"}
        return dict(body)

    def running(self, name: str) -> list[int]:
        """Return the offsets of the operations that a cluster runs now."""

        async def ask() -> Any:
            async with Asker(self.ring.config) as asker:
                return await asker.ask(name, "GET", "/ha/v1/queue?start=0&limit=50")

        listed = asyncio.run(ask())["operations"]
        return [each["offset"] for each in listed if each["position"] == "running"]

    def log_of(self, name: str) -> str:
        """Return the log text of a cluster's HAProcs, with every change of state.

        A state that may last only an instant is read here: polling could miss it.
        """
        return (self.ring.config.state_dir / f"haproc-{name}.log").read_text()

    def seen(self, by: str, name: str) -> dict[str, Any]:
        """Return a cluster's status as seen by another cluster's HAProc."""
        found = [c for c in self.status(by).get("clusters", []) if c["name"] == name]
        return dict(found[0]) if found else {"alive": None, "state": None}

    @staticmethod
    def _answer(request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def table(self, columns: str = "id INT, name STRING") -> str:
        """Create an empty table on all clusters and return its name."""
        self._tables += 1
        name = f"t{self._tables}_{time.time_ns() % 1_000_000_000}"
        self.run(f"CREATE TABLE {name} ({columns}) USING delta")
        return name

    # -- what it holds ---------------------------------------------------------------------

    def settled(self, timeout_s: float = SETTLED_S) -> None:
        """Wait until every HAProc is READY and has applied the whole log."""

        def all_done() -> bool:
            statuses = [self.status(name) for name in self.ring.names]
            ends = {status.get("log_end") for status in statuses}
            return all(s["state"] == "READY" and s["lag"] == 0 for s in statuses) and len(ends) == 1

        end = time.monotonic() + timeout_s
        while not all_done():
            shown = {n: self.status(n) for n in self.ring.names}
            assert time.monotonic() < end, f"the ring did not settle: {shown}"
            time.sleep(0.1)

    def log_end(self) -> int:
        """Return the log's end, which every HAProc knows and has reached."""
        self.settled()
        return int(self.status(self.ring.names[0])["log_end"])

    def check_equal(self, *tables: str) -> None:
        """Check that these tables (all, if none is named) are the same on all clusters."""
        self.settled()
        found = asyncio.run(contents(self.ring.config, tables or None))
        assert found["a"]
        assert differences(found) == []

    def everywhere(self, sql: str) -> list[tuple[Any, ...]]:
        """Return a query's rows, which every cluster must return equally."""
        self.settled()
        answers = {name: self.run(sql, order=name) for name in self.ring.names}
        first = answers[self.ring.names[0]]
        assert all(rows == first for rows in answers.values()), answers
        return first


class Writer(threading.Thread):
    """Inserts ids one after another through one client until it is stopped."""

    def __init__(self, rig: Rig, table: str, order: str = "abc", first: int = 0) -> None:
        super().__init__(daemon=True)
        self._rig = rig
        self._table = table
        self._order = order
        self._stopped = threading.Event()
        self.next = first
        self.acknowledged: list[int] = []
        self.failed: list[tuple[int, Exception]] = []
        self.gaps_s: list[float] = []

    def run(self) -> None:
        with self._rig.cursor(self._order, timeout_s=120) as cursor:
            while not self._stopped.is_set():
                began, number = time.monotonic(), self.next
                self.next += 1
                try:
                    cursor.execute(f"INSERT INTO {self._table} VALUES (?, 'w')", [number])
                except haclient.Error as error:
                    self.failed.append((number, error))
                else:
                    self.acknowledged.append(number)
                self.gaps_s.append(time.monotonic() - began)
                # Two cores that only write cannot catch up as well.
                self._stopped.wait(0.2)

    def wait_for(self, count: int, timeout_s: float = 120) -> None:
        """Wait until this many more writes were acknowledged."""
        target = len(self.acknowledged) + count
        Rig.wait(lambda: len(self.acknowledged) >= target or bool(self.failed), timeout_s)

    def stop(self) -> None:
        self._stopped.set()
        self.join(150)
        assert not self.is_alive()
        assert self.failed == []
