"""One writer at a time on this host, and a bell for the readers.

A small file beside the log. Its lock (flock, gone with the process that held it) is taken around
every transaction and checkpoint, for two reasons. SQLite's own lock is waited for in sleeps of up
to 100 ms; this one in sleeps of at most 1 ms. And SQLite before 3.51.3 can corrupt a log when one
process checkpoints while another one writes (sqlite.org/wal.html#walresetbug), which this rules
out.

The file's first 8 bytes are the bell: the log's end after the newest transaction. Waiting readers
of other processes look at it every few milliseconds, which costs one pread. It is a hint, not the
truth: a writer killed between its commit and the bell leaves the bell silent. The next 8 bytes
name the process that holds the lock, for error messages.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dmq.errors import LogUnavailableError

LOCK_TIMEOUT_S: Final = 5.0
"""How long a writer waits for another one; chosen, not measured."""
_SLEEP_FIRST_S: Final = 0.0001
_SLEEP_MAX_S: Final = 0.001
_NUMBER: Final = struct.Struct("<Q")


class WriterLock:
    """The lock file of one handle; ``held`` and ``ring`` are for the writing thread alone."""

    def __init__(self, path: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """Open or create the file; raises OSError."""
        self._path = path
        self._timeout_s = timeout_s
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; raises LogUnavailableError if it cannot be had in time."""
        self._acquire()
        try:
            os.pwrite(self._fd, _NUMBER.pack(os.getpid()), _NUMBER.size)
            yield
        except OSError as error:
            raise LogUnavailableError(f"{self._path}: {error.strerror}") from error
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def ring(self, end: int) -> None:
        """Tell the waiting readers of all processes that the log now ends here."""
        os.pwrite(self._fd, _NUMBER.pack(end), 0)

    def heard(self) -> int:
        """Return what was rung last (0 if nothing was). Safe on any thread."""
        data = os.pread(self._fd, _NUMBER.size, 0)
        return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else 0

    def close(self) -> None:
        """Close the file; it stays where it is, since other processes may hold it."""
        os.close(self._fd)

    def _acquire(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        sleep_s = _SLEEP_FIRST_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            if time.monotonic() >= deadline:
                raise LogUnavailableError(
                    f"process {self._holder()} has held the lock {self._path} for more "
                    f"than {self._timeout_s:g} s: is it stopped, or its disk stuck?"
                )
            time.sleep(sleep_s)
            sleep_s = min(sleep_s * 2, _SLEEP_MAX_S)

    def _holder(self) -> int | str:
        data = os.pread(self._fd, _NUMBER.size, _NUMBER.size)
        return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else "unknown"
