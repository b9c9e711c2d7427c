"""Reads the file of a body of rows, in the HAProc or in a process that inherits the file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable

from haproc.failure import busy
from haproc.route.rows.forms import NOT_OF_FORM, FormKind, RowsError
from haproc.route.rows.lines import BLOCK_BYTES


class SpooledFile(io.RawIOBase):
    """Reads the file of a body from its beginning, independently of other readers.

    ``descriptor`` is called for each read: after the file is closed, its number may belong to
    another file. ``bytes_max``: the most bytes of one read. ``kind``: the body's format, for
    errors.
    """

    def __init__(
        self, descriptor: Callable[[], int], size: int, bytes_max: int, kind: FormKind
    ) -> None:
        self._descriptor = descriptor
        self._kind = kind
        self._size = size
        self._bytes_max = max(bytes_max, BLOCK_BYTES)
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position of the next read, and return it."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, fewer at the end.

        Raises RowsError if ``size`` is more than allowed, and RequestError if the disk fails.
        """
        if not 0 <= size <= self._bytes_max:
            more = f"a record batch has more than {self._bytes_max} bytes: send smaller ones"
            raise RowsError([f"{more}, or it is {NOT_OF_FORM[self._kind]}"])
        try:
            data = os.pread(self._descriptor(), size, self._at)
        except (OSError, ValueError) as error:  # not the client's fault
            raise busy(f"the body cannot be read back from this HAProc's disk: {error}") from error
        self._at += len(data)
        return data
