"""A program's working folder: made with its files, and removed whatever the program did in it."""

from __future__ import annotations

import os
import pwd
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path


def make_folder(
    folder: Path, files: Sequence[tuple[str, bytes]], user: str | None, tidy: Callable[[], None]
) -> None:
    """Make a program's working folder with these files, by their paths in it."""
    tidy()
    folder.mkdir(parents=True, mode=0o700)
    for name in ("tmp", "modules"):
        (folder / name).mkdir(mode=0o700)
    for name, data in files:
        (folder / name).write_bytes(data)
    if user is not None:
        entry = pwd.getpwnam(user)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        folder.parent.chmod(0o711)  # the user passes through, whatever HAProc's umask is


def remove_folder(folder: Path) -> None:
    """Remove a working folder with all that is in it; what cannot be removed stays.

    Folders inside of it are moved up before they are emptied: a program may have gone deeper than
    the stack reaches, or than a path or the open files do.
    """
    try:
        top = _opened(str(folder), None)
    except OSError:
        return
    try:
        below = _cleared(top, top)
        while below:
            name = below.pop()
            with suppress(OSError):
                inside = _opened(name, top)
                try:
                    below += _cleared(inside, top)
                finally:
                    os.close(inside)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with suppress(OSError):
        folder.rmdir()


def _opened(name: str, within: int | None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)


def _cleared(folder: int, top: int) -> list[str]:
    """Remove the files of a folder; return its folders, by the names that they have at the top."""
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                    continue
                _open_up(entry.name, folder)
                name = entry.name if folder == top else uuid.uuid4().hex
                if folder != top:
                    os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
                found.append(name)
    return found


def _open_up(name: str, within: int) -> None:
    """Let a folder be read that its owner may have shut; never follow a link."""
    there = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        Path(f"/proc/self/fd/{there}").chmod(0o700)
    finally:
        os.close(there)
