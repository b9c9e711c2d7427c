"""Takes a client's write back, as soon as the log has it."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from haproc.failure import RequestError
from haproc.replicate.queue.revoked import Fate, Revoked
from haproc.route.interface import Service
from haproc.statements.execution import Key

_WAIT_S: Final = 5.0
_LOOK_S: Final = 0.1


async def take_back(service: Service, key: Key, task: asyncio.Task[Any]) -> Revoked:
    """Take back a write that ``task`` is about to put into the log, or waits for."""
    clock = asyncio.get_running_loop().time
    until = clock() + _WAIT_S
    # What is rejected may be made again as long as its task runs, see `route.retry_ids`.
    while (found := await revoke(service, key)) is None or found.fate is Fate.REJECTED:
        if task.done():
            return found or Revoked(None, Fate.ENDED)
        if clock() > until:
            return found or Revoked(None, Fate.UNDECIDED, "it is not in the log yet, and goes on")
        await asyncio.wait({task}, timeout=_LOOK_S)
    return found


async def revoke(service: Service, key: Key) -> Revoked | None:
    """Take back what the log has of a request; None if it has nothing."""
    user, statement_id = key
    try:
        return await service.revoke(statement_id, user)
    except RequestError as error:
        return Revoked(error.offset, Fate.UNDECIDED, error.message)
