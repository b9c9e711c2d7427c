"""A local ring: Spark servers, HAProcs and their log on this machine, all in one folder.

The folder holds the ring's configuration file (written once; a ring that was stopped comes back
with the same ports and secrets), the secrets, the log, and a folder for each cluster. Everything
runs detached: the ring outlives the command that started it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from haproc.config.errors import ConfigError
from haproc.config.load import load
from haproc.config.model import Config
from haproc.ring.daemon import launch, process_of, wait_answering
from haproc.ring.spark import LocalSpark, free_port

Progress = Callable[[str, str], None]
READY_TIMEOUT_S = 300.0


class RingError(Exception):
    """A local ring can't be made, found or started."""


def _silent(who: str, what: str) -> None:
    """Show nothing."""


class LocalRing:
    """The ring that lives in a folder."""

    def __init__(self, folder: Path, progress: Progress = _silent) -> None:
        self.folder = folder.resolve()
        self.file = self.folder / "ring.yaml"
        self._progress = progress
        try:
            self.config: Config = load(self.file, os.environ)
            settings = yaml.safe_load((self.folder / "spark.yaml").read_text())
        except (ConfigError, OSError) as error:
            raise RingError(f"there is no usable ring in {self.folder}: {error}") from error
        self.sparks = {
            cluster.name: LocalSpark(
                cluster.name,
                self.folder / "clusters" / cluster.name,
                cluster.spark.port,
                cluster.spark.token,
                memory=settings["memory"],
                cores=settings["cores"],
                progress=lambda what, name=cluster.name: progress(  # type: ignore[misc]
                    name, f"Spark {what}"
                ),
            )
            for cluster in self.config.clusters
        }

    # -- making one ------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path, progress: Progress = _silent) -> LocalRing:
        """Return the ring in the folder; RingError if there is none."""
        if not (folder / "ring.yaml").exists():
            raise RingError(f"there is no ring in {folder.resolve()}: haproc ring up makes one")
        return cls(folder, progress)

    @classmethod
    def open_or_create(
        cls,
        folder: Path,
        *,
        clusters: int = 3,
        base_port: int | None = None,
        memory: str = "1g",
        cores: int = 2,
        settings: Mapping[str, Any] | None = None,
        progress: Progress = _silent,
    ) -> LocalRing:
        """Return the ring in the folder, made first if there is none.

        ``settings`` are further keys of the configuration file (limits, timeouts …).
        """
        if not (folder / "ring.yaml").exists():
            if not 1 <= clusters <= 26:
                raise RingError("a local ring has 1 to 26 clusters")
            _create(folder.resolve(), clusters, base_port, dict(settings or {}))
            spark = yaml.safe_dump({"memory": memory, "cores": cores})
            (folder / "spark.yaml").write_text(spark)
        return cls(folder, progress)

    # -- running it ------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The clusters' names in ring order."""
        return [cluster.name for cluster in self.config.clusters]

    @property
    def urls(self) -> str:
        """The client doors, as a client takes them."""
        return ",".join(cluster.listen.url for cluster in self.config.clusters)

    async def up(self) -> None:
        """Start what does not run, and wait until every HAProc serves."""
        # Side by side: a HAProc waits for its cluster, and starts while Spark does.
        await asyncio.gather(*(self.start(name) for name in self.names))

    async def start(self, name: str) -> None:
        """Start a cluster's Spark and HAProc, and wait until it serves."""
        await self.start_spark(name)
        await self.start_haproc(name)

    async def start_spark(self, name: str) -> None:
        """Start a cluster's Spark and wait until it is warm."""
        if name not in self.sparks:
            raise RingError(f"the ring has no cluster {name!r}; it has {', '.join(self.names)}")
        await self.sparks[name].start()

    async def start_haproc(
        self, name: str, *, ready: bool = True, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start a cluster's HAProc and wait until it serves, or only answers."""
        launch(self.config, self.file, name, environment)
        await wait_answering(self.config, name, READY_TIMEOUT_S, ready=ready)
        self._progress(name, "HAProc serves" if ready else "HAProc answers")

    def kill(self, name: str, what: str) -> bool:
        """kill -9 a cluster's ``haproc`` or ``spark``; False if it did not run."""
        return self.signal(name, what, signal.SIGKILL)

    def signal(self, name: str, what: str, number: signal.Signals) -> bool:
        """Send a signal to a cluster's ``haproc`` or ``spark``; False if it did not run."""
        if name not in self.sparks:
            raise RingError(f"the ring has no cluster {name!r}; it has {', '.join(self.names)}")
        if what == "spark":
            return self.sparks[name].signal(number)
        return process_of(self.config, name).signal(number)

    def pids(self, name: str) -> dict[str, int | None]:
        """Return the pids of what runs of a cluster."""
        identity = process_of(self.config, name).identity()
        return {"haproc": identity.pid if identity else None, "spark": self.sparks[name].pid}

    async def stop_haproc(self, name: str) -> None:
        """Stop a cluster's HAProc, letting it finish what it has."""
        await process_of(self.config, name).stop(self.config.timeouts.drain_s + 10)

    async def down(self) -> None:
        """Stop everything; the data stay."""
        await asyncio.gather(*(self.stop_haproc(name) for name in self.names))
        await asyncio.gather(*(spark.stop() for spark in self.sparks.values()))


def _create(folder: Path, clusters: int, base_port: int | None, settings: dict[str, Any]) -> None:
    """Write a ring's configuration and its secrets."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "secrets").mkdir(mode=0o700, exist_ok=True)
    names = [chr(ord("a") + n) for n in range(clusters)]
    ports = _ports(3 * clusters, base_port)
    for secret in ("ring", *names):
        file = folder / "secrets" / secret
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(24))
    described = {
        "ring": "local",
        "log": f"sqlite:///{str(folder / 'log.db').lstrip('/')}",
        "secret": {"file": "secrets/ring"},
        "state_dir": "state",
        "clusters": [
            {
                "name": name,
                "listen": f"127.0.0.1:{ports.pop(0)}",
                "peer": f"127.0.0.1:{ports.pop(0)}",
                "spark": {
                    "url": f"sc://127.0.0.1:{ports.pop(0)}",
                    "token": {"file": f"secrets/{name}"},
                },
            }
            for name in names
        ],
        **settings,
    }
    temporary = folder / "ring.yaml.new"
    temporary.write_text(yaml.safe_dump(described, sort_keys=False))
    temporary.replace(folder / "ring.yaml")


def _ports(count: int, base_port: int | None) -> list[int]:
    if base_port is not None:
        return list(range(base_port, base_port + count))
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return sorted(ports)
