"""What HAProcs tell each other, as Redis carries it: one line of JSON that ends with its signature.

Whoever may use the Redis could write anything into its channels and keys, so nothing there counts
that is not signed with the ring's secret. The key is derived from it and from the ring's name: two
rings on one Redis, even with one secret, don't take each other's messages. A signature does not
tell when something was said; `exchange` judges that.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dmq import Json

BYTES_MAX: Final = 64 << 10
"""A ring of 64 clusters with names of 63 characters needs a third of that."""
_MAC_FIELD: Final = b',"mac":"'
_MAC_LENGTH: Final = 64
_END_LENGTH: Final = len(_MAC_FIELD) + _MAC_LENGTH + len(b'"}')


@dataclass(frozen=True, slots=True)
class Envelope:
    """What one HAProc published at once.

    ``number``: one more than that of its message before. ``heard``: the incarnation and the number
    of the last message from each peer that it received through Redis. ``url``: where clients reach
    its cluster. ``messages``: bodies of heartbeat and report, by the paths that they have in HTTP.
    """

    cluster: str
    incarnation: str
    number: int
    heard: Mapping[str, tuple[str, int]]
    url: str
    messages: Mapping[str, Mapping[str, Json]]


class Seal:
    """Signs, and looks at signatures."""

    def __init__(self, secret: str, ring: str) -> None:
        self._key = hmac.digest(
            secret.encode(), b"haproc state over redis\0" + ring.encode(), "sha256"
        )

    def close(self, envelope: Envelope) -> bytes:
        """Return the signed text."""
        fields = {
            "cluster": envelope.cluster,
            "incarnation": envelope.incarnation,
            "number": envelope.number,
            "heard": envelope.heard,
            "url": envelope.url,
            "messages": envelope.messages,
        }
        said = json.dumps(fields, separators=(",", ":")).encode()[:-1]
        return said + _MAC_FIELD + self._mac(said) + b'"}'

    def open(self, data: bytes) -> Envelope | None:
        """Return what was signed; None if it is not the word of a HAProc of this ring."""
        if not _END_LENGTH < len(data) <= BYTES_MAX:
            return None
        said, end = data[:-_END_LENGTH], data[-_END_LENGTH:]
        if not hmac.compare_digest(end, _MAC_FIELD + self._mac(said) + b'"}'):
            return None
        try:
            return _read(json.loads(said + b"}"))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None  # signed, but of another version

    def _mac(self, said: bytes) -> bytes:
        return hmac.digest(self._key, said, hashlib.sha256).hex().encode()


def _read(fields: Mapping[str, Any]) -> Envelope:
    heard = {str(name): (str(who), int(number)) for name, (who, number) in fields["heard"].items()}
    messages = {str(path): dict(body) for path, body in fields["messages"].items()}
    return Envelope(
        str(fields["cluster"]),
        str(fields["incarnation"]),
        int(fields["number"]),
        heard,
        str(fields["url"]),
        messages,
    )
