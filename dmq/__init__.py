"""DMQ: one ordered, durable log of records, from which every cluster reads its own queue.

A *record* is an opaque payload with a few headers; the log gives it an *offset*, its place in
the one order. A reader's *cursor* says how far it has applied the log. Nothing in this package
knows what the records mean.
"""

from dmq.errors import (
    FencedError,
    LogCorruptError,
    LogError,
    LogRegressedError,
    LogUnavailableError,
    RecordTooLargeError,
    TrimmedError,
    UnknownVersionError,
)
from dmq.interface import Cursor, Entry, Log
from dmq.kafka_options import KafkaOptions
from dmq.memory import MemoryLog, MemoryStore
from dmq.opening import open_log
from dmq.record import FILLER, Json, Record, decode, encode

__all__ = [
    "FILLER",
    "Cursor",
    "Entry",
    "FencedError",
    "Json",
    "KafkaOptions",
    "Log",
    "LogCorruptError",
    "LogError",
    "LogRegressedError",
    "LogUnavailableError",
    "MemoryLog",
    "MemoryStore",
    "Record",
    "RecordTooLargeError",
    "TrimmedError",
    "UnknownVersionError",
    "decode",
    "encode",
    "open_log",
]
