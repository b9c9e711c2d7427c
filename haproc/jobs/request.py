"""Jobs in the form of Apache Livy's batches: reads requests and files, writes answers."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from dmq import Json
from haproc.config.jobs import Jobs, UnknownFields
from haproc.failure import ErrorClass, RequestError, refused
from haproc.jobs.model import FileRole, Job, JobFile, JobLimits, Submission

# Jobs in the format of Livy's batches. No I/O.


def batch(job: Job, log: Sequence[str] = ()) -> dict[str, Json]:
    """Return a job in the JSON form in which Apache Livy shows a batch.

    ``log``: the lines of output to show. Fields that Livy does not have are below ``haproc``.
    """
    current = job.current
    return {
        "id": job.id,
        "name": job.submission.name,
        "owner": job.submission.user,
        "proxyUser": job.submission.proxy_user,
        "state": job.state.value,
        "appId": f"haproc-{job.id}-{current.number}" if current is not None else None,
        "appInfo": {"driverLogUrl": None, "sparkUiUrl": None},
        "log": list(log),
        "haproc": {
            "request_id": job.submission.request_id,
            "program": job.program(),
            "cluster": current.cluster if current is not None else job.submission.cluster,
            "attempts": len(job.attempts),
            "restarts_left": max(0, job.restarts_left),
            "submitted_ms": job.submission.at_ms,
            "started_ms": current.at_ms if current is not None else None,
            "ended_ms": job.final.at_ms if job.final is not None else None,
            "outcome": job.final.outcome.value if job.final is not None else None,
            "exit_code": job.final.code if job.final is not None else None,
            "why": job.final.why if job.final is not None else None,
        },
    }


# Reading a job's files from the folders that the configuration allows.


def read_files(
    paths: Sequence[tuple[FileRole, str]], folders: Sequence[Path], bytes_max: int
) -> list[Upload]:
    """Read the files at these paths; raises RequestError if one is missing or outside ``folders``.

    It is also raised if they have more than ``bytes_max`` together.
    """
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
    """Find the file that a request names in ``folders``, and return its path, links followed.

    Raises RequestError if it is not there. A relative path is searched in each folder. The schemes
    ``file:`` and ``local:`` are ignored.
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
    """Return the error for the files of a job that are too large together."""
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


# Livy's request for a batch, read into a submission. No I/O.
#
# Livy's fields are for a driver in a JVM. A field that fits a Python program beside a HAProc is
# used (``driverMemory`` is the bound of its memory). A field for a separate cluster, or without
# effect, is refused by name, so that no client believes it was used. By ``unknown_fields: ignore``
# HAProc ignores such a field, unless it names a part of the program or another Spark.


ARGS_MAX: Final = 1000
TEXT_BYTES_MAX: Final = 64 << 10
"""The most bytes of a job's arguments, settings and environment together."""
NAME_CHARS_MAX: Final = 200
INLINE_NAME: Final = "program.py"
PROGRAM_BYTES_MAX: Final = 1 << 20
"""The most bytes of a program. Measured: to parse it takes up to 600 times its size as memory, and
seconds."""

