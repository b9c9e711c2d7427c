"""The isolation of jobs from their HAProc on this host, and a check that it works.

The check runs at start: it runs a program with the same options as a job. If jobs cannot be
isolated as configured, the HAProc does not start.
"""

from __future__ import annotations

import asyncio
import os
import pwd
from pathlib import Path
from typing import Final

from haproc.config.jobs import Isolation, Jobs
from haproc.jobs.model import JobLimits, Outcome
from haproc.jobs.process import (
    Plan,
    Running,
    interpreter_of,
    make_folder,
    remove_folder,
    user_of,
)

TRIAL: Final = "trial"
TRIAL_S: Final = 30.0
MEMORY_BYTES: Final = 1 << 30
ADVICE: Final = {
    Isolation.BUBBLEWRAP: (
        "install bubblewrap 0.8.0 or newer (Debian, Ubuntu: apt install bubblewrap) and allow "
        "HAProc user namespaces: sysctl user.max_user_namespaces above 0, a profile of AppArmor "
        "that gives bwrap userns (Ubuntu 24.04), in a container seccomp, AppArmor and "
        "systempaths unconfined; "
        "the interpreter (jobs.python) must be readable for jobs.user. Or set jobs.isolation to "
        "user or none: docs/guide/jobs.md says what these keep out"
    ),
    Isolation.USER: (
        "HAProc must be root, and jobs.user must be able to reach the interpreter (jobs.python) "
        "and state_dir"
    ),
    Isolation.NONE: "the interpreter (jobs.python) must be able to run",
}


class IsolationError(OSError):
    """Jobs cannot be isolated on this host as configured."""


async def check_isolation(settings: Jobs, folder: Path, hidden: Path) -> None:
    """Run a program with the options of jobs; raises IsolationError with the remedy if that fails.

    ``folder``: the parent of the jobs' folders; ``hidden``: a path that programs must not see.
    """
    found = await _fault(settings, folder / TRIAL, hidden)
    if found is not None:
        how = settings.isolation
        raise IsolationError(
            f"jobs.isolation {how.value} does not work here: {found}. {ADVICE[how]}"
        )


async def _fault(settings: Jobs, folder: Path, hidden: Path) -> str | None:
    user = user_of(settings)
    command = (str(interpreter_of(settings)), "-c", "open('written', 'w')")
    limits = JobLimits(MEMORY_BYTES, TRIAL_S, TRIAL_S)
    plan = Plan(command, folder, {}, settings, limits, (hidden,))
    try:
        if user is not None and pwd.getpwnam(user).pw_uid == 0:
            return f"{user} is root"
        if user is not None and os.geteuid() != 0:
            return "HAProc must be root to run programs as jobs.user"
        await asyncio.to_thread(make_folder, folder, [], user)
        running = await Running.start(plan)
        output = b"".join([piece async for piece in running.output()])
        end = await running.ended()
    except KeyError:
        return f"there is no user {user}: name one as jobs.user"
    except OSError as error:
        return str(error)
    finally:
        await asyncio.to_thread(remove_folder, folder)
    if end.outcome is Outcome.SUCCESS:
        return None
    return f"{end.why} {output.decode('utf-8', 'replace')[-500:]}".strip()
