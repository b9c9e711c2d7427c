"""Jobs in the words of Livy's batches. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dmq import Json
from haproc.jobs.model import Job


def batch(job: Job, log: Sequence[str] = ()) -> dict[str, Json]:
    """Return a job as Livy shows a batch; what Livy does not have stands below ``haproc``."""
    current = job.current
    return {
        "id": job.id,
        "name": job.asked.name,
        "owner": job.asked.user,
        "proxyUser": job.asked.proxy_user,
        "state": job.state.value,
        "appId": f"haproc-{job.id}-{current.number}" if current is not None else None,
        "appInfo": {"driverLogUrl": None, "sparkUiUrl": None},
        "log": list(log),
        "haproc": {
            "request_id": job.asked.request_id,
            "program": job.program(),
            "cluster": current.cluster if current is not None else job.asked.cluster,
            "attempts": len(job.attempts),
            "restarts_left": max(0, job.restarts_left),
            "submitted_ms": job.asked.at_ms,
            "started_ms": current.at_ms if current is not None else None,
            "ended_ms": job.final.at_ms if job.final is not None else None,
            "outcome": job.final.outcome.value if job.final is not None else None,
            "exit_code": job.final.code if job.final is not None else None,
            "why": job.final.why if job.final is not None else None,
        },
    }
