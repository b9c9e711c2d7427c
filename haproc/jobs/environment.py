"""The environment of a job's program: nothing of HAProc's own but what is listed. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from haproc.jobs.model import Job, JobFile, Role

SYSTEM_PATH: Final = "/usr/local/bin:/usr/bin:/bin"
JOB_VARIABLE = "HAPROC_JOB_ID"
ATTEMPT_VARIABLE = "HAPROC_JOB_ATTEMPT"
AFTER_VARIABLE = "HACLIENT_AFTER_OFFSET"


def environment(
    job: Job,
    attempt: int,
    folder: Path,
    ring: Mapping[str, str],
    passed: Mapping[str, str],
    python: Path,
) -> dict[str, str]:
    """Return all that the program finds in its environment.

    ``passed``: what jobs may see of HAProc's; ``ring``: where the ring is, and the token.
    """
    confs = dict(job.asked.confs)
    return {
        **passed,
        **dict(job.asked.environment),
        "PATH": f"{python.parent}:{SYSTEM_PATH}",
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": ":".join(str(each) for each in module_path(folder, job.asked.files)),
        "PYTHONUNBUFFERED": "1",
        **ring,
        "SPARK_CONNECT_MODE_ENABLED": "1",
        "PYSPARK_REMOTE_INIT_CONF_LEN": "1",
        "PYSPARK_REMOTE_INIT_CONF_0": json.dumps(confs),
        JOB_VARIABLE: str(job.id),
        ATTEMPT_VARIABLE: str(attempt),
    }


def module_path(folder: Path, files: Sequence[JobFile]) -> list[Path]:
    """Return where the program's imports are looked for: a folder, and each archive."""
    modules = folder / "modules"
    archives = [each.name for each in files if each.role is Role.MODULE]
    return [modules, *(modules / name for name in archives if not name.endswith(".py"))]


def ring_variables(
    port: int,
    servers: Sequence[str],
    token: str,
    options: Sequence[tuple[str, str]],
    after_offset: int,
) -> dict[str, str]:
    """Return what PySpark and haclient find the ring by: a port on loopback, client doors.

    ``after_offset``: so many records of the log are to show in what the program reads.
    """
    fresh = {"haproc.after_offset": str(after_offset)} if after_offset else {}
    return {
        "SPARK_REMOTE": remote_url(port, token, sorted({**fresh, **dict(options)}.items())),
        "HACLIENT_SERVERS": ",".join(servers),
        "HACLIENT_TOKEN": token,
        AFTER_VARIABLE: str(after_offset),
    }


def remote_url(port: int, token: str, options: Sequence[tuple[str, str]]) -> str:
    """Return the URL by which a job finds the ring: a port on loopback, and its token.

    The host's name is one for which PySpark sends a token without TLS.
    """
    given = "".join(f";{key.replace('.', '-')}={quote(value)}" for key, value in options)
    return f"sc://localhost:{port}/;token={token}{given}"


def placed(file: JobFile) -> str:
    """Return where a file of the job lies in its folder."""
    return f"modules/{file.name}" if file.role is Role.MODULE else file.name
