"""DMQ: one ordered, durable log of records, from which every cluster reads its own queue.

A *record* is a payload of some kind; the log gives it an *offset*, its place in the order. A
reader's *cursor* is the offset below which it has applied the log. Beside the log is a key-value
store (`dmq.key_value`): values under names, of which the newest counts. This package does not know
the meaning of the records and the values.
"""

from dmq.kafka_topic import KafkaOptions
from dmq.key_value import Kept, KeyValueStore, MovableStore
from dmq.log import (
    FILLER,
    Cursor,
    Entry,
    FencedError,
    Json,
    Log,
    LogCorruptError,
    LogError,
    LogRegressedError,
    LogUnavailableError,
    MovableLog,
    Record,
    RecordTooLargeError,
    TrimmedError,
    UnknownVersionError,
    ValueTooLargeError,
    decode,
    encode,
)
from dmq.memory import MemoryKeys, MemoryKeyValueStore, MemoryLog, MemoryStore
from dmq.opening import open_both, open_log, open_store

__all__ = [
    "FILLER",
    "Cursor",
    "Entry",
    "FencedError",
    "Json",
    "KafkaOptions",
    "Kept",
    "KeyValueStore",
    "Log",
    "LogCorruptError",
    "LogError",
    "LogRegressedError",
    "LogUnavailableError",
    "MemoryKeyValueStore",
    "MemoryKeys",
    "MemoryLog",
    "MemoryStore",
    "MovableLog",
    "MovableStore",
    "Record",
    "RecordTooLargeError",
    "TrimmedError",
    "UnknownVersionError",
    "ValueTooLargeError",
    "decode",
    "encode",
    "open_both",
    "open_log",
    "open_store",
]
