"""What the local servers have in common: one JVM over one folder, with its pid file and its log."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from pathlib import Path

from haproc.ring.process import DetachedProcess

_LOG_LINES_SHOWN = 20


class LocalServer:
    """A server process and its folder; ``kind`` names its files."""

    def __init__(
        self, kind: str, name: str, folder: Path, memory: str, progress: Callable[[str], None]
    ) -> None:
        self.name = name
        self.folder = folder.resolve()
        self.memory = memory
        self.log = self.folder / f"{kind}.log"
        self._progress = progress
        self._process = DetachedProcess(self.folder / f"{kind}.pid")

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        identity = self._process.identity()
        return identity.pid if identity else None

    async def stop(self, *, grace_s: float = 10.0) -> None:
        """End the server, by force if it does not go by itself."""
        await self._process.stop(grace_s)

    def kill(self) -> bool:
        """End the server at once (SIGKILL); False if it did not run."""
        return self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> bool:
        """Send the server a signal, such as SIGSTOP; False if it did not run."""
        return self._process.signal(number)

    async def wait_gone(self, timeout_s: float = 10.0) -> bool:
        """Wait until the process has ended."""
        return await self._process.wait_gone(timeout_s)

    def log_tail(self, lines: int = _LOG_LINES_SHOWN) -> str:
        """Return the last lines of the server's log, without the frames of stack traces."""
        with contextlib.suppress(OSError):
            said = self.log.read_text(errors="replace").splitlines()
            return "\n".join([line for line in said if not line.startswith("\tat ")][-lines:])
        return ""
