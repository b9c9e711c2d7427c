"""Real processes beside a test."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

DEADLINE_S = 30.0
FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


@asynccontextmanager
async def process(script: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a script of this folder beside the test; kill it if it has not ended by then."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        FOLDER / script,
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def line(child: Process) -> str:
    assert child.stdout is not None
    return (await asyncio.wait_for(child.stdout.readline(), DEADLINE_S)).decode()


async def lines_to_end(child: Process) -> list[str]:
    assert child.stdout is not None
    return (await asyncio.wait_for(child.stdout.read(), DEADLINE_S)).decode().splitlines()
