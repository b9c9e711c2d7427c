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
"""The attribute of a logging.LogRecord that holds the audit line's fields by name."""
WINDOW_S: Final = 60.0
LINES_MAX: Final = 30
"""The most refusals of one client address that are written in WINDOW_S. Chosen, not measured."""
ALL_LINES_MAX: Final = 600
"""The most refusals of all addresses that are written in WINDOW_S: 17 MB an hour at most.
Chosen."""
WHY_MAX: Final = 500
"""The most characters of a refusal's reason: a table's name in it may be long."""
_REFUSALS: Final = frozenset({ErrorClass.UNAUTHENTICATED, ErrorClass.FORBIDDEN})


@dataclass(frozen=True, slots=True)
class Caller:
    """The request that is being answered, with the facts about it that an audit line shows."""

    cluster: str = ""
    door: str = ""
    request: str = ""
    """HTTP method and route, or the name of Spark Connect's call."""
    address: str = ""
    user: str = ""


CALLER: Final[ContextVar[Caller]] = ContextVar("caller")
"""The request that the running code works for; not set in the ring's own background work."""


def note_if_refusal(error: RequestError) -> None:
    """Write an audit line if ``error`` refuses a request for its token or its user's rights.

    Other errors are ignored. The line is written once, even if several parts of the code see the
    error.
    """
    if error.error_class in _REFUSALS and not error.audited:
        error.audited = True
        _write("refused", error_class=error.error_class, why=error.message[:WHY_MAX])


def note_command(outcome: str) -> None:
    """Write an audit line with the outcome of the operator's command that is being answered."""
    _write("command", outcome=outcome)


def _write(event: str, **more: str) -> None:
    fields = {"event": event, **asdict(CALLER.get(Caller())), **more}
    logger.info("%s", json.dumps(fields), extra={FIELDS: fields})


class Bounded(logging.Filter):
    """Leaves out refusals beyond LINES_MAX for one address, or ALL_LINES_MAX for all addresses.

    The next refusal that is written has the number of those left out before it. Lines about
    operators' commands are never left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._begun = float("-inf")
        self._passed: dict[str, int] = {}
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if ``record`` is to be written to the audit log."""
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
    """Formats an audit line: one JSON object with the time and the line's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the audit line of ``record`` as JSON."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": at, **getattr(record, FIELDS, {})})
