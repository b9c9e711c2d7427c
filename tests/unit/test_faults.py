"""Faults on demand: a process stops exactly at its configured step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from haproc.node.node import VARIABLE, FaultError, trace_from
from haproc.replicate.member.steps import Step, no_trace

ROOT = Path(__file__).parents[2]
VICTIM = """
import asyncio, os
from haproc.node.node import trace_from
from haproc.replicate.member.steps import Step
trace = trace_from(os.environ)
for step in (Step.APPLY_BEFORE, Step.APPLY_AFTER, Step.APPLY_BEFORE, Step.APPLY_AFTER):
    asyncio.run(trace(step))
    print(step.value, flush=True)
"""


def victim(fault: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", VICTIM],
        cwd=ROOT,
        env={VARIABLE: fault, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        pytest.param("apply.before:1:kill", 0, marks=pytest.mark.thorough),
        pytest.param("apply.after:1:kill", 1, marks=pytest.mark.thorough),
        ("apply.after:2:kill", 3),
    ],
)
def test_kill_fault_ends_the_process_at_its_step(fault: str, steps: int) -> None:
    with victim(fault) as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert len(out.splitlines()) == steps


def test_fault_at_a_step_that_is_never_reached_changes_nothing() -> None:
    with victim("apply.after:3:kill") as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, len(out.splitlines())) == (0, 4)


def test_stop_fault_freezes_the_process_until_it_is_continued() -> None:
    with victim("apply.after:1:stop") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "apply.before\n"
        _wait_stopped(process.pid)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, len(out.splitlines())) == (0, 3)


def _wait_stopped(pid: int) -> None:
    """Return as soon as the kernel reports that the child has stopped."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


@pytest.mark.parametrize("environ", [{}, {VARIABLE: ""}])
async def test_trace_from_an_unset_variable_is_no_trace(environ: dict[str, str]) -> None:
    assert trace_from(environ) is no_trace
    await trace_from(environ)(Step.APPLY_AFTER)


@pytest.mark.parametrize(
    "text",
    [
        "apply.after",
        "apply.after:1",
        "apply.after:1:kill:now",
        "apply.never:1:kill",
        "apply.after:x:kill",
        "apply.after:0:kill",
        "apply.after:-1:kill",
        "apply.after:1:explode",
    ],
)
def test_trace_from_an_invalid_text_is_refused_with_the_possible_forms(text: str) -> None:
    with pytest.raises(FaultError, match=r"STEP:COUNT:ACTION .*fanout\.before") as caught:
        trace_from({VARIABLE: text})
    assert repr(text) in str(caught.value)
