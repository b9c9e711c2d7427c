"""What is remembered of an operation for as long as its request may be repeated: facts.

Never what it says or brings: of that a window of requests would be gigabytes, and it is in the log.
"""

from __future__ import annotations

from dataclasses import dataclass

from haproc.classify.model import OperationClass
from haproc.engine.arrow import rows_in
from haproc.engine.statement import ArrowRows
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, QueryWrite


@dataclass(frozen=True, slots=True)
class Facts:
    """See the module, and `Operation`, whose fields these are if nothing else is said."""

    id: str
    user: str
    fingerprint: str
    operation_class: OperationClass
    origin: str
    unmarked: bool
    created_ms: int
    rows: int | None
    """How many rows it brings; None if its record does not say."""
    of_session: bool
    """Whether its query rests on its client's session."""
    entries: int | None
    """On how many entries of that session's journal; None: logs of before do not say."""
    begun: str
    """See `SessionRef.begun`; empty: logs of before do not say."""

    @classmethod
    def of(cls, op: Operation) -> Facts:
        """Return what is remembered of an operation."""
        write, rows = op.write, op.insert.rows if op.insert is not None else None
        of_session, entries, begun = False, None, ""
        match write:
            case ArrowRows() if write.rows:
                rows = rows_in(write.rows)
            case QueryWrite() | ComputedPlan() if write.session is not None:
                of_session, entries, begun = True, write.session.entries, write.session.begun
            case QueryWrite():
                of_session = write.of_session
        return cls(
            op.id,
            op.user,
            op.fingerprint,
            op.operation_class,
            op.origin,
            op.unmarked,
            op.created_ms,
            rows,
            of_session,
            entries,
            begun,
        )

    @property
    def key(self) -> tuple[str, str]:
        """What its request is known by: user and id."""
        return self.user, self.id
