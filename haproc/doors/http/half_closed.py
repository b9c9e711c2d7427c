"""Connections whose client sends no more, while a request of theirs is under way.

A client may shut down its sending side and wait for the answer, or be gone: the end of what it
sends looks the same. So it is answered; and until the answer begins it is sent an interim one
(``100 Continue``, which every client of HTTP/1.1 passes over) now and then. The system of a client
that is gone refuses the first, and the next write fails: the connection is lost then, and what was
under way for it is cancelled as always.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

PROBES_S: Final = (0.5, 0.5)
"""When the first ones are sent: most requests are answered before."""
PROBE_S: Final = 10.0
"""And the others."""
INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClosed:
    """Asks a client now and then whether it is still there, when it takes an interim answer."""

    def __init__(self, whole: int, transport: asyncio.Transport, takes: Callable[[], bool]) -> None:
        self.whole = whole
        """So many requests came on the connection in full."""
        self._transport, self._takes = transport, takes
        self._left = list(PROBES_S)
        self._timer: asyncio.TimerHandle | None = None

    def wait(self) -> None:
        """Ask it after a while, for as long as this is not ended."""
        after_s = self._left.pop(0) if self._left else PROBE_S
        self._timer = asyncio.get_running_loop().call_later(after_s, self._ask)

    def end(self) -> None:
        """Ask it no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ask(self) -> None:
        if not self._transport.is_closing():
            if self._takes():
                self._transport.write(INTERIM)
            self.wait()
