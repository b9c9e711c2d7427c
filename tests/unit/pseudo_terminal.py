"""A program on a pseudo-terminal: the keys that a person types, and the screen."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from types import TracebackType

WAIT_S = 60.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TAKE_TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
# Tests that run in the background have SIGINT ignored, and hand that on.
signal.signal(signal.SIGINT, signal.default_int_handler)
from haclient import cli
sys.exit(cli.main(sys.argv[1:]))
"""


class FakeTerminal(io.StringIO):
    """Text in memory that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class HaclientTerminal:
    """`haclient` with these arguments, on a terminal of this size; use it in a ``with`` block."""

    def __init__(
        self, *arguments: str, environment: Mapping[str, str], rows: int = 24, columns: int = 80
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        plain = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**inherited, **plain, **environment},
            start_new_session=True,
        )
        os.close(theirs)
        self._seen = ""

    def __enter__(self) -> HaclientTerminal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def type(self, keys: str) -> None:
        """Press these keys."""
        os.write(self._ours, keys.encode())

    def enter(self, keys: str) -> None:
        """Wait for the prompt, and press these keys."""
        self.see("haclient>")
        self.type(keys)

    def see(self, text: str) -> str:
        """Wait until this text was shown; return everything that was shown since the last call."""
        deadline = time.monotonic() + WAIT_S
        while text not in (seen := _CONTROL.sub("", self._seen)):
            assert time.monotonic() < deadline, f"{text!r} was not shown: {self._seen!r}"
            if not self._read(0.1) and self._process.poll() is not None:
                raise AssertionError(f"it ended without {text!r}: {self._seen!r}")
        shown, end, self._seen = seen.partition(text)
        return shown + end

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        deadline = time.monotonic() + WAIT_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"it goes on: {self._seen!r}"
            self._read(0.1)
        return self._process.returncode

    def _read(self, for_s: float) -> bool:
        if not select.select([self._ours], [], [], for_s)[0]:
            return False
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self._seen += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)
