"""What ``haproc serve`` writes to its log, and what it keeps out of it.

The Kafka client reports each attempt to connect with several warnings and errors, many times a
second while no broker answers; the cause (a certificate, a closed connection) is only there. So
each of its messages is let through once in a while. At DEBUG it would write passwords: it never
gets below INFO.
"""

from __future__ import annotations

import logging
import sys

AGAIN_AFTER_S = 60.0
_KINDS_MAX = 1000


class Sparse(logging.Filter):
    """Lets a message of the Kafka client through unless it said the like shortly before."""

    def __init__(self, again_after_s: float = AGAIN_AFTER_S) -> None:
        super().__init__()
        self._again_after_s = again_after_s
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether this message is written."""
        if record.name.partition(".")[0] != "kafka":
            return True
        kind = (record.name, str(record.msg))
        last = self._said.get(kind)
        if last is not None and record.created - last < self._again_after_s:
            return False
        if len(self._said) >= _KINDS_MAX:
            self._said.clear()
        self._said[kind] = record.created
        return True


def set_up(level: str) -> None:
    """Write this process's log to standard error, from this level up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    handler.addFilter(Sparse())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    kafka = logging.INFO if root.level <= logging.DEBUG else logging.WARNING
    logging.getLogger("kafka").setLevel(kafka)
