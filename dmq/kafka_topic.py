"""The options of the log's and the store's topics, and how large records are stored in them."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from dmq.log import FORMAT_VERSION, LogCorruptError

# The options of a Kafka log beside its URL.


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The settings with which the topic is created and the brokers are reached.

    ``client`` has further settings for every client of the brokers, by kafka-python's names
    (``security_protocol``, ``ssl_cafile``, ``sasl_mechanism``, ``sasl_plain_password`` …).
    """

    replication_factor: int = 3
    """The number of copies of the topic on different brokers, set when it is created."""
    min_insync_replicas: int = 2
    """The number of copies that must have a record before its append returns."""
    message_bytes_max: int = 1 << 20
    """The most bytes of a message: a larger record is stored in several messages.

    The topic and its brokers must accept messages of this size.
    """
    compression: str = ""
    """The messages' compression: ``gzip``, ``snappy``, ``lz4``, ``zstd``, or empty for none."""
    append_timeout_s: float = 5.0
    """After this time an append ends with LogUnavailableError; its outcome is unknown."""
    client: Mapping[str, object] = field(default_factory=dict, repr=False)


# The topics of a log and of the store: their required settings, and the faults of a topic.
#
# Decisions only, no Kafka: `needed` gives the settings of a new topic, `faults` compares a broker's
# report with them. Anything that could lose or refuse a record is a fault, and each fault names the
# command that repairs it.


_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_ADDRESS: Final = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\[\]:/@,\s]+):([0-9]{1,5})")
FLUSH_EACH: Final = {"flush.messages": "1"}
"""The setting of a topic with one copy: a message is on the disk before it is acknowledged.

With several copies the loss of power on one host loses nothing, so their brokers need not wait for
the disk.
"""


@dataclass(frozen=True, slots=True)
class KafkaUrl:
    """The parts of ``kafka://host:port,host:port/TOPIC``."""

    servers: tuple[str, ...]
    topic: str


def parse_url(url: str) -> KafkaUrl:
    """Return the parts of a Kafka log's URL. Raises ValueError, which says what is wrong."""
    rest = url.removeprefix("kafka:")
    addresses, slash, topic = rest.removeprefix("//").partition("/")
    example = "write kafka://host:9092,other:9092/topic"
    if rest == url or not rest.startswith("//") or not slash:
        raise ValueError(f"{_shown(url)} is not the URL of a Kafka log: {example}")
    servers = tuple(addresses.split(","))
    for server in servers:
        if "@" in server:
            raise ValueError(
                f"{_shown(url)} holds credentials: give them as settings of the client "
                "(sasl_plain_username, sasl_plain_password)"
            )
        if not _ADDRESS.fullmatch(server):
            raise ValueError(f"{_shown(url)}: {server!r} is not host:port; {example}")
    if not _NAME.fullmatch(topic) or topic in {".", ".."}:
        raise ValueError(
            f"{_shown(url)}: a topic's name has letters, digits, dots, underscores and hyphens, "
            f"200 at most; {example}"
        )
    return KafkaUrl(servers, topic)


def _shown(url: str) -> str:
    """Return the URL for an error message, without a password."""
    return repr(re.sub(r"//[^/]*@", "//***@", url))


