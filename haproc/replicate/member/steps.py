"""The named moments of a write's life at which a test may stop, kill or delay a HAProc.

In production nothing happens at them. The simulation crashes its nodes there, and the fault tests
kill real processes there (see `haproc.node.node`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeAlias


class Step(StrEnum):
    """A moment, named after what comes next or has just been done."""

    APPEND_BEFORE = "append.before"
    APPEND_AFTER = "append.after"
    INTENT_AFTER = "intent.after"
    """The intent of a batch or DDL is durable, the statement has not started."""
    APPLY_BEFORE = "apply.before"
    APPLY_AFTER = "apply.after"
    """The statement is committed on the cluster, the cursor does not say so."""
    CURSOR_AFTER = "cursor.after"
    FANOUT_BEFORE = "fanout.before"
    """The origin is about to ask a peer."""
    FANOUT_AFTER = "fanout.after"
    """A peer has answered; the decision is not in the log."""
    DECISION_AFTER = "decision.after"
    ROWS_BEFORE = "rows.before"
    """An operation's turn has come, its query has not started."""
    ROWS_COMPUTED = "rows.computed"
    """Its query has given its rows, the log does not have them."""
    ROWS_AFTER = "rows.after"
    """The log has them; nobody has applied them."""
    PART_BEFORE = "part.before"
    """A part of its rows is about to be put into the log."""
    PART_AFTER = "part.after"
    """The log has it; no record names it."""
    GATHER_PART = "gather.part"
    """A part is about to be put into a staging table."""
    GATHER_DONE = "gather.done"
    """The table holds all of them; the statement that reads it has not started."""
    STAGING_DROP = "staging.drop"
    """The statement ran; the table is still there."""
    UNABLE_AFTER = "unable.after"
    """It is in the log that this cluster cannot apply an operation."""
    ABLE_BEFORE = "able.before"
    """It is about to take that back."""
    AHEAD_MARKED = "ahead.marked"
    """The record of tables that are to be copied ahead of the queue is there; nothing is stored."""
    AHEAD_ASKED = "ahead.asked"
    """It is stored that they are to be copied; none was touched."""
    COPIED_TABLE = "copied.table"
    """A table is copied from another cluster; others are not yet."""
    COPIED = "copied"
    """All tables are; the cursor does not say so."""
    ABANDON_BEFORE = "abandon.before"
    """All have said it; it is about to give the operation up."""


Trace: TypeAlias = Callable[[Step], Awaitable[None]]


async def no_trace(step: Step) -> None:
    """The production trace: nothing."""
