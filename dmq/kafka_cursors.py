"""Readers' cursors as the committed offsets of consumer groups. Everything here blocks.

The cursor of reader ``a`` of topic ``ring`` is what group ``ring.a`` has committed, with its epoch
and its note in the commit's metadata: every tool for Kafka shows the reader's lag.

A commit of a lower epoch than the stored one must change nothing, whatever happens between looking
and writing. So each is a transaction under a transactional id of the reader's own. A process first
*initialises* that id, which ends the transactions of all who did so earlier and refuses their later
ones, then looks at the stored epoch, and then commits, as often as it likes without looking again:
whoever stored another epoch must have initialised the id after it, which refuses its commits. Then
it initialises anew, looks anew, and finds out whether it was replaced.

A transaction that was ended is not visible at once, and a broker that dies in between may forget to
make it visible (seen with 4.3: killed right after it acknowledged the end, it left the commit
pending for ever; the next transaction of the same id ends it). So a commit counts only when it has
been seen, and one that stays pending counts as not made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata

from dmq.entries import check_epoch
from dmq.errors import LogCorruptError, LogError, LogUnavailableError
from dmq.interface import Cursor
from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients, close_quietly

COMMIT_ATTEMPTS_MAX: Final = 5
"""How often a commit that others push aside is tried again."""
STABLE_WITHIN_S: Final = 0.5
"""A commit that is pending for so long counts as not made."""

_PUSHED_ASIDE: Final = (
    kafka_errors.ProducerFencedError,
    kafka_errors.InvalidProducerEpochError,
    kafka_errors.InvalidProducerIdMappingError,
    kafka_errors.InvalidTxnStateError,
    kafka_errors.TransactionAbortedError,
)


def to_metadata(cursor: Cursor) -> str:
    """Return what is stored beside a cursor's offset."""
    return f"1 {cursor.epoch} {cursor.note}"


def from_metadata(offset: int, metadata: str) -> Cursor:
    """Return the cursor that is stored with this metadata.

    Without any it was set by another tool (kafka-consumer-groups.sh): an offset, nothing more.
    """
    if not metadata:
        return Cursor(offset)
    version, _, rest = metadata.partition(" ")
    epoch, _, note = rest.partition(" ")
    if version != "1" or not epoch.lstrip("-").isdecimal():
        raise LogCorruptError(
            f"the cursor at offset {offset} cannot be read: its metadata begins with {version!r}, "
            "this version knows 1"
        )
    return Cursor(offset, note, int(epoch))


class CursorStore:
    """See the module. Belongs to one thread."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._partition = clients.partition
        self._producers: dict[str, Any] = {}
        self._consumers: dict[str, Any] = {}

    def group(self, reader: str) -> str:
        """Return the consumer group of a reader."""
        return f"{self._clients.topic}.{reader}"

    def load(self, reader: str) -> Cursor | None:
        """Return a reader's cursor, or None."""
        try:
            return self._stored(reader)
        except Exception as error:
            self._drop(reader)
            failure = self._failed(error, reader)
            raise failure from failure.__cause__

    def commit(self, reader: str, cursor: Cursor) -> None:
        """Store a reader's cursor."""
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                if reader not in self._producers:
                    self._producer(reader)
                    check_epoch(reader, self._stored(reader), cursor)
                self._write(self._producers[reader], reader, cursor)
                # Seen as it is, or as somebody has overwritten it since.
                self._seen(reader, REQUEST_TIMEOUT_S)
                return
            except _PUSHED_ASIDE:
                self._drop_producer(reader)
            except Exception as error:
                self._drop(reader)
                failure = self._failed(error, reader)
                raise failure from failure.__cause__
        raise LogUnavailableError(
            f"reader {reader}: others commit for it all the time; {COMMIT_ATTEMPTS_MAX} attempts "
            "failed"
        )

    def cursors(self, groups: Sequence[str]) -> Mapping[str, Cursor]:
        """Return the cursors of those of these groups that read the topic."""
        prefix = self.group("")
        found = {
            group.removeprefix(prefix): self.load(group.removeprefix(prefix))
            for group in sorted(groups)
        }
        return {reader: cursor for reader, cursor in found.items() if cursor is not None}

    def close(self) -> None:
        """Release the connections."""
        for reader in {*self._producers, *self._consumers}:
            self._drop(reader)

    def _producer(self, reader: str) -> Any:
        """Initialise the reader's transactional id: all earlier users of it are refused."""
        self._drop_producer(reader)
        producer = self._clients.transactional_producer(self.group(reader), REQUEST_TIMEOUT_S)
        try:
            producer.init_transactions()
        except BaseException:
            close_quietly(producer, timeout=0)
            raise
        self._producers[reader] = producer
        return producer

    def _write(self, producer: Any, reader: str, cursor: Cursor) -> None:
        offsets = {self._partition: OffsetAndMetadata(cursor.offset, to_metadata(cursor), -1)}
        producer.begin_transaction()
        producer.send_offsets_to_transaction(offsets, self.group(reader))
        producer.commit_transaction()

    def _stored(self, reader: str) -> Cursor | None:
        """Return what was committed last, without what stays pending."""
        try:
            return self._seen(reader, STABLE_WITHIN_S)
        except kafka_errors.KafkaTimeoutError:
            consumer = self._clients.consumer(group_id=self.group(reader))
            try:
                return self._committed(consumer, REQUEST_TIMEOUT_S)
            finally:
                close_quietly(consumer, autocommit=False, timeout_ms=0)

    def _seen(self, reader: str, timeout_s: float) -> Cursor | None:
        """Return what is committed once nothing is pending; else KafkaTimeoutError."""
        if reader not in self._consumers:
            self._consumers[reader] = self._clients.consumer(
                group_id=self.group(reader), isolation_level="read_committed", retry_backoff_ms=2
            )
        return self._committed(self._consumers[reader], timeout_s)

    def _committed(self, consumer: Any, timeout_s: float) -> Cursor | None:
        found = consumer.committed(self._partition, metadata=True, timeout_ms=int(1000 * timeout_s))
        if found is None or found.offset < 0:
            return None
        return from_metadata(found.offset, found.metadata or "")

    def _drop(self, reader: str) -> None:
        """Begin with new connections next time."""
        self._drop_producer(reader)
        consumer = self._consumers.pop(reader, None)
        if consumer is not None:
            close_quietly(consumer, autocommit=False, timeout_ms=0)

    def _drop_producer(self, reader: str) -> None:
        producer = self._producers.pop(reader, None)
        if producer is not None:
            close_quietly(producer, timeout=0)

    def _failed(self, error: Exception, reader: str) -> LogError:
        return self._clients.error(error, f"the cursor of group {self.group(reader)}")
