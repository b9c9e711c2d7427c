"""Opens and closes the door for clients, by the state of the HAProc."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from haproc.membership.state import ANSWERING, SERVING, State

logger = logging.getLogger(__name__)


class Door(Protocol):
    """A listener that can be opened and closed."""

    @property
    def url(self) -> str:
        """The address to which clients connect."""
        ...

    @property
    def is_open(self) -> bool:
        """True if the listener accepts connections."""
        ...

    async def open(self) -> None:
        """Accept connections; raises OSError if that fails, such as when the port is taken."""
        ...

    async def close(self) -> None:
        """Refuse connections from now on."""
        ...


class ClientDoor:
    """Opens and closes the listener for clients, by the state of the HAProc.

    While it is closed, clients are refused at once, and go to another HAProc. Another process may
    take the port meanwhile. Then this HAProc still applies the log, and opens the door once the
    port is free: ``look`` is called after ``retry_s``, and makes the caller call `follow` again.
    ``open_in``: the states in which the door is open.
    """

    def __init__(
        self,
        name: str,
        door: Door,
        look: Callable[[], None],
        retry_s: float,
        open_in: Collection[State] = ANSWERING,
    ) -> None:
        self._open_in = open_in
        self._name = name
        self._door = door
        self._look = look
        self._retry_s = retry_s
        self._was_open = False

    async def follow(self, state: State) -> None:
        """Open or close the door for this state; OSError if the very first opening fails."""
        if state not in self._open_in:
            if self._door.is_open:
                await self._door.close()
            return
        if self._door.is_open:
            return
        try:
            await self._door.open()
        except OSError as error:
            if not self._was_open:
                raise
            taken = error.errno == errno.EADDRINUSE
            logger.error(
                "%s can't serve clients on %s: %s%s; tried again every %g s",
                self._name,
                self._door.url,
                "another process has taken it: " if taken else "",
                error.strerror,
                self._retry_s,
            )
            asyncio.get_running_loop().call_later(self._retry_s, self._look)
            return
        self._was_open = True
        what = "serves" if state in SERVING else "answers"
        logger.info("%s %s clients on %s", self._name, what, self._door.url)
