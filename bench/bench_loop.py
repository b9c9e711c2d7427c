"""The pauses of the event loop while long texts arrive: ``python -m bench.bench_loop``.

A door in a process of its own reads, binds, classifies and pins what it is sent, as a HAProc does;
behind it there is no cluster. A task in the same process wakes every few milliseconds and keeps the
longest time by which it was late: this is what heartbeats would be late by. The yardstick is the
same loop with nothing to do, in the same run, and the bar 50 ms, of the 300 after which a HAProc
counts as silent.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
import uvloop

from bench.bench_door import STATEMENTS, OnlyQueries, ReadyStatus, door_config
from bench.report import Row, report
from haproc.classify.classifier import classify
from haproc.classify.model import OperationClass, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.doors.apps import client_app
from haproc.doors.http.listener import Listener
from haproc.failure import FailureKind, RequestError
from haproc.metrics import Metrics
from haproc.route.model import Answer, HaReport, Request, SentSql
from haproc.route.offload import Offload
from haproc.route.streams import Replayed

BAR_MS = 50.0
TICK_S = 0.002
IDLE_S = 3.0
MIB = 1 << 20


class Reader(OnlyQueries):
    """A service that reads statements as a HAProc does, and runs nothing."""

    def __init__(self, texts: Offload) -> None:
        self._texts = texts

    async def execute(self, request: Request) -> Answer:
        """Classify the statement; return an empty result."""
        assert isinstance(request.statement, SentSql)
        text, user = request.statement.text, request.user
        values = (text, Context(), Rules.builtin())
        try:
            await self._texts.work_on_text(user, len(text), classify, *values)
        except RefusedError as error:
            raise RequestError(
                FailureKind.REFUSED, error.message, error_class=error.error_class
            ) from error
        return Answer(HaReport("a", OperationClass.QUERY), Replayed(()))


def _serve(pipe: Connection, folder: str) -> None:
    """Open a door; then answer each word on the pipe with the longest stall since the last one."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await asyncio.sleep(TICK_S)
                longest = max(longest, time.perf_counter() - before - TICK_S)

        config, texts = door_config(Path(folder)), Offload()
        metrics = Metrics("bench", "a", ["READY"])
        app = client_app(config, "a", Reader(texts), ReadyStatus(), metrics, texts)
        door = Listener(app, config.cluster("a").listen)
        await door.open()
        classify("SELECT 1 FROM t", Context(), Rules.builtin())  # as a HAProc does before it serves
        ticking = loop.create_task(tick())
        pipe.send(door.port)
        while await loop.run_in_executor(None, pipe.recv):
            pipe.send(longest)
            longest = 0.0
        ticking.cancel()
        await door.aclose()
        await texts.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def _bodies() -> dict[str, bytes]:
    """Return what is sent, by what it is called."""
    users = ", ".join(["current_user"] * 500)
    names = ", ".join(f"a{at} = user" for at in range(5_000))
    rows = ", ".join(f"({at}, 'name {at}', {at}.25)" for at in range(20_000))
    statements = {
        "IN (…) of 1 MiB": f"SELECT * FROM t WHERE a IN ({', '.join(['123'] * 180_000)})",
        "INSERT … SELECT with 190 UNIONs": (
            "INSERT INTO t SELECT 0, current_date" + " UNION ALL SELECT 0, current_date" * 190
        ),
        "SELECT current_user, … ×500": f"INSERT INTO t SELECT {users} FROM u",
        "UPDATE with 5,000 assignments": f"UPDATE t SET {names}",
        "INSERT of 20,000 rows": f"INSERT INTO t VALUES {rows}",
        "comment of 15 MiB": f"SELECT 1 /* {'x' * (15 * MIB)} */",
        "string of 15 MiB": f"INSERT INTO t VALUES ('{'x' * (15 * MIB)}')",
        "comment of 60 MiB, refused": f"SELECT 1 /* {'x' * (60 * MIB)} */",
        "1,500 parentheses": f"INSERT INTO t VALUES ({'(' * 1500}1{')' * 1500})",
        "short, 200 of them": "SELECT a, b FROM t JOIN u USING (c) WHERE d > 3",
    }
    bodies = {name: json.dumps({"statement": sql}).encode() for name, sql in statements.items()}
    parameter = {"name": "a", "type": "ARRAY<INT>", "value": json.dumps(list(range(100_000)))}
    bound = {"statement": "SELECT :a", "parameters": [parameter]}
    bodies["array parameter of 100,000"] = json.dumps(bound).encode()
    nested = {"statement": "SELECT 1", "parameters": [[[1]] * 10_000] * 60}
    bodies["JSON of 600,000 lists"] = json.dumps(nested).encode()
    return bodies


async def _send(url: str, bodies: dict[str, bytes], pipe: Connection) -> dict[str, float]:
    """Return the longest stall in milliseconds for each body, and for an idle loop."""
    loop = asyncio.get_running_loop()

    async def longest_ms() -> float:
        pipe.send(True)
        stall_s: float = await loop.run_in_executor(None, pipe.recv)
        return stall_s * 1000

    headers = {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as http:

        async def post(body: bytes) -> None:
            async with http.post(url, data=body, headers=headers) as response:
                await response.read()

        await post(next(iter(bodies.values())))  # starts the worker
        await longest_ms()
        await asyncio.sleep(IDLE_S)
        stalls = {"idle": await longest_ms()}
        for name, body in bodies.items():
            for _ in range(200 if name.startswith("short") else 1):
                await post(body)
            stalls[name] = await longest_ms()
        await asyncio.gather(*(post(body) for body in bodies.values()))
        stalls["all of these at once"] = await longest_ms()
    return stalls


def main() -> None:
    """Measure and report."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        door = context.Process(target=_serve, args=(theirs, folder))
        door.start()
        url = f"http://127.0.0.1:{ours.recv()}{STATEMENTS}"
        stalls = asyncio.run(_send(url, _bodies(), ours))
        ours.send(False)
        door.join()
    idle = stalls.pop("idle")
    rows = [Row("nothing to do: longest stall of the loop", "ms", idle, "the bar", BAR_MS)]
    rows += [Row(name, "ms", stall, "an idle loop", idle) for name, stall in stalls.items()]
    report("loop", rows)


if __name__ == "__main__":
    main()
