"""A process that uses a log, for tests that need another one.

``write URL NAME COUNT``: append COUNT records (0: until killed) one after another and print each
acknowledged offset with its number. ``answer URL``: for each line read from standard input, append
one record; the key of the next one is the time right after this one was durable.
"""

from __future__ import annotations

import asyncio
import sys
import time

from dmq import Record, open_log
from tests.contract.log_backends import KAFKA_OPTIONS


async def write(url: str, name: str, count: int) -> None:
    log = await open_log(url, kafka=KAFKA_OPTIONS)
    number = 0
    while count == 0 or number < count:
        batch = [Record("test", f"{name}-{number}-{part}") for part in range(3)]
        offsets = await log.append(batch)
        print(number, *offsets, flush=True)
        number += 1
    await log.close()


async def answer(url: str) -> None:
    log = await open_log(url, kafka=KAFKA_OPTIONS)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        await log.append([Record("test")])
        print(time.monotonic(), flush=True)
    await log.close()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        asyncio.run(write(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        asyncio.run(answer(sys.argv[2]))
