"""The settings of the process of ``haproc serve``: its program's log, and its memory."""

from __future__ import annotations

import ctypes
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Final

import pyarrow as pa

from haproc.audit import FIELDS

# The log's format: its level, text or JSON.
#
# A log record may have fields beside its text, by name, in the attribute that `FIELDS` names. Text
# lines leave them out: the text contains the same.


TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonLines(logging.Formatter):
    """Writes each record of the program's log as a line with a JSON object.

    The object has time, level, logger, message and further fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record of the program's log."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line | getattr(record, FIELDS, {}), ensure_ascii=False, default=str)


def formatter(name: str) -> logging.Formatter:
    """Return the formatter of the program's log; raises ValueError for an unknown name.

    ``name``: ``text`` or ``json``.
    """
    if name not in ("text", "json"):
        raise ValueError(f"HAPROC_LOG_FORMAT is {name!r}; it is text or json")
    return JsonLines() if name == "json" else logging.Formatter(TEXT)


def levels(text: str) -> Mapping[str, str]:
    """Return the levels of the program's log by logger; the name ``""`` means all others.

    ``INFO,haproc.operations=DEBUG`` has one for all and one for a logger. Raises ValueError.
    """
    found = {"": "INFO"}
    for part in text.split(","):
        name, equals, level = part.strip().rpartition("=")
        if level not in logging.getLevelNamesMapping() or bool(name) != bool(equals):
            raise ValueError(
                f"HAPROC_LOG_LEVEL has {part.strip()!r}; write a level (DEBUG, INFO, WARNING, "
                "ERROR), or LOGGER=LEVEL, with commas between"
            )
        found[name] = level
    return found


# A HAProc's memory: no pandas is loaded, and unused blocks go back to the system.
#
# Parts and results pass through in blocks of megabytes, each copied a few times on several threads.
# An allocator that keeps freed blocks keeps those of each thread, and the gaps between them: more
# than all that is in use.


BLOCK_BYTES: Final = 1 << 20
"""The least size of memory blocks that come from the system one by one, and go back when they are
freed."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
ARENAS_MAX: Final = 2
"""The number of the allocator's heaps, which the threads share; by default eight for each core.
Measured: 293 MiB instead of 319 while 256 MiB are staged, in the same time."""


def give_back_blocks() -> None:
    """Have large blocks of memory go back to the system when they are freed, Arrow's, too.

    By default the C library stops doing so after the first such block is freed. A library other
    than GNU's is left as it is.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES)
        mallopt(_M_ARENA_MAX, ARENAS_MAX)


class _NoPandas(MetaPathFinder):
    """Makes imports of pandas fail, as if it were not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        """Raise ModuleNotFoundError for pandas; for all else None: other finders search it."""
        if fullname == "pandas":
            raise ModuleNotFoundError(f"a HAProc does without {fullname}", name=fullname)


def leave_pandas_out() -> None:
    """Make Arrow work without pandas, even if it is installed: 45 MiB that HAProc does not use.

    Arrow imports it when it first makes an array of Python values, and tries only once.
    """
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        try:
            pa.array([])
        finally:
            sys.meta_path.remove(finder)
