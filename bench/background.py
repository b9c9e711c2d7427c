"""What goes on beside what is measured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import haclient


@contextmanager
def writing(writer: haclient.Connection, table: str) -> Iterator[None]:
    """Have a client write one row after another into a table of numbers meanwhile."""
    stopped = threading.Event()

    def write() -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            writer.execute(f"INSERT INTO {table} VALUES ({number})")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
