"""The audit log: refused requests, and operators' commands.

One JSON object a line, by the logger ``haproc.audit``. A line has the user, the door, the request's
method and route, and the reason in HAProc's own words: never a token, and nothing of a statement
but the names of its tables.

A door notes its request first (`CALLER`), so that the code on the request's way knows it. Refusals
are bounded (`Bounded`), so that no client can fill a disk with repeated requests.
"""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final

from haproc.failure import ErrorClass, RequestError

logger = logging.getLogger("haproc.audit")

FIELDS: Final = "fields"
"""The attribute of a logging record with its fields by name, for a log as JSON."""
WINDOW_S: Final = 60.0
LINES_MAX: Final = 30
"""The most refusals of one address that are written in a window. Chosen, not measured."""
ALL_LINES_MAX: Final = 600
"""The most refusals of all addresses in a window; 17 MB an hour at most. Chosen."""
WHY_MAX: Final = 500
"""The most characters of a reason: a table's name may be long."""
_REFUSALS: Final = frozenset({ErrorClass.UNAUTHENTICATED, ErrorClass.FORBIDDEN})


@dataclass(frozen=True, slots=True)
class Caller:
    """A request, as the audit log names it."""

    cluster: str = ""
    door: str = ""
    request: str = ""
    """Method and route, or the call of Spark Connect."""
    address: str = ""
    user: str = ""


CALLER: Final[ContextVar[Caller]] = ContextVar("caller")
"""The request under way; not set for work of the ring itself."""


def note_if_refusal(error: RequestError) -> None:
    """Write that the request under way was refused, if its user is unknown or may not do this.

    The refusal is written once, even if several parts of the code see the error.
    """
    if error.error_class in _REFUSALS and not error.audited:
        error.audited = True
        _write("refused", error_class=error.error_class, why=error.message[:WHY_MAX])


def note_command(outcome: str) -> None:
    """Write the outcome of the operator's command under way."""
    _write("command", outcome=outcome)


def _write(event: str, **more: str) -> None:
    fields = {"event": event, **asdict(CALLER.get(Caller())), **more}
    logger.info("%s", json.dumps(fields), extra={FIELDS: fields})


class Bounded(logging.Filter):
    """Limits the refusals of each address, and of all. Operators' commands all pass.

    The next written refusal has the number of those that were left out before it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun = float("-inf")
        self._passed: dict[str, int] = {}
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a line is to be written."""
        fields = getattr(record, FIELDS, {})
        if fields.get("event") != "refused":
            return True
        if not 0 <= record.created - self._begun < WINDOW_S:
            self._begun, self._passed = record.created, {}
        address = fields["address"]
        passed = self._passed.get(address, 0)
        if passed >= LINES_MAX or sum(self._passed.values()) >= ALL_LINES_MAX:
            self._left_out += 1
            return False
        self._passed[address] = passed + 1
        if self._left_out:
            fields["left_out_before"], self._left_out = self._left_out, 0
            record.args = (json.dumps(fields),)
        return True


class Lines(logging.Formatter):
    """Writes a line as JSON with its time."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": at, **getattr(record, FIELDS, {})})
