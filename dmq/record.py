"""The record and its bytes.

Layout, little-endian: magic ``b"DQ"``, format version (1 byte), flags (1 byte, 0), length of the
JSON header (4 bytes), the header ``{"kind", "key", "headers"}`` in UTF-8, then the payload to the
end. A reader that meets a version it does not know refuses the record; it never guesses.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from dmq.errors import LogCorruptError, UnknownVersionError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

FORMAT_VERSION: Final = 1
FILLER: Final = "dmq.filler"
"""The kind of what only holds a place in the log and means nothing: readers pass over it."""
_PREFIX: Final = struct.Struct("<2sBBI")
_MAGIC: Final = b"DQ"
_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Record:
    """One message of the log.

    ``kind`` and ``headers`` belong to the writer; ``key`` is an id that may repeat when a writer
    retries (the log stores every copy, readers decide); ``payload`` is up to the log's limit.
    """

    kind: str
    key: str = ""
    headers: Mapping[str, Json] = field(default_factory=dict)
    payload: bytes = b""


def encode(record: Record) -> bytes:
    """Return the record's bytes in the current format version."""
    header = _to_json(
        {"kind": record.kind, "key": record.key, "headers": dict(record.headers)}
    ).encode()
    return _PREFIX.pack(_MAGIC, FORMAT_VERSION, 0, len(header)) + header + record.payload


def decode(data: bytes) -> Record:
    """Return the record that ``encode`` wrote.

    Raises UnknownVersionError for a version of the future and LogCorruptError for anything else
    that is not a record.
    """
    if len(data) < _PREFIX.size or data[:2] != _MAGIC:
        raise LogCorruptError("not a record: the magic bytes are missing")
    _, version, flags, length = _PREFIX.unpack_from(data)
    if version != FORMAT_VERSION:
        raise UnknownVersionError(
            f"record format version {version} is not known to this version of dmq "
            f"(it knows {FORMAT_VERSION}): upgrade this process before it reads on"
        )
    if flags:
        raise UnknownVersionError(
            f"record flags {flags:#04x} are not known to this version of dmq: upgrade this process "
            "before it reads on"
        )
    end = _PREFIX.size + length
    try:
        header = json.loads(data[_PREFIX.size : end].decode())
        kind, key, headers = header["kind"], header["key"], header["headers"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LogCorruptError(f"a record's header cannot be read: {error!r}") from error
    if not (isinstance(kind, str) and isinstance(key, str) and isinstance(headers, dict)):
        raise LogCorruptError("a record's header has values of the wrong types")
    return Record(kind, key, headers, bytes(data[end:]))
