"""The process that works on long texts for a HAProc: ``python -m haproc.route.offload_worker``.

Messages come on its standard input and answers leave on its standard output; it ends when its input
does. It opens nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from haproc.pin import parameters
from haproc.reading import judge  # these two are what most messages need
from haproc.route import messages

__all__ = ["judge", "main", "parameters"]


def main() -> None:
    """Do the work in each message on the standard input, and answer it, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the HAProc ends it
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text must not get between the answers
    with suppress(EOFError, BrokenPipeError):
        while True:
            (work, values), sent = messages.read(sys.stdin.buffer)
            messages.write(answers, _answer(work, values), sent)


def _answer(work: Callable[..., Any], values: tuple[Any, ...]) -> tuple[bool, Any]:
    try:
        return True, work(*values)
    except Exception as error:
        return False, error


if __name__ == "__main__":
    main()