FIELDS: Final = (
    *("file", "code", "args", "pyFiles", "files", "conf", "name", "proxyUser", "requestId"),
    *("driverMemory", "className", "jars", "archives", "driverCores", "executorMemory"),
    *("executorCores", "numExecutors", "queue", "heartbeatTimeoutInSecond"),
)
"""The fields that a request may have: Livy's, and HAProc's own: ``code`` and ``requestId``."""
_REFUSED: Final = {
    "className": "a job is a Python program, and has no class to start",
    "jars": "JVM code would run in a driver of its own, which writes past the ring",
    "archives": "have the program unpack what it needs from files",
    "driverCores": "a job has one process; bound its time with conf haproc.cpu_s",
    "executorMemory": "the clusters' Spark servers have their executors already",
    "executorCores": "the clusters' Spark servers have their executors already",
    "numExecutors": "the clusters' Spark servers have their executors already",
    "queue": "HAProc has no queues",
    "heartbeatTimeoutInSecond": "a batch has no heartbeat",
}
NEVER_IGNORED: Final = frozenset(
    {
        *("className", "jars", "archives", "spark.master", "spark.remote", "spark.api.mode"),
        *("spark.archives", "spark.files", "spark.jars", "spark.plugins", "spark.submit.pyFiles"),
    }
)
"""Fields and settings that are refused in any case: if one were ignored, the program would be
another one, or run on another Spark than it names."""
_ENVIRONMENT: Final = ("haproc.env.", "spark.yarn.appMasterEnv.", "spark.kubernetes.driverEnv.")
OPTIONS: Final = ("consistency", "acceptable_offset_lag", "write_concern", "fanout", "timeout_s")
"""The options of the Spark Connect door that a job may set, as conf ``haproc.NAME``."""
_UNITS: Final = {"": 1 << 20, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_ID: Final = re.compile("[A-Za-z0-9._:-]{1,128}")
_TAKEN: Final = frozenset({"modules", "tmp"})
"""Names that no file may have: they exist in the working folder already."""
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ -]{0,127}")


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a job with its bytes, and what it is for."""

    role: FileRole
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request for a job asks for; the files of ``paths`` are not read yet.

    ``job``: the submission, still without files, request id and fingerprint.
    """

    paths: tuple[tuple[FileRole, str], ...]
    uploads: tuple[Upload, ...]
    job: Submission
    request_id: str | None
    ignored: tuple[str, ...] = ()
    """The names of fields and settings in the request that have no effect here."""


def wanted(body: Mapping[str, Any], uploads: Sequence[Upload], user: str, jobs: Jobs) -> Wanted:
    """Read the JSON body of a request for a job; raises RequestError if it is wrong."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # JSON may contain halves of characters
        raise _bad("the request holds text that is no Unicode") from None
    ignored = _Ignored(jobs)
    for field, why in _REFUSED.items():
        if body.get(field) not in (None, [], ""):
            ignored.take(field, why)
    for field in body.keys() - set(FIELDS):
        ignored.take(field[:80], "HAProc and Livy know no such field")
    proxy = _text(body, "proxyUser")
    if proxy not in (None, user):
        raise _field("proxyUser", f"a job acts as who submits it, who is {user}")
    program, given = _program(body, uploads)
    paths = [*program]
    paths += [(FileRole.MODULE, path) for path in _texts(body, "pyFiles")]
    paths += [(FileRole.DATA, path) for path in _texts(body, "files")]
    for upload in given:
        check_name(upload.name)
    settings = _settings(body, jobs, ignored)
    args = tuple(_texts(body, "args"))
    size = sum(len(each.encode()) for each in args)
    size += sum(len(key) + len(value) for key, value in settings.all)
    if len(args) > ARGS_MAX or size > TEXT_BYTES_MAX:
        raise _bad(f"args and conf may be {ARGS_MAX} texts, of {TEXT_BYTES_MAX} bytes together")
    if any("\0" in each for each in (*args, *settings.environment.values())):
        raise _bad("args and variables of the environment may hold no NUL")
    name = _text(body, "name") or settings.name
    if name is not None and len(name) > NAME_CHARS_MAX:
        raise _bad(f"name may have {NAME_CHARS_MAX} characters")
    request_id = _text(body, "requestId") or settings.request_id
    if request_id is not None and not _ID.fullmatch(request_id):
        raise _bad("requestId must be 1 to 128 of A-Z a-z 0-9 . _ : -")
    job = Submission(
        user=user,
        request_id="",
        name=name,
        args=args,
        confs=tuple(sorted(settings.confs.items())),
        options=tuple(sorted(settings.options.items())),
        environment=tuple(sorted(settings.environment.items())),
        files=(),
        limits=settings.limits(body, jobs, ignored),
        restarts=settings.restarts,
        fingerprint="",
        proxy_user=proxy,
    )
    names = tuple(sorted(ignored.names))
    return Wanted(tuple(paths), tuple(given), job, request_id, names)


class _Ignored:
    """Collects the names of a request's fields and settings that have no effect on a job.

    The configuration says if such fields may be ignored.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._allowed = jobs.unknown_fields is UnknownFields.IGNORE
        self.names: set[str] = set()

    def may(self, name: str) -> bool:
        """Return True if a field or setting may be ignored, and add its name to ``names`` then."""
        never = name in NEVER_IGNORED or name.startswith(("haproc.", "spark.jars."))
        if self._allowed and not never:
            self.names.add(name)
        return self._allowed and not never

    def take(self, name: str, why: str) -> None:
        """Ignore a field or setting; raises RequestError if it must not be ignored."""
        if not self.may(name):
            raise _field(name, why)


