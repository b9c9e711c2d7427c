"""Records whose content is declared: each kind has a type, and its fields are the payload.

The payload is MessagePack: a map by field name, so that bytes stay as they are and a change stays
readable. **The rule for changes**:

- A reader ignores fields that it does not know. So a new field has a default, and is only for what
  an older reader may ignore.
- What changes how a record must be treated is a new kind, ``kind.2``, beside the old one, or a new
  tag of a union. An older reader stops in front of it, and goes on from there once it is upgraded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from msgspec import MsgspecError
from msgspec.msgpack import Decoder, Encoder

from dmq.log import LogCorruptError, Record, UnknownVersionError, decode, encode

M = TypeVar("M")

_encode: Final = Encoder(order="deterministic").encode
"""Sets and maps sorted: equal messages have equal bytes."""


class Kinds(Generic[M]):
    """Messages of these types as records of these kinds, one for each type."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._kinds = {of: kind for kind, of in types.items()}
        self._decoders = {kind: Decoder(of) for kind, of in types.items()}

    @property
    def names(self) -> frozenset[str]:
        """The kinds."""
        return frozenset(self._decoders)

    def record(self, message: M) -> Record:
        """Return the record of a message."""
        return Record(self._kinds[type(message)], payload=_encode(message))

    def message(self, record: Record) -> M:
        """Return the message of a record.

        Raises UnknownVersionError for another kind, LogCorruptError for what is not of its type.
        """
        decoder = self._decoders.get(record.kind)
        if decoder is None:
            raise UnknownVersionError(
                f"record kind {record.kind!r} is not known to this version: upgrade this process "
                "before it reads on"
            )
        try:
            message: M = decoder.decode(record.payload)
        except (MsgspecError, ValueError, RecursionError) as error:
            raise LogCorruptError(f"a {record.kind} record cannot be read: {error}") from error
        return message

    def to_bytes(self, message: M) -> bytes:
        """Return the bytes of a message's record, for the key-value store."""
        return encode(self.record(message))

    def from_bytes(self, data: bytes) -> M:
        """Return the message of a record's bytes; raises as `message` does."""
        return self.message(decode(data))
