"""Real Redis servers and sentinels for tests: started, frozen, killed, started again."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from haproc.ring.process import LocalServer, free_port

ANSWERS_WITHIN_S = 20.0
_MISSING = (
    "no redis-server on this machine, which this test starts: scripts/setup installs it as root "
    "on Debian and Ubuntu (apt-get install redis-tools); elsewhere install Redis 6 or newer"
)


def program() -> str:
    """Return the Redis server's program; the test fails if there is none."""
    # Debian has server, sentinel and checks as one program, which goes by its name; the package
    # redis-tools has it without a service.
    found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if found is None:
        pytest.fail(_MISSING)
    return found


class RedisServer(LocalServer):
    """A server, or with ``kind`` redis-sentinel a sentinel, on a free port of the loopback."""

    def __init__(self, folder: Path, name: str = "redis", kind: str = "redis-server") -> None:
        super().__init__(kind, name, folder / name, "", print)
        self.port = free_port()
        self._kind = kind
        self.settings: list[str] = []
        self._pem: Path | None = None

    def tls(self, pem: Path) -> None:
        """Accept connections with TLS only; the file holds certificate and key."""
        self._pem = pem

    def start(self, *settings: str) -> None:
        """Start it; ``settings`` are lines of redis.conf."""
        self.settings = list(settings) or self.settings
        self.folder.mkdir(parents=True, exist_ok=True)
        link = self.folder / self._kind
        if not link.is_symlink():
            link.symlink_to(Path(program()).resolve())
        conf = self.folder / "redis.conf"
        if not (self._kind == "redis-sentinel" and conf.exists()):  # which keeps its state there
            own = [f"port {self.port}", "bind 127.0.0.1", f"dir {self.folder}"]
            if self._pem is not None:
                own[0] = f"port 0\ntls-port {self.port}\ntls-auth-clients no"
                own += [f"tls-cert-file {self._pem}", f"tls-key-file {self._pem}"]
            if self._kind == "redis-server":
                own += ['save ""', "appendonly no"]
            conf.write_text("\n".join([*own, *self.settings]) + "\n")
        self._process.start(
            [str(link), str(conf)], folder=self.folder, log=self.log, environment={}
        )
        self.wait_answering()

    def wait_answering(self) -> None:
        end = time.monotonic() + ANSWERS_WITHIN_S
        while not self._answers():
            assert time.monotonic() < end and self.pid, self.log_tail()
            time.sleep(0.02)

    def _answers(self) -> bool:
        address = ("127.0.0.1", self.port)
        with (
            contextlib.suppress(OSError),
            socket.create_connection(address, timeout=1) as line,
        ):
            if self._pem is not None:
                return True
            line.sendall(b"PING\r\n")
            return line.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def cli(self, *words: str) -> str:
        """Send a command; return the answer as redis-cli shows it."""
        done = subprocess.run(
            ["redis-cli", "-p", str(self.port), *words],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout.strip()


@contextmanager
def running(*servers: RedisServer) -> Iterator[None]:
    """End the servers afterwards, in any state."""
    try:
        yield
    finally:
        for server in servers:
            server.kill()
