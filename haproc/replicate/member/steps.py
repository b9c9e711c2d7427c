"""The named moments of a write's life at which a test may stop, kill or delay a HAProc.

In production nothing happens at them. The simulation crashes its nodes there, and the fault tests
kill real processes there (see `haproc.node.node`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeAlias


class Step(StrEnum):
    """A moment, named after what was just done, or will be done next."""

    APPEND_BEFORE = "append.before"
    APPEND_AFTER = "append.after"
    INTENT_AFTER = "intent.after"
    """The intent of a batch or DDL is stored durably; the statement has not started."""
    APPLY_BEFORE = "apply.before"
    APPLY_AFTER = "apply.after"
    """The statement is committed on the cluster; the cursor is not stored yet."""
    CURSOR_AFTER = "cursor.after"
    FANOUT_BEFORE = "fanout.before"
    """The origin is about to ask a peer to run a synchronous operation."""
    FANOUT_AFTER = "fanout.after"
    """The peer has answered; the decision is not in the log."""
    DECISION_AFTER = "decision.after"
    ROWS_BEFORE = "rows.before"
    """The operation's turn has come to compute its rows; its query has not started."""
    ROWS_COMPUTED = "rows.computed"
    """The query has given the rows; the log does not have them."""
    ROWS_AFTER = "rows.after"
    """The log has the rows; no cluster has applied them."""
    PART_BEFORE = "part.before"
    """A part of the rows is about to be appended to the log."""
    PART_AFTER = "part.after"
    """The log has the part; no ``rows`` record names it."""
    GATHER_PART = "gather.part"
    """A part is about to be put into a staging table."""
    GATHER_DONE = "gather.done"
    """The staging table holds all parts; the statement that reads it has not started."""
    STAGING_DROP = "staging.drop"
    """The statement has run; the staging table is still there."""
    UNABLE_AFTER = "unable.after"
    """The log has this cluster's failure vote on an operation."""
    ABLE_BEFORE = "able.before"
    """This cluster is about to withdraw its failure vote."""
    AHEAD_MARKED = "ahead.marked"
    """The log has the record of a copy ahead of the queue; the request is not stored."""
    AHEAD_ASKED = "ahead.asked"
    """The request to copy the tables is stored; no table was touched."""
    COPIED_TABLE = "copied.table"
    """One table is copied from another cluster; the next one is not begun."""
    COPIED = "copied"
    """All tables are copied; the cursor is not stored yet."""
    ABANDON_BEFORE = "abandon.before"
    """All members have voted; this cluster is about to append the ``abandon`` record."""


Trace: TypeAlias = Callable[[Step], Awaitable[None]]


async def no_trace(step: Step) -> None:
    """Do nothing: what is called at each step in production."""
