"""A process that uses a key-value store, for tests that need another one.

``put URL NAME BYTES``: put numbers, one after another until killed, under ``NAME/NUMBER`` and under
``NAME/last``, each filled up to so many bytes, and print each number once it is durable.

``answer URL``: for each line read from standard input put the next number under ``answer``, and
print its revision and the time right after it was durable.
"""

from __future__ import annotations

import asyncio
import sys
import time

from dmq import open_store
from tests.contract.log_backends import KAFKA_OPTIONS


def numbered(number: int, size: int) -> bytes:
    """Return a value that shows whether it is complete."""
    text = b"%d " % number
    return (text * (size // len(text) + 1))[: max(size, len(text))]


async def put(url: str, name: str, size: int) -> None:
    store = await open_store(url, kafka=KAFKA_OPTIONS)
    number = 0
    while True:
        value = numbered(number, size)
        await asyncio.gather(store.put(f"{name}/{number}", value), store.put(f"{name}/last", value))
        print(number, flush=True)
        number += 1


async def answer(url: str) -> None:
    store = await open_store(url, kafka=KAFKA_OPTIONS)
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    number = 0
    while await loop.run_in_executor(None, sys.stdin.readline):
        revision = await store.put("answer", b"%d" % number)
        print(revision, time.monotonic(), flush=True)
        number += 1
    await store.close()


if __name__ == "__main__":
    if sys.argv[1] == "put":
        asyncio.run(put(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    else:
        asyncio.run(answer(sys.argv[2]))
