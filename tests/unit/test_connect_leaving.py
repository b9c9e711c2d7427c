"""The door closes during calls: their clients get only UNAVAILABLE, with which they try again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import grpc
from pyspark.sql.connect.client.retries import extract_retry_delay

from haproc.config.model import Connect
from haproc.ring.process import free_port
from tests.unit.test_connect_server import listener

CLIENTS = 4
CLOSINGS = 4
CONNECTED_S = 60.0


async def answer(request: bytes, context: Any) -> None:
    await asyncio.sleep(0.002)
    await context.write(request)


class Asking(threading.Thread):
    """Calls again and again, with the pauses of PySpark: at least those that the server
    requests.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.outcomes: Counter[str] = Counter()
        self.stopped = threading.Event()
        self.answered = threading.Event()
        self._port = port

    def run(self) -> None:
        pause_s = 0.05
        with grpc.insecure_channel(f"127.0.0.1:{self._port}") as channel:
            ask = channel.unary_stream("/test.Service/Ask")
            while not self.stopped.is_set():
                try:
                    assert list(ask(b"x", timeout=20)) == [b"x"]
                    self.outcomes["OK"] += 1
                    self.answered.set()
                    pause_s = 0.05
                except grpc.RpcError as error:
                    self.outcomes[error.code().name] += 1
                    time.sleep(max(pause_s, (extract_retry_delay(error) or 0) / 1000))
                    pause_s = min(0.8, 4 * pause_s)


async def test_closing_door_ends_calls_only_with_unavailable() -> None:
    handlers = {"Ask": grpc.unary_stream_rpc_method_handler(answer)}
    port = free_port()
    door = listener(port, Connect(), handlers=handlers)
    clients = [Asking(port) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for _ in range(CLOSINGS):
        await door.open()
        for client in clients:  # gRPC pauses between attempts, too
            client.answered.clear()
            assert await asyncio.to_thread(client.answered.wait, CONNECTED_S)
        await door.close()
        assert not door.is_open
    for client in clients:
        client.stopped.set()
    await door.aclose()
    await asyncio.gather(*(asyncio.to_thread(client.join) for client in clients))
    outcomes = sum((client.outcomes for client in clients), Counter[str]())
    print(outcomes)
    assert outcomes.keys() <= {"OK", "UNAVAILABLE"}
