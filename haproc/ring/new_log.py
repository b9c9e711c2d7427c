"""A ring that is founded anew on one of its clusters: the markers on tables, and the new log.

The new log begins above every offset that was found on tables, not at 0. Because of that

- a request that was first sent before the founding is refused, and not applied a second time: the
  window of request ids does not reach so far back;
- no offset is used twice;
- a cluster that does not know of the founding does not begin with tables that may differ: it
  asks for a copy.

Every other cluster's cursor asks for a copy of the founder. The founder's cursor is written last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dmq import KeyValueStore, MovableLog
from dmq.key_value import MoveState, Origin, remember
from dmq.moving import check_new
from haproc.config.model import Config
from haproc.engine.errors import EngineError, ErrorKind
from haproc.replicate.records.progress import CopyRequest, Progress, to_cursor
from haproc.ring.founding import Mark, marks_of
from haproc.ring.holdings import PROBE_S, TABLES_AT_ONCE, asked, of_each

# Reads the transaction markers on each cluster's tables. Nothing is written.


COMMITS_MAX: Final = 1000
"""The number of the newest commits of a table that are read. Chosen: a history of 64 takes 0.3
s."""


async def marks(
    config: Config, show: Callable[[str, str], None]
) -> dict[str, dict[str, Sequence[Mark]]]:
    """Return, by cluster and table, the markers of this ring's logs; raises RingError.

    ``show`` is called before each step with the cluster's name and the step.
    """

    async def one(name: str) -> dict[str, Sequence[Mark]]:
        async with asked(config, name, "found") as engine:
            await engine.probe(timeout_s=PROBE_S)
            histories = engine.histories()
            tables = sorted(await histories.newest())
            show(name, f"reads the histories of {len(tables)} tables")
            permits = asyncio.Semaphore(TABLES_AT_ONCE)

            async def history(table: str) -> Sequence[Mark]:
                async with permits:
                    return marks_of(config.ring, await histories.commits(table, COMMITS_MAX))

            found = await asyncio.gather(*map(history, tables))
            return dict(zip(tables, found, strict=True))

    return await of_each(config, one)


async def not_copied(config: Config, name: str) -> Mapping[str, str]:
    """Return the objects of a cluster that cannot be copied, with the reasons; raises RingError."""
    async with asked(config, name, "found") as engine:
        copies = engine.copies()
        inventory = await copies.inventory()
        found = dict(inventory.others)
        for table in inventory.tables:
            try:
                await copies.check(table)
            except EngineError as error:
                if error.kind is not ErrorKind.APPLICATION:
                    raise
                found[table.full_name] = error.message
        return found


# The new log of a ring that is founded anew on one of its clusters.


def _named(founder: str) -> str:
    """Return the command that repeats an interrupted founding, for error messages."""
    return f"haproc ring found --on {founder}"


async def check_new_log(log: MovableLog, store: KeyValueStore, founder: str) -> None:
    """Raise LogError if the new log is not empty.

    What an earlier, interrupted founding on the same founder wrote there is no error.
    """
    await check_new(log, store, resumed=_named(founder))


async def found(
    log: MovableLog, store: KeyValueStore, founder: str, clusters: Iterable[str], begins_at: int
) -> None:
    """Begin a new log: all other clusters will copy the founder's tables.

    An interrupted call can be repeated. ``clusters``: all clusters of the ring; ``begins_at``: the
    first offset of the log. Raises LogError.
    """
    await check_new_log(log, store, founder)
    await remember(log, store, Origin(MoveState.HALF, by=_named(founder)))
    await log.begin_at(begins_at)
    # With ``first`` the copy is begun, so that no HAProc withdraws it: the cluster must not
    # serve its old tables.
    copying = CopyRequest(wanted=founder, first=begins_at)
    for name in clusters:
        if name != founder:
            await log.commit_cursor(name, to_cursor(Progress(low=begins_at, copying=copying)))
    await log.commit_cursor(founder, to_cursor(Progress(low=begins_at)))
    await remember(log, store, Origin(MoveState.WHOLE, by=_named(founder)))
