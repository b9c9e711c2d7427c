"""One presence as a separate process: ``python -m tests.presence_process CONFIG NAME``."""

from __future__ import annotations

import asyncio
import json
import pickle
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import uvloop

from haproc.config.model import Config
from tests.presences import Here


class PresenceProcess:
    """The process; tests kill it, freeze it, and ask for its view."""

    def __init__(self, config: Config, name: str, folder: Path) -> None:
        self.name = name
        self._url = config.peer_url(name) + "/clusterStatus"
        self._file = folder / f"{name}.config"
        self._file.write_bytes(pickle.dumps(config))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.presence_process", self._file, self.name]
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def status(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(self._url, timeout=10) as response:
                return dict(json.load(response))
        except OSError:
            return {"clusters": [], "transport": {"peers": {}, "in_use": ""}}

    def hears(self) -> set[str]:
        """Return the peers that it receives, itself included."""
        return {cluster["name"] for cluster in self.status()["clusters"] if cluster["direct"]}

    def alive(self) -> set[str]:
        """Return the living clusters, by its view."""
        return {cluster["name"] for cluster in self.status()["clusters"] if cluster["alive"]}

    def ways(self) -> dict[str, str]:
        """Return the transport to each peer, and under "" the one in use."""
        transport = self.status()["transport"]
        return {**transport["peers"], "": transport["in_use"]}


def wait_until(condition: Any, within_s: float = 60.0) -> float:
    """Wait until a condition holds; return the time that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, "waited in vain"
        time.sleep(0.01)
    return time.monotonic() - began


async def _live(config: Config, name: str) -> None:
    here = Here(config, name, f"{name}{time.time_ns()}")
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await here.open()
    await stopped.wait()
    await here.aclose()


if __name__ == "__main__":
    uvloop.run(_live(pickle.loads(Path(sys.argv[1]).read_bytes()), sys.argv[2]))
