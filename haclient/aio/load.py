"""The load of a file into a table, in pieces: each is a write with its own id.

The ids are `<load id>.<number>`, and the pieces are the same each time. So an interrupted load can
go on under its load id:

- A piece that the ring has is skipped, if a server reports that it has met the load's write
  concern. Otherwise it is sent again under its id: that waits for the concern and appends nothing.
- A piece that the ring may have is sent again under its id, and not appended twice.
- A piece that was rejected at its place in the log (the table was gone, a constraint was violated)
  stays rejected under its id, even if the cause is corrected. It is sent under the next id,
  `<load id>.<number>.2` and so on, but only if a server reports that the earlier rejection is final
  on every cluster: so at most one of these ids is applied. Until then the load cannot go on.

The load id contains the load's start time, which bounds the age of its requests, and a digest of
the file and its target, so that no other load goes on under it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from haclient.aio.transport import StateLock, beside
from haclient.exceptions import DatabaseError, Failure, InterfaceError, Outcome, error_from
from haclient.files import MEDIA_TYPES, FilePiece, Loaded, LoadFile
from haclient.request_ids import made_s, new_request_id

if TYPE_CHECKING:
    from haclient.aio.connection import AsyncConnection

AT_ONCE: Final = 8
"""The number of pieces sent at the same time.

While a cluster writes four of them in one statement, the next four are sent and read.
"""
CLOCKS_DIFFER_S: Final = 60.0
"""The largest allowed difference between the clocks of the machine that began a load and of the
one that resumes it. Chosen, not measured."""
REJECTIONS_MAX: Final = 100
"""The most rejections of one piece; each costs one more request on resuming. Chosen."""
_SENT_AGAIN: Final = frozenset({"HAPROC_ROWS_GONE"})
"""Error classes of rejections after which a piece is sent again under the same id."""


class AsyncLoad:
    """One load of a file; call `load_pieces` once. ``id``: with this id it can be resumed.

    ``where``: the catalog and schema for a table name without them; None: those of the settings.
    """

    def __init__(
        self,
        connection: AsyncConnection,
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
        """Return the longest possible age of this load's requests; 0 for a new load."""
        if not self._resumed:
            return 0.0
        return max(0.0, time.time() - self._began_s) + CLOCKS_DIFFER_S

    async def load_pieces(self) -> Loaded:
        """Send the pieces that the ring does not have; DatabaseError for the first that fails.

        After a failure no further piece is begun, but later pieces may already be in the table.
        """
        self._on_progress(self._loaded)
        await beside(self._load, self._file.pieces(), self._at_once)
        return self._loaded

    async def _load(self, piece: FilePiece) -> None:
        request_id = f"{self.id}.{piece.number}"
        try:
            if self._resumed:
                request_id, known = await self._known(request_id)
                if known is not None:
                    self._note(piece, known.get("affected_rows"), skipped=1)
                    return
            result = await self._connection.send_rows(
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

    async def _known(self, first: str) -> tuple[str, dict[str, Any] | None]:
        """Return the id under which to send a piece, and its answer if the ring has it already.

        The answer is None if the piece must be sent. Raises DatabaseError if it cannot be sent now,
        because an earlier rejection is not final.
        """
        request_id = first
        for number in range(2, REJECTIONS_MAX + 1):
            answer = await self._connection.written(request_id, self._write_concern)
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
    """Return the error for a piece that cannot be sent under a new id: it may yet be applied."""
    return replace(
        failure,
        message=f"cluster {failure.cluster} rejected it ({failure.message}), but it is not known "
        "that every other cluster has, too: go on later, nothing was changed now",
        outcome=Outcome.UNKNOWN,
        hint="every cluster must have come so far; if a HAProc was restarted before it had, "
        "see haproc queue and the table for what became of the piece",
    )


def _began_s(load_id: str, digest: str) -> float:
    """Return the unix time in a load's id. Raises InterfaceError if the id is not of this file."""
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
