"""The tasks of one member: the failure of any is the member's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from dmq import LogError, LogRegressedError, TrimmedError
from haproc.replicate.member.condition import MemberCondition


class Tasks:
    """See the module."""

    def __init__(self, condition: MemberCondition) -> None:
        self._condition = condition
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order, unlike a set
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task for as long as the member lives."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        if isinstance(error, LogError):
            # Reading on could skip or misread something: stop here, lose nothing, say so.
            lost = isinstance(error, TrimmedError | LogRegressedError)
            advice = (
                "rebuild this cluster from another one" if lost else "nothing beyond is applied"
            )
            self._condition.fell_behind(f"{error}; {advice}")
        elif not self._broken.done():
            assert error is not None
            self._broken.set_exception(error)

    async def broken(self) -> None:
        """Wait for ever; raises what a task died of."""
        await asyncio.shield(self._broken)

    async def cancel(self) -> None:
        """Cancel every task and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._broken.cancel()
