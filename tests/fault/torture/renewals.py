"""Has clusters rebuilt and tables repaired, and lets a guest join the ring and leave it.

A separate thread, which does one of these at a time and waits until it is done, as an operator
would; the nemesis injects faults meanwhile. A repair that failed half-way leaves its cluster
DIVERGED: then the operator follows the advice of the state, and has the cluster rebuilt. Any other
reason that takes a cluster out of service is left as it is, and is found in the end.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any, Final

from haproc.cli.queue import Asker, AskError
from haproc.failure import ErrorClass
from haproc.membership.state import State
from tests.fault.torture.history import History
from tests.fault.torture.part import Part
from tests.fault.torture.plan import Deed
from tests.fault.torture.stage import Stage
from tests.fault.torture.workloads import TABLES

OVER_S: Final = 240.0
"""Longer than any of them took on two busy cores, with kills during it."""
_ASK_S: Final = 20.0
_POLL_S: Final = 0.5
_TURN_S: Final = 0.1
_COMMANDS_MAX: Final = 5
_PAUSE_S: Final = 5.0
_COMMAND_S: Final = 330.0
"""More than ``haproc cluster add`` waits for a cluster."""


class Renewals(Part):
    """See the module."""

    def __init__(self, stage: Stage, seed: int, history: History) -> None:
        super().__init__("renewals", history)
        self._stage = stage
        self._random = random.Random(f"{seed} renewals")
        self._request: tuple[Deed, str] | None = None

    @property
    def busy(self) -> bool:
        """True if a renewal is running."""
        return self._request is not None

    def ask(self, deed: Deed, name: str) -> bool:
        """Begin a renewal, unless another one is under way; return whether it begins."""
        if self.busy:
            return False
        self._request = deed, name
        return True

    def work(self) -> None:
        """Carry out requested renewals until stopped."""
        while not self._stopped.wait(_TURN_S):
            if self._request is not None:
                deed, name = self._request
                began_s = self._history.now()
                end = asyncio.run(self._do(deed, name))
                took_s = round(self._history.now() - began_s, 1)
                self._history.write("renewal", deed=deed, name=name, end=end, took_s=took_s)
                self._request = None

    async def _do(self, deed: Deed, name: str) -> str:
        """Carry out a renewal; return its result."""
        match deed:
            case Deed.REBUILD:
                return await self._rebuild(name)
            case Deed.REPAIR:
                return await self._repair(name, f"default.{self._random.choice(list(TABLES))}")
            case Deed.MEMBER if name in self._stage.names:
                return await self._command("remove", name, "--yes")
            case Deed.MEMBER:
                return await self._command("add", name)
        raise AssertionError(deed)

    async def _rebuild(self, name: str) -> str:
        try:
            before = (await self._insist(name, "GET", "/ha/v1/status"))["incarnation"]
            await self._insist(name, "POST", "/ha/v1/rebuild", {"cluster": name, "donor": ""})
        except AskError as error:
            return f"refused: {error}"
        return await self._until(
            name, lambda status: status["incarnation"] != before and status["state"] == State.READY
        )

    async def _repair(self, name: str, table: str) -> str:
        body = {"cluster": name, "table": table, "donor": ""}
        try:
            offset = (await self._insist(name, "POST", "/ha/v1/repair", body))["offset"]
        except AskError as error:
            return f"refused: {error}"
        self._history.write("renewal", deed=Deed.REPAIR, name=name, table=table, offset=offset)
        failed = [""]

        def over(status: dict[str, Any]) -> bool:
            if status["copy_failed"] is not None and status["copy_failed"]["offset"] == offset:
                failed[0] = f"failed: {status['copy_failed']['message']}"
            half_made = status["state"] == State.DIVERGED and str(offset) in status["reason"]
            if half_made and "were to be copied" in status["reason"]:
                failed[0] = f"failed half-way: {status['reason']}"
            done = status["cursor"] > offset and status["copy"] is None
            return bool(failed[0]) or (done and status["state"] == State.READY)

        end = await self._until(name, over)
        if "half-way" in failed[0]:
            rebuilt = await self._rebuild(name)
            return f"{failed[0]}; rebuilt: {rebuilt}"
        return failed[0] or end

    async def _until(self, name: str, over: Any) -> str:
        """Wait until a HAProc's status meets the condition, across its deaths."""
        end_s, state = self._history.now() + OVER_S, "silent"
        while self._history.now() < end_s:
            await asyncio.sleep(_POLL_S)
            try:
                status = await self._ask(name, "GET", "/ha/v1/status")
            except AskError:
                continue
            state = f"{status['state']} {status['reason']}"
            if over(status):
                return "done"
        return f"not over: {state}"

    async def _insist(self, name: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Ask, and ask again if a kill took the answer or the cluster cannot yet; else AskError."""
        end_s = self._history.now() + OVER_S
        while True:
            try:
                return await self._ask(name, method, path, body)
            except AskError as error:
                passes = error.error_class in ("", ErrorClass.NOT_NOW)
                if not passes or self._history.now() >= end_s or self._stopped.is_set():
                    raise
            await asyncio.sleep(_POLL_S)

    async def _ask(self, name: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
        try:
            async with asyncio.timeout(_ASK_S), Asker(self._stage.ring.config) as asker:
                return await asker.ask(name, method, path, body)
        except TimeoutError:
            raise AskError(f"{name} does not answer", 1) from None

    async def _command(self, what: str, name: str, *more: str) -> str:
        """Run ``haproc cluster``, again if it fails; the command starts and stops processes."""
        command = [sys.executable, "-m", "haproc", "cluster", what, name, *more]
        command += ["--folder", str(self._stage.ring.folder)]
        self._stage.changing(name, leaves=what == "remove")
        runs, output = 0, ""
        code: int | None = None
        try:
            while runs < _COMMANDS_MAX and code != 0 and not self._stopped.is_set():
                await asyncio.sleep(_PAUSE_S * min(runs, 1))
                runs += 1
                code, output = await self._run_command(command, what)
        finally:
            self._stage.refresh()
            self._stage.changed(name)
        return f"exit {code}: {output} ({runs} times)"

    async def _run_command(self, command: list[str], what: str) -> tuple[int | None, str]:
        written = self._stage.ring.folder / f"cluster-{what}.log"
        with written.open("w") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=asyncio.subprocess.STDOUT
            )
        try:
            end_s = self._history.now() + _COMMAND_S
            while process.returncode is None and self._history.now() < end_s:
                await asyncio.sleep(_TURN_S)
                self._stage.refresh()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
        output = written.read_text(errors="replace").splitlines()
        return process.returncode, " / ".join(output[-3:])
