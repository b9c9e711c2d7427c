"""Reading a journal of which an earlier version wrote some: what was done becomes what it left.

That version kept statements as they were, DECLARE and SET VAR too, which are run again still, and
the settings that each statement or call set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from haproc.engine.interface import Settings
from haproc.sessions.effects import as_made, effect_of_plan, effect_of_sql
from haproc.sessions.journal import (
    Effect,
    Entry,
    Kept,
    PlanEntry,
    SessionState,
    SqlEntry,
    after,
    as_kept,
)


def as_now(entries: Sequence[Entry], defaults: Settings) -> list[Kept]:
    """Return what would be kept now in the place of these entries, one for each.

    ``defaults`` are what unset settings go back to.
    """
    state, found = SessionState(defaults), list[Kept]()
    for entry in entries:
        match entry:
            case SqlEntry(text, effect) if effect == Effect():
                made = as_made(text)
                found.append(as_kept(SqlEntry(made, effect_of_sql(made)), state, defaults))
            case PlanEntry(plan, effect) if effect == Effect():
                found.append(as_kept(replace(entry, effect=effect_of_plan(plan)), state, defaults))
            case SqlEntry() | PlanEntry():
                found.append(entry)
            case _:
                found.append(as_kept(entry, state, defaults))
        state = after(state, entry, defaults)
    return found
