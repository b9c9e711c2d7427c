"""What ``haproc serve`` writes to its log, and what it keeps out of it.

While no broker answers, the Kafka client reports each attempt with several errors and tracebacks,
many a second; what that means for the HAProc its own lines say. So what the client says becomes one
line in a while, that tells how much there was. At DEBUG all of it is written, but for the client's
own DEBUG, in which it would write passwords: it never gets below INFO.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from typing import Any

AGAIN_AFTER_S = 60.0
_SHOWN_MAX = 300
"""Characters of a message that are written; chosen, not measured."""


class KafkaInOneLine(logging.Filter):
    """Turns the Kafka client's warnings and errors into one line of ours in a while."""

    def __init__(self, again_after_s: float = AGAIN_AFTER_S) -> None:
        super().__init__()
        self._again_after_s = again_after_s
        self._last: float | None = None
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether this message is written; one that is, is shortened."""
        if record.name.partition(".")[0] != "kafka":
            return True
        if self._last is not None and record.created - self._last < self._again_after_s:
            self._left_out += 1
            return False
        text = " ".join(record.getMessage().split())[:_SHOWN_MAX]
        error = record.exc_info[1] if record.exc_info else None
        more = f" ({self._left_out} more such messages since)" if self._left_out else ""
        cause = f": {type(error).__name__}: {error}" if error is not None else ""
        record.msg, record.args = f"the Kafka client says: {text}{cause}{more}", None
        record.name, record.levelno, record.levelname = "dmq", logging.WARNING, "WARNING"
        record.exc_info = record.exc_text = record.stack_info = None
        self._last, self._left_out = record.created, 0
        return True


def set_up(level: str) -> None:
    """Write this process's log to standard error, from this level up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    if root.level > logging.DEBUG:
        handler.addFilter(KafkaInOneLine())
    kafka = logging.INFO if root.level <= logging.DEBUG else logging.WARNING
    logging.getLogger("kafka").setLevel(kafka)


def unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Write what nobody handled, and where it arose, without texts that may be a client's."""
    error = context.get("exception")
    where = ""
    if isinstance(error, BaseException):
        frames = "".join(traceback.format_tb(error.__traceback__))
        where = f": {type(error).__name__}\n{frames}".rstrip()
    logging.getLogger("asyncio").error("%s%s", context.get("message", "an error"), where)
