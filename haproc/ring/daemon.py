"""A HAProc as a background process on this machine, known by its pid file."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from haproc.config.model import Address, Config
from haproc.membership.state import HOPELESS, State
from haproc.ring.errors import RingError
from haproc.ring.ports import wait_free
from haproc.ring.process import DetachedProcess

_POLL_S = 0.05
_ANSWER_S = 2.0
_LOG_LINES_SHOWN = 15


class StartError(RingError):
    """A HAProc did not come up; the message ends with the last lines of its log."""


class DrainedError(StartError):
    """A HAProc runs, and serves nobody because an operator wants it so."""


def process_of(config: Config, cluster: str) -> DetachedProcess:
    """Return the HAProc of a cluster as this machine knows it."""
    return DetachedProcess(config.state_dir / f"haproc-{cluster}.pid")


def launch(
    config: Config, file: Path, cluster: str, environment: Mapping[str, str] | None = None
) -> None:
    """Start a HAProc in the background unless it runs; raises StartError."""
    process = process_of(config, cluster)
    if process.identity() is None:
        _check_free(config.cluster(cluster).peer, cluster)
        config.state_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "haproc", "serve"]
        command += ["--config", str(file.resolve()), "--cluster", cluster]
        process.start(
            command,
            folder=Path.cwd(),
            log=log_of(config, cluster),
            environment={**os.environ, **(environment or {})},
        )


def _check_free(address: Address, cluster: str) -> None:
    """Another process's answers there would pass for those of the new one."""
    if not wait_free(address.host, address.port):
        raise StartError(
            f"another process already listens on {address.url}: a HAProc of {cluster} that was "
            "started otherwise, or a port that is taken"
        )


def log_of(config: Config, cluster: str) -> Path:
    """Return where a HAProc in the background writes its log."""
    return config.state_dir / f"haproc-{cluster}.log"


async def wait_answering(config: Config, cluster: str, timeout_s: float, *, ready: bool) -> None:
    """Wait until a HAProc answers, or serves; raises StartError, DrainedError at once."""
    process, log = process_of(config, cluster), log_of(config, cluster)
    end = time.monotonic() + timeout_s
    url = config.cluster(cluster).peer.url + ("/readyz" if ready else "/healthz")
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S)) as session:
        while time.monotonic() < end:
            if process.identity() is None:
                raise StartError(f"the HAProc of {cluster} ended, see {log}:\n{_tail(log)}")
            told = await _told(session, url)
            if told is None:
                return
            state, reason = str(told.get("state", "")), str(told.get("reason", ""))
            if state in HOPELESS - {State.REMOVED}:  # it may not have read yet that it was added
                raise StartError(f"the HAProc of {cluster} is {state}: {reason}")
            if told.get("drained"):
                raise DrainedError(f"the HAProc of {cluster} runs, and is drained: haproc undrain")
            await asyncio.sleep(_POLL_S)
    what = "does not serve" if ready else "does not answer"
    raise StartError(f"the HAProc of {cluster} {what} after {timeout_s:g} s, see {log}")


async def _told(session: aiohttp.ClientSession, url: str) -> Mapping[str, Any] | None:
    """Return None if it is as wanted, else what it tells of itself, if anything."""
    try:
        async with session.get(url) as response:
            if response.status == 200:
                return None
            body = await response.json()
            return body if isinstance(body, dict) else {}
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return {}


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])
    except OSError:
        return ""
