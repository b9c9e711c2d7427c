"""A local ring: Spark servers, HAProcs and their log on this machine, all in one folder.

The folder holds the ring's configuration file (written once; a ring that was stopped comes back
with the same ports and secrets), the secrets, the log (a file, or a Kafka of the ring's own, unless
it uses one that runs elsewhere), and a folder for each cluster. Everything runs detached: the ring
outlives the command that started it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from haproc.config.load import load
from haproc.config.model import Config
from haproc.config.tree import ConfigError
from haproc.ring.broker import LocalBroker, LocalKafka
from haproc.ring.making import KAFKA_FOLDER, LogChoice, make_ring
from haproc.ring.process import DrainedError, launch, process_of, wait_answering
from haproc.ring.settings import RingError, check_chosen
from haproc.ring.spark import LocalSpark

__all__ = ["LocalRing", "LogChoice"]

Progress = Callable[[str, str], None]
READY_TIMEOUT_S = 300.0
_ANY_LOG = LogChoice()


def _silent(who: str, what: str) -> None:
    """Print nothing: for callers that do not show the progress."""


class LocalRing:
    """A local ring, with all its files in one folder; starts and ends its processes."""

    def __init__(self, folder: Path, progress: Progress = _silent) -> None:
        self.folder = folder.resolve()
        self.file = self.folder / "ring.yaml"
        self._progress = progress
        try:
            self.config: Config = load(self.file, os.environ)
            settings = yaml.safe_load((self.folder / "spark.yaml").read_text())
        except (ConfigError, OSError, yaml.YAMLError) as error:
            raise RingError(f"there is no usable ring in {self.folder}: {error}") from error
        self.spark_settings = {k: str(v) for k, v in (settings.get("settings") or {}).items()}
        check_chosen(self.spark_settings)
        self.memory: str = settings["memory"]
        self.cores: int = settings["cores"]
        self.sparks = {
            cluster.name: LocalSpark(
                cluster.name,
                self.folder / "clusters" / cluster.name,
                cluster.spark.port,
                cluster.spark.token,
                memory=self.memory,
                cores=self.cores,
                settings=self.spark_settings,
                progress=lambda what, name=cluster.name: progress(  # type: ignore[misc]
                    name, f"Spark {what}"
                ),
            )
            for cluster in self.config.clusters
        }
        own = self.folder / KAFKA_FOLDER
        self.kafka = LocalKafka(own, progress) if (own / "kafka.yaml").exists() else None

    # -- making one ------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path, progress: Progress = _silent) -> LocalRing:
        """Return the ring in the folder; raises RingError if there is none."""
        if not (folder / "ring.yaml").exists():
            raise RingError(f"there is no ring in {folder.resolve()}: haproc ring up makes one")
        return cls(folder, progress)

    @classmethod
    def open_or_create(
        cls,
        folder: Path,
        *,
        clusters: int | None = None,
        base_port: int | None = None,
        memory: str | None = None,
        cores: int | None = None,
        spark_settings: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        log: LogChoice = _ANY_LOG,
        users: Sequence[str] = (),
        jobs: bool = False,
        progress: Progress = _silent,
    ) -> LocalRing:
        """Return the ring of the folder; make it if there is none.

        - ``clusters``: their number (3);
        - ``memory``, ``cores``: of each Spark server (1g, 2);
        - ``settings``: further keys of the configuration file (limits, timeouts …);
        - ``spark_settings``: further settings of each Spark server;
        - ``users``: names of users; each gets a token;
        - ``jobs``: True if the ring takes jobs.

        Raises RingError for a log or Spark settings that can't be chosen. An existing ring is not
        changed: RingError if it differs from what is asked for; its ports and ``settings`` are not
        compared.
        """
        log.check()
        check_chosen(spark_settings or {})
        if not (folder / "ring.yaml").exists():
            more = {**({"jobs": {"enabled": True}} if jobs else {}), **(settings or {})}
            number = 3 if clusters is None else clusters
            make_ring(folder.resolve(), number, base_port, more, log, users)
            chosen = dict(spark_settings or {})
            spark = {"memory": memory or "1g", "cores": cores or 2, "settings": chosen}
            (folder / "spark.yaml").write_text(yaml.safe_dump(spark))
        ring = cls(folder, progress)
        log.check_fits(ring.folder, ring.config)
        ring._check_fits(clusters, memory, cores, spark_settings or {}, users, jobs)
        return ring

    def _check_fits(
        self,
        clusters: int | None,
        memory: str | None,
        cores: int | None,
        spark_settings: Mapping[str, str],
        users: Sequence[str],
        jobs: bool,
    ) -> None:
        """Raise RingError if the existing ring differs from what is asked for."""
        strangers = sorted({*users} - {user.name for user in self.config.users})
        in_file = "change it in its spark.yaml, and restart its clusters (haproc ring roll)"
        for differs, has, remedy in (
            (
                jobs and not self.config.jobs.enabled,
                "takes no jobs",
                "set jobs.enabled in its ring.yaml, and restart its HAProcs one after another "
                "(haproc ring roll --what haproc)",
            ),
            (
                strangers,
                f"has no user {', '.join(strangers)}",
                "haproc token makes a user's entry for its ring.yaml; only a new ring is made with "
                "TLS on its doors",
            ),
            (
                clusters not in (None, len(self.names)),
                f"has {len(self.names)} clusters",
                "haproc cluster add and haproc cluster remove change that",
            ),
            (memory not in (None, self.memory), f"has Sparks of {self.memory}", in_file),
            (cores not in (None, self.cores), f"has Sparks of {self.cores} cores", in_file),
            (
                spark_settings and dict(spark_settings) != self.spark_settings,
                "has other settings of Spark",
                in_file,
            ),
        ):
            if differs:
                raise RingError(f"the ring in {self.folder} {has}: {remedy}")

    # -- running it ------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The clusters' names in ring order."""
        return [cluster.name for cluster in self.config.clusters]

    @property
    def urls(self) -> str:
        """The URLs of the client doors, separated by commas, as a client takes them."""
        return ",".join(self.config.url(cluster.listen) for cluster in self.config.clusters)

    @property
    def spark_url(self) -> str:
        """The Spark Connect doors, as `haclient.spark` takes them; empty if there are none."""
        doors = [cluster.connect for cluster in self.config.clusters if cluster.connect is not None]
        return f"sc://{','.join(f'{door.host}:{door.port}' for door in doors)}" if doors else ""

    async def up(self, *, warm: bool = False) -> None:
        """Start all processes of the ring that do not run, and wait until every HAProc serves.

        ``warm``: also run first statements on each Spark. Measured: three clusters take 57 s of
        CPU, and 103 s with ``warm``.
        """
        await self.start_brokers()
        # At the same time: a HAProc waits for its cluster, and starts while Spark does.
        await asyncio.gather(*(self.start(name, warm=warm) for name in self.names))

    @property
    def brokers(self) -> Mapping[str, LocalBroker]:
        """The nodes of the ring's own Kafka, by name (``broker1`` …); empty if it has none."""
        return self.kafka.brokers if self.kafka is not None else {}

    async def start_brokers(self) -> None:
        """Start the ring's own brokers that do not run."""
        if self.kafka is not None:
            await self.kafka.start()

    async def start(self, name: str, *, warm: bool = False) -> None:
        """Start a cluster's Spark and HAProc, and wait until it serves; or start a broker.

        ``name``: of the cluster or the broker. ``warm``: also run first statements; without that
        the first statement of each kind takes seconds.
        """
        if name in self.brokers:
            await self.brokers[name].start()
            return
        await self.start_spark(name, warm=warm)
        await self.start_haproc(name)

    async def start_spark(self, name: str, *, warm: bool = True) -> None:
        """Start a cluster's Spark; wait until it answers.

        ``warm``: wait until it has also run first statements.
        """
        self._check_cluster(name)
        await self.sparks[name].start(warm=warm)

    async def start_haproc(
        self, name: str, *, ready: bool = True, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a cluster's HAProc; wait until it answers, or with ``ready`` until it serves.

        The wait ends if an operator has drained the HAProc.
        """
        launch(self.config, self.file, name, environment)
        try:
            await wait_answering(self.config, name, READY_TIMEOUT_S, ready=ready)
        except DrainedError:
            self._progress(name, "HAProc is drained: haproc undrain")
            return
        self._progress(name, "HAProc serves" if ready else "HAProc answers")

    def kill(self, name: str, what: str) -> bool:
        """Send SIGKILL to a process of the ring; False if it did not run.

        ``name``: of a cluster or a broker. ``what``: ``haproc`` or ``spark`` of a cluster.
        """
        return self.signal(name, what, signal.SIGKILL)

    def signal(self, name: str, what: str, number: signal.Signals) -> bool:
        """Send a signal to a process of the ring; False if it did not run.

        ``name``: of a cluster or a broker. ``what``: ``haproc`` or ``spark`` of a cluster.
        """
        if name in self.brokers:
            return self.brokers[name].signal(number)
        self._check_cluster(name)
        if what == "spark":
            return self.sparks[name].signal(number)
        return process_of(self.config, name).signal(number)

    def pids(self, name: str) -> dict[str, int | None]:
        """Return the pids of a cluster's HAProc and Spark, or a broker's; None: not running."""
        if name in self.brokers:
            return {"broker": self.brokers[name].pid}
        identity = process_of(self.config, name).identity()
        return {"haproc": identity.pid if identity else None, "spark": self.sparks[name].pid}

    async def stop_spark(self, name: str) -> None:
        """Stop a cluster's Spark."""
        self._check_cluster(name)
        await self.sparks[name].stop()

    async def stop_haproc(self, name: str) -> None:
        """Stop a cluster's HAProc; it finishes its accepted requests first."""
        await process_of(self.config, name).stop(self.config.timeouts.drain_s + 10)

    async def down(self) -> None:
        """Stop all processes of the ring; the data stay."""
        await asyncio.gather(*(self.stop_haproc(name) for name in self.names))
        await asyncio.gather(*(spark.stop() for spark in self.sparks.values()))
        if self.kafka is not None:
            await self.kafka.stop()

    def _check_cluster(self, name: str) -> None:
        if name not in self.sparks:
            known = ", ".join([*self.names, *self.brokers])
            raise RingError(f"the ring has no {name!r}; it has {known}")
