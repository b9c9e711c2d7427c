"""The process that reads one body of Parquet: ``python -m haproc.route.parquet_worker``.

Its reader may end the process that it runs in: an exception of its C++ that nothing there catches.
So no HAProc imports it; this process does, once for each body. The first message on its standard
input names what to read, the file itself comes as a descriptor; each message, and the first, is
answered with the next piece, None behind the last one, or the exception that it came to. It ends
when its input does, whatever it is at then. The size of a file's rows is estimated by the file's
own figures, which may be wrong: so the process has no more memory than `MEMORY_BYTES_MAX`.
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
"""Chosen. Arrow takes one GiB of addresses at once, whatever it needs."""


def main() -> None:
    """Answer messages until there are no more."""
    for ended_by in (signal.SIGINT, signal.SIGTERM):  # of a whole group; the HAProc ends it
        signal.signal(ended_by, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a client could fill the disk with them
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    with suppress(OSError):  # where memory runs out, this process is the one that can be spared
        Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_end_with_input, daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints does not get between the answers
    with suppress(EOFError, BrokenPipeError):
        (descriptor, size, columns, bytes_max, form), _ = messages.read(sys.stdin.buffer)
        source = SpooledFile(lambda: descriptor, size, bytes_max, form.kind)
        found = pieces(source, columns, bytes_max, form, parquet_rows)
        while True:
            messages.write(answers, _next(found))
            messages.read(sys.stdin.buffer)
    os._exit(0)  # what is left in a buffer has no reader


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