def check_options(options: KafkaOptions) -> None:
    """Raise ValueError for options that contradict each other, or are out of range."""
    if not 1 <= options.min_insync_replicas <= options.replication_factor:
        raise ValueError(
            f"min_insync_replicas is {options.min_insync_replicas}, but must be from 1 to "
            f"replication_factor ({options.replication_factor})"
        )
    if options.message_bytes_max < 16 << 10:
        raise ValueError(
            f"message_bytes_max is {options.message_bytes_max}, but must be at least {16 << 10}"
        )
    if not 0.1 <= options.append_timeout_s <= 60:
        raise ValueError(
            f"append_timeout_s is {options.append_timeout_s:g}, but must be from 0.1 to 60"
        )
    if options.compression not in {"", "gzip", "snappy", "lz4", "zstd"}:
        raise ValueError(
            f"compression is {options.compression!r}, but must be gzip, snappy, lz4, zstd or empty"
        )


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a topic is used for, and the properties that it needs for that."""

    what: str
    partitions: int
    why_partitions: str
    settings: Mapping[str, str]
    """Settings of the topic that must have these values: others could lose records."""
    tuning: Mapping[str, str]
    """Further settings of a new topic, which an operator may change later."""


LOG: Final = Purpose(
    "log",
    1,
    "records in several have no order",
    {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"},
    {},
)
STORE: Final = Purpose(
    "keyed store",
    2,
    "one has the keys, the other one large values",
    {"cleanup.policy": "compact", "delete.retention.ms": str(24 * 3600 * 1000)},
    # Compaction skips the segment that is being written. Small segments bound the data that opening
    # reads, and the disk.
    {"segment.bytes": str(64 << 20), "segment.ms": str(3600 * 1000)},
)


def needed(options: KafkaOptions, purpose: Purpose = LOG) -> dict[str, str]:
    """Return the settings that a topic of this purpose must have, by name."""
    return {
        **purpose.settings,
        "min.insync.replicas": str(options.min_insync_replicas),
        "max.message.bytes": str(options.message_bytes_max),
        "message.timestamp.type": "LogAppendTime",
        "unclean.leader.election.enable": "false",
        **(FLUSH_EACH if options.replication_factor == 1 else {}),
    }


_WHY: Final = {
    "cleanup.policy": "another one would delete what is needed, or keep everything for ever",
    "delete.retention.ms": "what was deleted could come back for a process that was frozen",
    "retention.ms": "old records would be deleted whether they were applied or not",
    "retention.bytes": "old records would be deleted whether they were applied or not",
    "min.insync.replicas": "an acknowledged record could be lost with too few brokers",
    "max.message.bytes": "it would refuse records that the log takes",
    "message.timestamp.type": "trimming uses the broker's clock to find the new records",
    "unclean.leader.election.enable": "acknowledged records could be lost when a broker fails",
    "flush.messages": "a single copy that is not on the disk is lost with the host's power",
}
_AT_LEAST: Final = frozenset({"min.insync.replicas", "max.message.bytes", "delete.retention.ms"})


def faults(
    topic: str,
    partitions: int,
    replicas: int,
    settings: Mapping[str, str],
    options: KafkaOptions,
    purpose: Purpose = LOG,
) -> list[str]:
    """Return a text for each fault of a topic, with its correction; empty if it has none."""
    found: list[str] = []
    if partitions != purpose.partitions:
        found.append(
            f"it has {partitions} partitions, but must have {purpose.partitions}, since "
            f"{purpose.why_partitions}: use another topic; HAProc makes it if there is none"
        )
    if replicas < options.replication_factor:
        found.append(
            f"it has {replicas} {'copy' if replicas == 1 else 'copies'}, but replication_factor "
            f"is {options.replication_factor}: add replicas with kafka-reassign-partitions.sh, or "
            "lower replication_factor"
        )
    wanted = needed(options, purpose)
    if replicas > 1:
        wanted.pop("flush.messages", None)
    wrong = {
        name: value
        for name, value in wanted.items()
        if not _fulfils(name, settings.get(name, ""), value)
    }
    found += [
        f"{name} is {settings.get(name, 'not known')}, but must be "
        f"{'at least ' if name in _AT_LEAST else ''}{value}: {_WHY[name]}"
        for name, value in wrong.items()
    ]
    insync = settings.get("min.insync.replicas", "")
    if insync.isdecimal() and int(insync) > replicas:
        found.append(
            f"min.insync.replicas is {insync}, but there are only {replicas} copies: nothing could "
            "be appended"
        )
    if wrong:
        found.append(
            f"to mend its settings: kafka-configs.sh --bootstrap-server SERVER --alter --topic "
            f"{topic} --add-config {','.join(f'{name}={value}' for name, value in wrong.items())}"
        )
    return found


def _fulfils(name: str, found: str, wanted: str) -> bool:
    if name in _AT_LEAST:
        return found.isdecimal() and int(found) >= int(wanted)
    return found == wanted


# Records that are larger than a message: cut into parts, and joined again. No side effects.
#
# A large record is stored as *parts*, and then, once they are durable, as a *head* at its offset,
# which names the offsets of its parts. So a record becomes visible only when it is whole, and the
# parts of a writer that died before its head have no effect. Both have the form of a record (see
# `dmq.log`) with a flag set, so that a version that does not know them refuses them.
#
# Trimming must keep the parts of every record that stays, also of one without its head yet: `Parts`
# holds the parts that a scan of the log has found.


MESSAGE_OVERHEAD_BYTES: Final = 256
"""The part of a message's size that Kafka itself needs.

61 bytes for the batch, and some in reserve.
"""

_PREFIX: Final = struct.Struct("<2sBBI")
_PART_FLAG: Final = 1
_HEAD_FLAG: Final = 2
_PART_PREFIX: Final = _PREFIX.pack(b"DQ", FORMAT_VERSION, _PART_FLAG, 0)
_HEAD_START: Final = b"DQ" + bytes((FORMAT_VERSION, _HEAD_FLAG))


class Head(msgspec.Struct, frozen=True):
    """The message that completes a large record: its parts' offsets, its size and checksum."""

    parts: tuple[int, ...]
    size_bytes: int = msgspec.field(name="bytes")
    crc32: int


