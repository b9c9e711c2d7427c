# Written by scripts/async_to_sync.py from haclient/aio/load.py; edit that one.
"""Loads a file into a table: in pieces, each a write of its own under an id of its own.

The ids are `<load id>.<number>`, and the pieces are the same each time, so a load that broke off
goes on under its id: what the ring has is passed over, and what it may have is not appended twice.
A piece that was rejected at its place in the log (its table was gone, a constraint was against it)
stays so under its id, whatever was put right since. A load that goes on sends it under the next id,
`<load id>.<number>.2` and so on: only if a server reports that the rejection of the one before is
final on every cluster, so at most one of them is applied. Until then the load cannot go on. A piece
is passed over only if a server reports that it has met the load's write concern; else it is sent
again under its id, which waits for that and appends nothing. The load id holds when the load began,
which is how old a request of it may be, and a digest of the file and of where it goes, so that
nothing else goes on under it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from haclient.exceptions import DatabaseError, Failure, InterfaceError, Outcome, error_from
from haclient.files import MEDIA_TYPES, FilePiece, Loaded, LoadFile
from haclient.request_ids import made_s, new_request_id
from haclient.sync.transport import StateLock, beside

if TYPE_CHECKING:
    from haclient.sync.connection import Connection

AT_ONCE: Final = 8
"""Pieces under way: while a cluster writes four in one statement, the next four are sent and read.
"""
CLOCKS_DIFFER_S: Final = 60.0
"""The most that the clocks of two machines differ: one began a load, one resumes it. Chosen."""
REJECTIONS_MAX: Final = 100
"""Of one piece; each is a question more when the load goes on. Chosen."""
_SENT_AGAIN: Final = frozenset({"HAPROC_ROWS_GONE"})
"""Rejections after which a server appends the rows under the same id, when they are sent again."""


class Load:
    """One load; `run` it once. ``id`` names it.

    ``where``: the catalog and schema of a table whose name has none, else the settings'.
    """

    def __init__(
        self,
        connection: Connection,
        file: LoadFile,
        table: str,
        *,
        resume: str | None = None,
        where: tuple[str | None, str | None] | None = None,
        at_once: int = AT_ONCE,
        timeout_s: float | None = None,
        write_concern: str | None = None,
        on_progress: Callable[[Loaded], None] = lambda loaded: None,
    ) -> None:
        self._connection = connection
        self._file = file
        self._table = table
        self._resumed = resume is not None
        self._at_once = at_once
        self._timeout_s = timeout_s
        self._write_concern = write_concern
        self._on_progress = on_progress
        self._lock = StateLock()
        self._where = where or (connection.settings.catalog, connection.settings.schema)
        digest = file.digest(table, self._where)
        self.id = resume or f"{new_request_id()}.{digest}"
        self._began_s = _began_s(self.id, digest)
        self._loaded = Loaded(self.id, file.size)

    @property
    def age_s(self) -> float:
        """The longest time since one of its requests may have been sent; 0 for a new load."""
        if not self._resumed:
            return 0.0
        return max(0.0, time.time() - self._began_s) + CLOCKS_DIFFER_S

    def run(self) -> Loaded:
        """Load what the ring has not; raises DatabaseError for the first piece that failed.

        Pieces behind that may be in the table, too; none is begun any more.
        """
        self._on_progress(self._loaded)
        beside(self._load, self._file.pieces(), self._at_once)
        return self._loaded

    def _load(self, piece: FilePiece) -> None:
        request_id = f"{self.id}.{piece.number}"
        try:
            if self._resumed:
                request_id, known = self._known(request_id)
                if known is not None:
                    self._note(piece, known.get("affected_rows"), skipped=1)
                    return
            result = self._connection.send_rows(
                self._table,
                piece.body,
                MEDIA_TYPES[self._file.form.kind],
                piece.query,
                request_id=request_id,
                timeout_s=self._timeout_s,
                age_s=self.age_s,
                write_concern=self._write_concern,
                where=self._where,
            )
        except DatabaseError as error:
            message = f"{self._file.path.name}, from {piece.begins} on: {error.message}"
            hint = " · ".join(filter(None, (error.hint, f"go on with {self.id}")))
            failure = replace(error.failure, message=message, hint=hint)
            raise error_from(failure, request_id) from error
        self._note(piece, result.ha.get("affected_rows"))

    def _known(self, first: str) -> tuple[str, dict[str, Any] | None]:
        """Return the id that counts of a piece, and its answer if nothing is left to do.

        Raises DatabaseError if no id counts as yet.
        """
        request_id = first
        for number in range(2, REJECTIONS_MAX + 1):
            answer = self._connection.written(request_id, self._write_concern)
            if not isinstance(answer, Failure):
                met = answer is not None and answer.get("concern_met") is True
                return request_id, answer if met else None
            if answer.error_class in _SENT_AGAIN:
                break
            if not answer.final:
                raise error_from(_undecided(answer), request_id)
            request_id = f"{first}.{number}"
        return request_id, None

    def _note(self, piece: FilePiece, rows: object, skipped: int = 0) -> None:
        with self._lock:
            so_far = self._loaded
            self._loaded = replace(
                so_far,
                bytes=so_far.bytes + piece.file_bytes,
                rows=so_far.rows + (rows if isinstance(rows, int) else 0),
                pieces=so_far.pieces + 1,
                skipped=so_far.skipped + skipped,
            )
            self._on_progress(self._loaded)


def _undecided(failure: Failure) -> Failure:
    """Return why a piece cannot be sent anew: other clusters may yet apply it as it was."""
    return replace(
        failure,
        message=f"cluster {failure.cluster} rejected it ({failure.message}), but it is not known "
        "that every other cluster has, too: go on later, nothing was changed now",
        outcome=Outcome.UNKNOWN,
        hint="every cluster must have come so far; if a HAProc was restarted before it had, "
        "see haproc queue and the table for what became of the piece",
    )


def _began_s(load_id: str, digest: str) -> float:
    """Return when a load began, by its id; raises InterfaceError if it is not one of this file."""
    made, _, of_file = load_id.partition(".")
    try:
        began_s = made_s(made)
    except ValueError:
        raise InterfaceError(f"{load_id!r} is not the id of a load") from None
    if of_file != digest:
        raise InterfaceError(
            f"{load_id} is a load of another file, into another table or schema, or read "
            "otherwise: give what it began with (file, table, catalog, schema, form)"
        )
    return began_s
