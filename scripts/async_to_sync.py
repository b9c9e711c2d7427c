#!/usr/bin/env python3
"""Write the blocking client from the asynchronous one: haclient/aio → haclient/sync.

The asynchronous source is the one that people edit. Its twin is the same text without `async` and
`await` and with other names, formatted by ruff. Only the transports are written twice.
`--check` writes nothing and fails if the committed twin is not what would be written.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

MODULES = ("connection", "cursor", "documents", "load", "ring", "view")
NAMES = {
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aio": "sync",
}
CLASS_PREFIX = re.compile(r"^Async(?=[A-Z])")
AWAITABLE = re.compile(r"\bAwaitable\[(\w+)\]")
AWAITABLE_IMPORT = re.compile(r"\bAwaitable, ")
NOTICE = "# Written by scripts/async_to_sync.py from haclient/aio/{name}.py; edit that one.\n"


def to_sync(source: str) -> str:
    """Return the blocking twin of an asynchronous module's text, not yet formatted by ruff."""
    source = AWAITABLE_IMPORT.sub("", AWAITABLE.sub(r"\1", source))
    lines = source.splitlines(keepends=True)
    edits: list[tuple[int, int, int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.NAME:
            continue
        (row, start), (_, end) = token.start, token.end
        if token.string in ("async", "await"):
            edits.append((row, start, end + 1, ""))  # with the space behind it
        elif (name := sync_name(token.string)) != token.string:
            edits.append((row, start, end, name))
    for row, start, end, text in reversed(edits):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + text + line[end:]
    return "".join(lines)


def sync_name(name: str) -> str:
    """Return the name that the blocking twin has for the asynchronous ``name``."""
    return NAMES.get(name) or CLASS_PREFIX.sub("", name)


def formatted(source: str, path: Path) -> str:
    """Return the text as ruff formats it; ``path``: the place where it will be stored."""
    for arguments in (("check", "--fix-only", "--quiet", "--select", "I"), ("format", "--quiet")):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(path), "-"]
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)
        source = done.stdout
    return source


def main() -> int:
    """Write all twins, or check them with ``--check``; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    root = Path(__file__).resolve().parent.parent / "haclient"
    stale = []
    for name in MODULES:
        target = root / "sync" / f"{name}.py"
        source = to_sync((root / "aio" / f"{name}.py").read_text())
        wanted = formatted(NOTICE.format(name=name) + source, target)
        if target.exists() and target.read_text() == wanted:
            continue
        stale.append(target.name)
        if not check:
            target.write_text(wanted)
    if check and stale:
        print(f"out of date: {', '.join(stale)}; run scripts/async_to_sync.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
