"""The terminal of `haclient`: a line that is written over and over, a spinner, the pager.

Nothing of it is shown where nobody looks: in a pipe, a file, or with ``--quiet``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Final, TextIO

from haclient.output import rows_of_screen

PAGER: Final = "less -FRX"
"""What shows a long result if $PAGER does not say it, and less is there."""
SPINS_AFTER_S: Final = 0.5
"""A statement that ends before shows no spinner, which would only flicker. Chosen."""
_SPIN_S: Final = 0.1
_SPINNER: Final = "|/-\\"


class Line:
    """One line of a terminal, written over and over."""

    def __init__(self, out: TextIO, shown: bool) -> None:
        self._out = out
        self._shown = shown
        self._width = 0

    def write(self, text: str) -> None:
        """Show this text instead of the one before."""
        if self._shown:
            self._out.write("\r" + text.ljust(self._width))
            self._out.flush()
            self._width = max(self._width, len(text))

    def end(self) -> None:
        """Take the line away."""
        if self._width:
            self.write("")
            self._out.write("\r")
            self._out.flush()
            self._width = 0


class Waiting:
    """Shows that something runs, and for how long; use it with ``with``.

    Other lines for the same terminal go through `say`, so that they do not mix.
    """

    def __init__(self, out: TextIO, shown: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._shown = shown
        self._now = now
        self._line = Line(out, shown)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._spinner: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if self._shown:
            self._spinner = threading.Thread(target=self._spin, args=(self._now(),), daemon=True)
            self._spinner.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ended.set()
        if self._spinner is not None:
            self._spinner.join()

    def say(self, text: str) -> None:
        """Write a line of its own."""
        with self._lock:
            self._line.end()
            print(text, file=self._out, flush=True)

    def _spin(self, began: float) -> None:
        turn, ended = 0, self._ended.wait(SPINS_AFTER_S)
        while not ended:
            with self._lock:
                sign = _SPINNER[turn % len(_SPINNER)]
                self._line.write(f"{sign} {self._now() - began:.1f} s (Ctrl-C cancels)")
            turn += 1
            ended = self._ended.wait(_SPIN_S)
        with self._lock:
            self._line.end()


def pager_of(environment: Mapping[str, str]) -> list[str]:
    """Return the command of the pager: $PAGER, else less, if it is there; empty if there is none.

    An empty $PAGER means that nothing is paged.
    """
    command = shlex.split(environment.get("PAGER", PAGER))
    return command if command and shutil.which(command[0]) else []


def show(text: str, out: TextIO) -> None:
    """Write a text for people; one that is longer than the terminal goes through the pager."""
    size = shutil.get_terminal_size()
    if out.isatty() and rows_of_screen(text, size.columns) >= size.lines:
        command = pager_of(os.environ)
        if command and _paged(text, command):
            return
    out.write(text)
    out.flush()


def _paged(text: str, command: list[str]) -> bool:
    """Return whether the pager could be started; it is left to the user to end it."""
    with _ctrl_c_left_to_pager():
        try:
            # Its reader may have had enough before all is written, which is no error.
            subprocess.run(command, input=text, text=True, check=False)
        except OSError as error:
            print(f"haclient: the pager {command[0]}: {error.strerror}", file=sys.stderr)
            return False
    return True


@contextmanager
def _ctrl_c_left_to_pager() -> Iterator[None]:
    """Do not end at Ctrl-C: the pager gets it, too. It does not inherit a function as handler."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
