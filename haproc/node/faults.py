"""Faults on demand, for tests that kill real processes at an exact moment.

``HAPROC_FAULT=apply.after:2:kill`` sends this process SIGKILL when it reaches the step for the
second time; ``stop`` sends SIGSTOP instead. Unset, nothing of this exists.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from haproc.replicate.member.steps import Step, Trace, no_trace

VARIABLE = "HAPROC_FAULT"
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class FaultError(ValueError):
    """The variable says nothing that can be done."""


def trace_from(environ: Mapping[str, str]) -> Trace:
    """Return the trace that the environment asks for."""
    text = environ.get(VARIABLE, "")
    if not text:
        return no_trace
    try:
        name, count, action = text.split(":")
        step, left, number = Step(name), int(count), _SIGNALS[action]
        if left < 1:
            raise ValueError(count)
    except (ValueError, KeyError) as error:
        steps = ", ".join(step.value for step in Step)
        raise FaultError(
            f"{VARIABLE}={text!r} is not STEP:COUNT:ACTION with STEP one of {steps} and ACTION "
            "kill or stop"
        ) from error

    async def trace(reached: Step) -> None:
        nonlocal left
        if reached is step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    return trace
