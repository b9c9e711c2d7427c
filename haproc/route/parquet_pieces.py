"""The pieces of a body of Parquet, from a process that reads nothing but this one body.

A file of which a few bytes are wrong can end the process that reads it: Arrow's C++ was found to
throw where nothing catches. So that is no HAProc but a worker (`haproc.route.parquet_worker`), and
its end is that of the rows alone, which are refused. It reads a piece when it is asked for one, so
no more is in its memory or here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any, Final

from haproc.engine.interface import Chunk, Column
from haproc.failure import RequestError, busy
from haproc.route.offload import Worker, WorkerDiedError
from haproc.route.rows.forms import NOT_OF_FORM, Form, RowsError
from haproc.route.rows.reading import misfit

WORKER: Final = "haproc.route.parquet_worker"
OWN_DOING: Final = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
)
"""By which a process ends for what it did. By others it is ended, which says nothing of rows."""


class ParquetPieces(Iterator[Chunk]):
    """Gives the pieces, or raises RequestError; blocks. `close` it: that ends the process.

    ``descriptor`` is the body's file, of which it has a descriptor of its own.
    """

    def __init__(
        self, descriptor: int, size: int, columns: Sequence[Column], bytes_max: int, form: Form
    ) -> None:
        self._file: int | None = os.dup(descriptor)
        self._worker = Worker(WORKER, (self._file,))
        self._asked: Any = (self._file, size, columns, bytes_max, form)
        self._form = form

    def __next__(self) -> Chunk:
        """Return the next piece."""
        try:
            found = self._worker.exchange(self._asked)
        except WorkerDiedError as error:
            self.close()
            raise self._died(error) from error
        self._asked = None
        if isinstance(found, Chunk):
            return found
        self.close()
        raise StopIteration if found is None else found

    def close(self) -> None:
        """End the process; harmless if it is over."""
        self._worker.end()  # no other one begins from here on, with whatever has the number then
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _died(self, error: WorkerDiedError) -> RequestError:
        ended_by = -(error.returncode or 0)
        if ended_by in OWN_DOING:
            name = signal.Signals(ended_by).name
            said = f"reading it ended the process that did ({name}), so it is damaged"
            return misfit(RowsError([f"{NOT_OF_FORM[self._form.kind]}: {said}"]))
        return busy(f"the process that read the rows was ended, or none could be begun: {error}")