_encode_head: Final = msgspec.json.Encoder().encode
_decode_head: Final = msgspec.json.Decoder(Head).decode


def value_bytes_max(message_bytes_max: int) -> int:
    """Return the largest value that fits into a message of ``message_bytes_max`` bytes."""
    return message_bytes_max - MESSAGE_OVERHEAD_BYTES


def cut(encoded: bytes, value_max: int) -> list[bytes]:
    """Cut a large record's bytes into parts of at most ``value_max`` bytes; return their values."""
    step = value_max - len(_PART_PREFIX)
    return [_PART_PREFIX + encoded[start : start + step] for start in range(0, len(encoded), step)]


def head_of(encoded: bytes, parts: Sequence[int]) -> bytes:
    """Return the head of a large record: the message that names its parts and completes it.

    ``encoded``: the whole record. ``parts``: the offsets at which its parts are stored. Readers see
    the record only after its head is stored, so the parts must be durable before.
    """
    head = _encode_head(Head(tuple(parts), len(encoded), zlib.crc32(encoded)))
    return _HEAD_START + struct.pack("<I", len(head)) + head


def is_part(stored: bytes) -> bool:
    """True if the stored value is a part of a large record."""
    return stored.startswith(_PART_PREFIX)


def read_head(stored: bytes) -> Head | None:
    """Return the head in a stored value; None if the value is no head. Raises LogCorruptError."""
    if not stored.startswith(_HEAD_START):
        return None
    try:
        head = _decode_head(stored[_PREFIX.size :])
    except msgspec.MsgspecError as error:
        raise LogCorruptError(f"what names its parts cannot be read: {error!r}") from error
    if not head.parts or list(head.parts) != sorted(set(head.parts)):
        raise LogCorruptError("its parts are not in order")
    return head


def join(head: Head, stored: Mapping[int, bytes]) -> bytes:
    """Join the parts of a large record; return its bytes. ``stored``: the parts by their offsets.

    Raises LogCorruptError if a part is missing or the checksum differs.
    """
    pieces: list[bytes] = []
    for offset in head.parts:
        data = stored.get(offset)
        if data is None or not is_part(data):
            raise LogCorruptError(f"its part at offset {offset} is missing")
        pieces.append(data[len(_PART_PREFIX) :])
    encoded = b"".join(pieces)
    if len(encoded) != head.size_bytes or zlib.crc32(encoded) != head.crc32:
        raise LogCorruptError("its parts are not those that were written")
    return encoded


@dataclass(slots=True)
class Parts:
    """The parts and heads in the log from offset ``first`` to ``end``, for the trim."""

    first: int = 0
    end: int = 0
    _lone: list[int] = field(default_factory=list)
    """The offsets of parts whose head has not been read."""
    _heads: list[tuple[int, int]] = field(default_factory=list)
    """For each head: its offset, and the offset of its first part."""

    def look_from(self, offset: int) -> int:
        """Return the offset at which reading must go on to know all parts from ``offset`` on."""
        if not self.first <= offset <= self.end:
            self.first = self.end = offset
            self._lone.clear()
            self._heads.clear()
        return self.end

    def see(self, offset: int, stored: bytes) -> None:
        """Note if the next stored value is a part or a head."""
        self.end = offset + 1
        if is_part(stored):
            self._lone.append(offset)
            return
        try:
            head = read_head(stored)
        except LogCorruptError:
            return  # Readers will stop there; the parts that it named are unknown.
        if head is not None:
            self._heads.append((offset, head.parts[0]))
            named = set(head.parts)
            self._lone = [part for part in self._lone if part not in named]

    def trim_point(self, before: int, lone_from: int) -> int:
        """Return the highest offset, at most ``before``, below which all can be deleted.

        The parts of records from ``before`` on stay, and so do parts without a head from
        ``lone_from`` on.
        """
        point = before
        for offset, first_part in self._heads:
            if offset >= before:
                point = min(point, first_part)
        return min([point, *(part for part in self._lone if part >= lone_from)])

    def forget(self, below: int) -> None:
        """Forget the parts and heads below offset ``below``: they were deleted."""
        self.first = max(self.first, min(below, self.end))
        self._heads = [pair for pair in self._heads if pair[0] >= below]
        self._lone = [part for part in self._lone if part >= below]
