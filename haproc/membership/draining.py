"""Whether an operator may take a cluster from its clients now. Values in, decision out.

The last cluster that serves stays, unless forced. What is known of the others is what they told at
most a heartbeat ago, so two drains asked for at the same moment can pass each other: drain one
cluster after another.
"""

from __future__ import annotations

from collections.abc import Mapping

from haproc.membership.state import SERVING, State


def refusal(me: str, own: State, others: Mapping[str, str], *, force: bool) -> str:
    """Return why a cluster must not be drained now; empty if it may be.

    ``others``: the states of the ring's other clusters by name; empty for one that is down.
    """
    if force or own not in SERVING or any(state in SERVING for state in others.values()):
        return ""
    if not others:
        return f"the ring has no cluster but {me}"
    states = ", ".join(f"{name} is {state or 'down'}" for name, state in others.items())
    return f"no other cluster serves clients ({states})"
