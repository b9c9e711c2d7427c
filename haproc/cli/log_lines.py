"""How ``haproc serve`` writes its log: from which level, as text or as JSON.

Fields that a line has beside its text are in the attribute `FIELDS` of its record, by name. As text
they are left out: the text says the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from haproc.audit import FIELDS

TEXT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"


class JsonLines(logging.Formatter):
    """Writes each record as one JSON object in one line: time, level, logger, message, fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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
    """Return the formatter for ``text`` or ``json``; raises ValueError for another name."""
    if name not in ("text", "json"):
        raise ValueError(f"HAPROC_LOG_FORMAT is {name!r}; it is text or json")
    return JsonLines() if name == "json" else logging.Formatter(TEXT)


def levels(text: str) -> Mapping[str, str]:
    """Return levels by logger; that of all others has the name ``""``.

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
