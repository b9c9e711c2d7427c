"""The process that reads one body of Parquet: ``python -m haproc.route.parquet_worker``.

The Parquet reader may end its process, by a C++ exception that nothing catches. So no HAProc
imports it; this process does, once for each body. The first message on its standard input says how
to read, and the file comes as a descriptor. Each message, also the first, is answered with the
next piece, with None after the last one, or with an exception. The process ends when its input
ends, even in the middle of its work. The size of a file's rows is estimated by the file's own
figures, which may be wrong: so the process gets at most `MEMORY_BYTES_MAX`.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from haproc.engine.interface import Chunk
from haproc.route import messages
from haproc.route.rows.parquet_files import parquet_rows
from haproc.route.rows.reading import pieces
from haproc.route.spooled_file import SpooledFile

MEMORY_BYTES_MAX: Final = 3 << 30
"""The most bytes of memory that the process may take. Chosen. Arrow takes one GiB of addresses at
once, whatever it needs."""


def main() -> None:
    """Answer messages from the standard input with pieces of rows, until the input ends."""
    for ended_by in (signal.SIGINT, signal.SIGTERM):  # for the whole group
        signal.signal(ended_by, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a client could fill the disk with them
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    with suppress(OSError):  # if memory runs out, this process is to be killed first
        Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_end_with_input, daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not get between the answers
    with suppress(EOFError, BrokenPipeError):
        (descriptor, size, columns, bytes_max, form), _ = messages.read(sys.stdin.buffer)
        source = SpooledFile(lambda: descriptor, size, bytes_max, form.kind)
        found = pieces(source, columns, bytes_max, form, parquet_rows)
        while True:
            messages.write(answers, _next(found))
            messages.read(sys.stdin.buffer)
    os._exit(0)  # nobody reads the rest of a buffer


def _next(found: Iterator[Chunk]) -> Chunk | Exception | None:
    try:
        return next(found, None)
    except Exception as error:
        return error


def _end_with_input() -> None:
    gone = select.poll()
    gone.register(0, 0)  # its close is reported in any case
    gone.poll()
    os._exit(0)


if __name__ == "__main__":
    main()