def _program(
    body: Mapping[str, Any], uploads: Sequence[Upload]
) -> tuple[list[tuple[FileRole, str]], list[Upload]]:
    """Return the program's path, or none, and all files in the request, ``code`` as one of them.

    Raises RequestError unless exactly one program is given.
    """
    path, code = _text(body, "file"), _text(body, "code")
    uploaded = [each for each in uploads if each.role is FileRole.PROGRAM]
    given = [*uploads]
    if code is not None:
        given.append(Upload(FileRole.PROGRAM, INLINE_NAME, code.encode("utf-8", "replace")))
    if (path is not None) + (code is not None) + len(uploaded) != 1:
        raise _bad("a job is one program: give file, code, or upload it as the part file")
    return ([(FileRole.PROGRAM, path)] if path is not None else []), given


@dataclass(slots=True)
class _Settings:
    """The settings in the field ``conf`` of a request, by their kinds."""

    confs: dict[str, str]
    options: dict[str, str]
    environment: dict[str, str]
    numbers: dict[str, float]
    memory: str | None = None
    restarts: int = 0
    name: str | None = None
    request_id: str | None = None

    @property
    def all(self) -> list[tuple[str, str]]:
        """All settings that are stored in the submission."""
        return [*self.confs.items(), *self.options.items(), *self.environment.items()]

    def limits(self, body: Mapping[str, Any], jobs: Jobs, ignored: _Ignored) -> JobLimits:
        """Return the job's limits: the configuration's, or lower ones that the request names."""
        memory = _text(body, "driverMemory") or self.memory
        most = jobs.memory_bytes_max
        wanted = memory_bytes(memory) if memory is not None else most
        if wanted > most and not ignored.may("driverMemory"):
            raise _bad(f"driverMemory {memory} is more than jobs.memory_bytes_max ({most})")
        return JobLimits(
            min(wanted, most),
            self._seconds("haproc.cpu_s", jobs.cpu_s),
            self._seconds("haproc.wall_s", jobs.wall_s),
        )

    def _seconds(self, name: str, most: float) -> float:
        wanted = self.numbers.get(name, most)
        if not 0 < wanted <= most:
            raise _bad(f"conf {name} must be above 0 and at most {most:g}")
        return wanted


def _settings(body: Mapping[str, Any], jobs: Jobs, ignored: _Ignored) -> _Settings:
    given = body.get("conf") or {}
    if not isinstance(given, dict):
        raise _bad("conf must be an object")
    found = _Settings({}, {}, {}, {})
    for key, value in given.items():
        if not isinstance(value, str | int | float):
            raise _bad(f"conf {key} must be text, a number, true or false")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        _setting(found, key, text, jobs, ignored)
    return found


def _setting(found: _Settings, key: str, text: str, jobs: Jobs, ignored: _Ignored) -> None:
    prefix = next((each for each in _ENVIRONMENT if key.startswith(each)), None)
    if prefix is not None:
        name = key.removeprefix(prefix)
        if name not in jobs.environment:
            raise _field(key, f"jobs.environment does not list {name}")
        found.environment[name] = text
    elif key.startswith("spark.sql."):
        found.confs[key] = text
    elif key in ("spark.driver.memory", "haproc.memory"):
        found.memory = text
    elif key == "spark.app.name":
        found.name = text
    elif key == "haproc.request_id":
        found.request_id = text
    elif key == "haproc.restart":
        digits = text.isascii() and text.isdigit() and len(text) < 10
        if not digits or int(text) > jobs.restarts_max:
            raise _bad(f"conf haproc.restart must be 0 to {jobs.restarts_max} (jobs.restarts_max)")
        found.restarts = int(text)
    elif key in ("haproc.cpu_s", "haproc.wall_s"):
        try:
            found.numbers[key] = float(text)
        except ValueError:
            raise _bad(f"conf {key} must be a number of seconds") from None
    elif key.removeprefix("haproc.") in OPTIONS and key.startswith("haproc."):
        if not re.fullmatch("[A-Za-z0-9._-]+", text):
            raise _bad(f"conf {key} is {text[:40]!r}")
        found.options[key] = text
    elif key in ("spark.master", "spark.remote", "spark.submit.deployMode", "spark.api.mode"):
        ignored.take(key, "a job runs through the ring, not on a master of its own")
    else:
        ignored.take(key, "the session's settings begin with spark.sql.; others are the clusters'")


