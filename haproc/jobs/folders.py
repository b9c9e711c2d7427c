"""Reading a job's files from the folders that the configuration allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from haproc.failure import ErrorClass, RequestError, refused
from haproc.jobs.model import Role
from haproc.jobs.request import Upload, check_name


def read_files(
    paths: Sequence[tuple[Role, str]], folders: Sequence[Path], bytes_max: int
) -> list[Upload]:
    """Return the files; raises RequestError for one that is not there, or elsewhere."""
    found = []
    for role, path in paths:
        file = find(path, folders)
        try:
            with file.open("rb") as opened:
                data = opened.read(bytes_max + 1)
        except OSError as error:
            raise _not_there(path, str(error.strerror)) from error
        bytes_max -= len(data)
        if bytes_max < 0:
            raise too_large()
        found.append(Upload(role, check_name(file.name), data))
    return found


def find(path: str, folders: Sequence[Path]) -> Path:
    """Return where a path leads to, links followed, which is inside of one of the folders.

    Relative ones are looked for in each folder; ``file:`` and ``local:`` are as good as nothing.
    """
    try:
        parts = urlsplit(path)
    except ValueError:  # such as a bracket that is not closed
        raise _not_there(path, "it is neither a path nor a URL") from None
    if parts.scheme in ("file", "local") and parts.netloc in ("", "localhost"):
        path = unquote(parts.path)
    elif parts.scheme:
        raise _not_there(path, "only files of this machine are read")
    for folder in folders:
        try:
            file = Path(folder, path).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            continue
        if file.is_relative_to(folder.resolve()) and file.is_file():
            return file
    raise _not_there(path, "there is no such file in a folder of jobs.folders")


def too_large() -> RequestError:
    """Return the error of files that are too large together."""
    return refused(
        ErrorClass.TOO_LARGE,
        "the job's files are larger than jobs.files_bytes_max together",
        "put data where Spark reads them, or raise the limit",
    )


def _not_there(path: str, why: str) -> RequestError:
    return refused(
        ErrorClass.JOB_FILE,
        f"{path[:200]!r} cannot be run: {why}",
        "upload the file with the request, send it as code, or put it into jobs.folders",
    )
