"""The ring of a run: real processes, with a proxy in every link between them.

Each HAProc is started with its own configuration file, in which its own doors are real and
everything else (its Spark, its peers' operator doors) is reached through a proxy. Clients and
PySpark programs come through proxies as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from haproc.node.node import VARIABLE
from haproc.ring.broker import BrokerStartError
from haproc.ring.local import LocalRing, LogChoice
from haproc.ring.process import LocalServer, free_port, free_ports, launch, log_of, process_of
from haproc.ring.spark import SparkStartError
from tests.fault.torture.plan import Target, Victim
from tests.fault.torture.proxy import Proxies
from tests.redis_servers import RedisServer

_GONE_S = 10.0
_LOG_LINES_SHOWN = 6


class Stage:
    """A local ring whose links are proxies."""

    def __init__(self, ring: LocalRing, redis: RedisServer | None = None) -> None:
        """If a running Redis is given, the HAProcs keep their state there."""
        self.ring = ring
        self.redis = redis
        self.proxies = Proxies()
        self.starting: set[Victim] = set()
        """The processes that are being started, and may still fail to start."""
        self._coming: set[Victim] = set()
        self._threads: list[threading.Thread] = []
        self._views: dict[str, Path] = {}

    @property
    def names(self) -> list[str]:
        """The clusters in ring order."""
        return self.ring.names

    @property
    def brokers(self) -> list[str]:
        """The log's brokers, if it has its own."""
        return list(self.ring.brokers)

    @property
    def victims(self) -> list[Victim]:
        """Every process that may be a target."""
        haprocs = [(Target.HAPROC, name) for name in self.names]
        sparks = [(Target.SPARK, name) for name in self.names]
        brokers = [(Target.BROKER, name) for name in self.brokers]
        return [*haprocs, *sparks, *brokers, *([(Target.REDIS, "redis")] if self.redis else [])]

    # -- links -------------------------------------------------------------------------------

    def connect_parts(self) -> None:
        """Open a proxy for each link and write each HAProc's view of the ring."""
        config = self.ring.config
        for cluster in config.clusters:
            self._link(f"clients-{cluster.name}", cluster.listen.port)
            assert cluster.connect is not None
            self._link(f"programs-{cluster.name}", cluster.connect.port)
            self._link(f"{cluster.name}-spark", cluster.spark.port)
            if self.redis is not None:
                self._link(f"{cluster.name}-redis", self.redis.port)
            for peer in config.clusters:
                if peer is not cluster:
                    self._link(f"{cluster.name}-{peer.name}", peer.peer.port)
        for broker in self.ring.brokers.values():
            # Clients are told the proxy's port; the brokers reach each other directly.
            if broker.ports.advertised is not None:
                self.proxies.add(f"log-{broker.name}", broker.ports.advertised, broker.ports.client)
        described = self._described()
        for name in self.names:
            file = self.ring.folder / f"view-{name}.yaml"
            file.write_text(yaml.safe_dump(self._view(described, name), sort_keys=False))
            self._views[name] = file

    def _link(self, name: str, target: int) -> None:
        self.proxies.add(name, free_port(), target)

    def _view(self, described: Mapping[str, Any], me: str) -> dict[str, Any]:
        clusters = []
        for cluster in described["clusters"]:
            name = cluster["name"]
            if name == me:
                url = f"sc://127.0.0.1:{self.proxies.port(f'{me}-spark')}"
                clusters.append(cluster | {"spark": cluster["spark"] | {"url": url}})
            else:
                peer = f"127.0.0.1:{self.proxies.port(f'{me}-{name}')}"
                clusters.append(cluster | {"peer": peer})
        if self.redis is None:
            return {**described, "clusters": clusters}
        url = f"redis://127.0.0.1:{self.proxies.port(f'{me}-redis')}"
        return {**described, "clusters": clusters, "state": "redis", "redis": {"url": url}}

    def url(self, name: str) -> str:
        """Return the URL of a client door, as clients reach it."""
        return f"http://127.0.0.1:{self.proxies.port(f'clients-{name}')}"

    def address(self, name: str) -> str:
        """Return the host and port of a Spark Connect door, as PySpark programs reach it."""
        return f"127.0.0.1:{self.proxies.port(f'programs-{name}')}"

    # -- members -----------------------------------------------------------------------------

    def changing(self, name: str, *, leaves: bool) -> None:
        """Note that another program starts or stops a cluster's processes."""
        self._coming = set() if leaves else {(Target.HAPROC, name), (Target.SPARK, name)}
        self.starting |= {(Target.HAPROC, name), (Target.SPARK, name)}

    def refresh(self) -> None:
        """Load the current members, and note the running processes of a joining one."""
        if {each["name"] for each in self._described()["clusters"]} != set(self.names):
            self.ring = LocalRing.open(self.ring.folder)
        # Its HAProc is started last: as long as it does not run, nobody else starts the Spark.
        if all(victim in self.victims and self.runs(victim) for victim in self._coming):
            self.starting -= self._coming
            self._coming = set()

    def changed(self, name: str) -> None:
        """Note that no other program starts or stops the cluster's processes any more."""
        self._coming = set()
        self.starting -= {(Target.HAPROC, name), (Target.SPARK, name)}

    def _described(self) -> Any:
        return yaml.safe_load(self.ring.file.read_text())

    # -- processes ---------------------------------------------------------------------------

    def runs(self, victim: Victim) -> bool:
        """True if the process runs, or is stopped but not dead."""
        target, name = victim
        if target is Target.HAPROC:
            return process_of(self.ring.config, name).identity() is not None
        return self._server(victim).pid is not None

    def signal(self, victim: Victim, number: signal.Signals) -> bool:
        """Send a signal; False if the process does not run."""
        target, name = victim
        if target is Target.HAPROC:
            return process_of(self.ring.config, name).signal(number)
        return self._server(victim).signal(number)

    def _server(self, victim: Victim) -> LocalServer:
        target, name = victim
        match target:
            case Target.SPARK:
                return self.ring.sparks[name]
            case Target.BROKER:
                return self.ring.brokers[name]
        assert target is Target.REDIS and self.redis is not None
        return self.redis

    def kill(self, victim: Victim) -> bool:
        """Kill with -9, and wait until the process is gone; False if it did not run."""
        if not self.signal(victim, signal.SIGKILL):
            return False
        end = time.monotonic() + _GONE_S
        while self.runs(victim):
            if time.monotonic() >= end:
                raise TimeoutError(f"{victim} is still there after kill -9")
            time.sleep(0.01)
        return True

    def start(self, victim: Victim, fault: str, report: Callable[[str], None]) -> None:
        """Start a process without waiting for it; ``report`` receives the reason of a failure."""
        target, name = victim
        if target is Target.HAPROC:
            view = self._views.get(name, self.ring.file)  # a guest's links are no proxies
            launch(self.ring.config, view, name, {VARIABLE: fault} if fault else None)
            return
        self.starting.add(victim)
        thread = threading.Thread(target=self._start_slowly, args=(victim, report), daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _start_slowly(self, victim: Victim, report: Callable[[str], None]) -> None:
        try:
            target, name = victim
            if target is Target.REDIS:
                assert self.redis is not None
                self.redis.start()
            elif target is Target.BROKER:
                asyncio.run(self.ring.brokers[name].start())
            else:
                asyncio.run(self.ring.sparks[name].start(warm=False))
        except (SparkStartError, BrokerStartError, OSError) as error:
            report(str(error))
        finally:
            self.starting.discard(victim)

    def log_tail(self, victim: Victim) -> str:
        """Return the last lines of a process's log."""
        target, name = victim
        if target is not Target.HAPROC:
            return self._server(victim).log_tail(_LOG_LINES_SHOWN)
        with contextlib.suppress(OSError):
            lines = log_of(self.ring.config, name).read_text(errors="replace").splitlines()
            return "\n".join(lines[-_LOG_LINES_SHOWN:])
        return ""

    # -- begin and end -----------------------------------------------------------------------

    def up(self) -> None:
        """Start everything and wait until all serve; running HAProcs are restarted."""

        async def up() -> None:
            async def one(name: str) -> None:
                await self.ring.start_spark(name)
                launch(self.ring.config, self._views[name], name)
                await self.ring.start_haproc(name)

            await asyncio.gather(*(self.ring.stop_haproc(name) for name in self.names))
            await self.ring.start_brokers()
            await asyncio.gather(*(one(name) for name in self.names))

        self.connect_parts()
        asyncio.run(up())

    def down(self, *, sparks: bool = True) -> None:
        """End everything at once: HAProcs by -9, Spark servers (if wanted) regularly."""
        for thread in self._threads:
            thread.join(_GONE_S)
        for victim in self.victims:
            self.signal(victim, signal.SIGCONT)
        for name in self.names:
            process_of(self.ring.config, name).signal(signal.SIGKILL)
        self.proxies.close()
        if sparks:
            asyncio.run(self.ring.down())


def open_ring(folder: Path, log: str, brokers: int, settings: Mapping[str, Any]) -> LocalRing:
    """Make a ring; ``brokers`` matters only for a log in Kafka."""
    choice = LogChoice("sqlite")
    if log == "kafka":
        choice = LogChoice("kafka", brokers=brokers, advertised_ports=free_ports(brokers))
    return LocalRing.open_or_create(folder, memory="1g", cores=2, settings=settings, log=choice)


def python_path() -> None:
    """Let the HAProcs run the code that this process runs, from any working folder."""
    here = str(Path(__file__).parents[3])
    given = os.environ.get("PYTHONPATH", "")
    if here not in given.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, given)))