def memory_bytes(text: str) -> int:
    """Return the number of bytes that a text such as ``512m`` or ``2g`` means.

    Without a unit they are MiB, as in Spark.
    """
    found = re.fullmatch(r"(\d{1,9})([bkmgt]?)b?", text.strip().lower())
    if found is None or int(found[1]) == 0:
        raise _bad(f"{text[:40]!r} is no amount of memory, such as 512m or 2g")
    return int(found[1]) * _UNITS[found[2]]


def check_name(name: str) -> str:
    """Return the name of a file; raises RequestError if it contains folders or is no name."""
    if not _FILE_NAME.fullmatch(name):
        raise _bad(f"{name[:80]!r} is no name of a file: letters, digits, '.', '_', '-', ' '")
    if name in _TAKEN:
        raise _bad(f"a job's folder has {name!r} already: give the file another name")
    return name


def check_program(upload: Upload) -> None:
    """Raise RequestError for a file that is no Python program, or sets its own Spark master."""
    if upload.role is not FileRole.PROGRAM:
        return
    if not upload.name.endswith(".py"):
        raise _field("file", f"{upload.name!r} is no Python program (.py)")
    if len(upload.data) > PROGRAM_BYTES_MAX:
        raise _field("file", f"{upload.name!r} has more than {PROGRAM_BYTES_MAX} bytes")
    try:
        tree = ast.parse(upload.data, upload.name)
    except (SyntaxError, ValueError) as error:
        raise _bad(f"{upload.name} is no Python: {str(error)[:200]}") from None
    except (RecursionError, MemoryError):  # the parser raises the latter when its own stack is full
        raise _bad(f"{upload.name} nests too deeply to be read") from None
    for node in ast.walk(tree):
        if _sets_master(node):
            line = getattr(node, "lineno", 0)
            raise refused(
                ErrorClass.JOB_MASTER,
                f"line {line} of {upload.name} asks for a Spark master of its own, which would "
                "write past the ring",
                "leave .master(…) out: SparkSession.builder.getOrCreate() is the ring's session",
            )


def _sets_master(node: ast.AST) -> bool:
    """True if a part of a program is a call such as ``….builder….master(…)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    if node.func.attr != "master":
        return False
    below: ast.AST = node.func.value
    while isinstance(below, ast.Call | ast.Attribute):
        if isinstance(below, ast.Attribute) and below.attr == "builder":
            return True
        below = below.func if isinstance(below, ast.Call) else below.value
    return False


def submission(job: Submission, files: Sequence[Upload], request_id: str) -> Submission:
    """Return the submission ``job`` with its files, request id and fingerprint.

    Raises RequestError if two files have the same name.
    """
    names = [(each.role is FileRole.MODULE, each.name) for each in files]
    if len(set(names)) < len(names):
        raise _bad("two files have the same name")
    found = tuple(
        JobFile(each.role, each.name, len(each.data), hashlib.sha256(each.data).hexdigest())
        for each in files
    )
    parts = [
        [[each.role.value, each.name, each.sha256] for each in found],
        *(job.args, job.confs, job.options, job.environment),
        [job.limits.memory_bytes, job.limits.cpu_s, job.limits.wall_s],
        *(job.restarts, job.name),
    ]
    fingerprint = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return replace(job, request_id=request_id, files=found, fingerprint=fingerprint)


def _text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise _bad(f"{name} must be text")
    return value


def _texts(body: Mapping[str, Any], name: str) -> list[str]:
    value = body.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _bad(f"{name} must be a list of texts")
    return value


def _bad(message: str) -> RequestError:
    return refused(ErrorClass.BAD_REQUEST, message)


def _field(name: str, why: str) -> RequestError:
    return refused(ErrorClass.JOB_FIELD, f"{name} is not for jobs of this ring: {why}")
