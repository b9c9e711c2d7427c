"""Follows the end of a topic while somebody waits for it.

A consumer of its own asks for what comes after the newest known record; the broker answers as soon
as there is something. While nobody waits the thread sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from kafka import errors as kafka_errors

from dmq.kafka_clients import Clients, close_quietly
from dmq.kafka_recent import Recent
from dmq.kafka_thread import deliver

LONG_POLL_MS: Final = 1000
"""How long the broker may keep a request that it has nothing for."""
RETRY_S: Final = 0.2

_logger = logging.getLogger("dmq")


class Tail:
    """See the module. ``on_end`` hears of each new end, ``on_lost`` that its place is gone; both
    on the event loop. ``wanted`` says whether anybody still waits."""

    def __init__(
        self,
        clients: Clients,
        recent: Recent | None,
        on_end: Callable[[int], None],
        on_lost: Callable[[], None],
        wanted: Callable[[], bool],
    ) -> None:
        self._clients = clients
        self._partition = clients.partition
        self._recent = recent
        self._on_end = on_end
        self._on_lost = on_lost
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()
        self._consumer: Any = None
        self._position: int | None = None
        self._from = 0
        self._go = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def following(self) -> bool:
        """Whether every new record is noticed by itself."""
        return self._go.is_set()

    def follow(self, end: int) -> None:
        """Wait for records from this offset on."""
        self._from = end
        self._go.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dmq-kafka-tail", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Let the thread end within a long poll."""
        self._closed.set()
        self._go.set()

    def _run(self) -> None:
        while self._go.wait() and not self._closed.is_set():
            if not self._wanted():
                self._go.clear()
                if not self._wanted():
                    continue
                # Somebody came while it was cleared.
                self._go.set()
            try:
                self._poll()
            except (kafka_errors.OffsetOutOfRangeError, kafka_errors.LogTruncationError):
                self._position = None
                self._go.clear()
                deliver(self._loop, self._on_lost)
            except Exception as error:
                _logger.debug("topic %s cannot be followed: %r", self._clients.topic, error)
                self._close()
                self._closed.wait(RETRY_S)
        self._close()

    def _poll(self) -> None:
        if self._consumer is None:
            self._consumer = self._clients.consumer(fetch_max_wait_ms=LONG_POLL_MS)
            self._consumer.assign([self._partition])
        if self._position is None or self._position < self._from:
            self._consumer.seek(self._partition, self._from)
            self._position = self._from
        found = self._consumer.poll(timeout_ms=LONG_POLL_MS)
        records = found.get(self._partition, ())
        if records and not self._closed.is_set():
            if self._recent is not None:
                self._recent.extend([(record.offset, record.value or b"") for record in records])
            self._position = records[-1].offset + 1
            deliver(self._loop, self._on_end, self._position)

    def _close(self) -> None:
        if self._consumer is not None:
            close_quietly(self._consumer, autocommit=False, timeout_ms=0)
        self._consumer = self._position = None
