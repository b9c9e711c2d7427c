"""The verdict on a write: what our own reading proposes and what Spark's analysis shows.

Both must agree on what the statement is and which table it writes. What differs from cluster to
cluster by either reading is replicated as rows or refused; what only our reading doubts, and the
analysis shows to be harmless, is replicated as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haproc.classify.model import Classified, Kind
from haproc.pin.functions import Nature
from haproc.pin.model import Pinned, Treatment
from haproc.witness.findings import Facts, findings, findings_of_root, functions_called
from haproc.witness.known import is_query_root, nature_of
from haproc.witness.plan import Plan
from haproc.witness.targets import tables_named

HINT_REFUSED = "write literals there; INSERT … SELECT into a table is replicated as rows"
HINT_PLAN = "write a DataFrame made of tables, rows and functions of SQL"
HINT_ANALYSIS = "write it so that both readings agree: plain names, one table, one INSERT"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a write.

    ``reads``: all tables and views that it reads, as Spark sees them; ``rests_on``: these, what it
    writes, and the functions that it calls; changing the definition of any of them may change the
    verdict. ``known``: nothing is missing from these. ``of_session``: it means what it means in its
    client's session only.
    """

    treatment: Treatment
    reasons: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    rests_on: frozenset[str] = frozenset()
    known: bool = True
    hint: str = ""
    of_session: bool = False


def judge_query(statement: Classified, pinned: Pinned, plan: Plan, facts: Facts) -> Verdict:
    """Return the verdict on a part of a plan that writes: on its input, or on a condition.

    ``pinned`` says what the first reading makes of that part, and whether rows can stand for it.
    """
    if not is_query_root(plan.root.name):
        said = f"Spark takes a part of the plan for {plan.root.name}, which is not known"
        return Verdict(pinned.otherwise, (said,), known=False, hint=HINT_PLAN)
    return _judged(statement, pinned, [plan], facts)


def judge_of_session(statement: Classified, pinned: Pinned, what: str) -> Verdict:
    """Return the verdict on a write that means something else outside its client's session.

    ``what``: things that the session has.
    """
    return Verdict(
        pinned.otherwise,
        (*pinned.reasons, f"it rests on {what} of the session"),
        rests_on=statement.reads | statement.writes,
        known=False,
        hint=pinned.hint,
        of_session=True,
    )


def _touched(
    statement: Classified, plans: Sequence[Plan], frames: frozenset[str] = frozenset()
) -> tuple[frozenset[str], bool, frozenset[str]]:
    """Return the tables that are read, whether these are all, and what a verdict rests on."""
    reads, known = frozenset[str](), True
    for plan in plans:
        named, complete = tables_named(plan, frames)
        reads, known = reads | named, known and complete
    return reads, known, reads | statement.reads | statement.writes | _functions(plans)


def _judged(statement: Classified, pinned: Pinned, plans: Sequence[Plan], facts: Facts) -> Verdict:
    reads, known, rests_on = _touched(statement, [*plans, *facts.bodies], facts.frames)
    reasons, foreign = _reasons(plans, facts)
    own_differs = pinned.source is not None and bool(findings_of_root(plans[0], facts))
    unseen = pinned.unknown - _called(plans)
    if unseen:  # Spark computes some constants while it analyzes
        reasons.append(f"the function {min(unseen)}() is nowhere in what Spark makes of it")
    if not known:
        reasons.append("what is read has no full name in the catalog")
    treatment = _treatment(pinned, reasons, certain=foreign or own_differs)
    if not reasons:
        reasons = [] if treatment is Treatment.REPLICATE else list(pinned.reasons)
    reads -= statement.writes if statement.kind in _OWN_TARGET else frozenset()
    hint = pinned.hint or HINT_REFUSED * (treatment is Treatment.REFUSE)
    return Verdict(treatment, tuple(reasons), reads, rests_on, known, hint)


_OWN_TARGET = frozenset({Kind.UPDATE, Kind.DELETE})
"""Their plans read the table that they write."""


def _treatment(pinned: Pinned, reasons: Sequence[str], *, certain: bool) -> Treatment:
    """``certain``: rows cannot stand for what differs."""
    if certain:
        return Treatment.REFUSE
    if not reasons:
        return Treatment.REPLICATE if pinned.dispellable else pinned.treatment
    if pinned.treatment is Treatment.REFUSE or pinned.source is None:
        return Treatment.REFUSE
    return Treatment.MATERIALISE


def _reasons(plans: Sequence[Plan], facts: Facts) -> tuple[list[str], bool]:
    found: list[str] = []
    foreign = False
    for plan in plans:
        found += findings(plan, facts)
        foreign = foreign or bool(foreign_functions(plan))
    return list(dict.fromkeys(found)), foreign


def foreign_functions(plan: Plan) -> list[str]:
    """Return the functions that run code outside SQL."""
    return sorted(name for name in functions_called(plan) if nature_of(name) is Nature.FOREIGN)


def unknown_functions(plans: Sequence[Plan]) -> frozenset[str]:
    """Return the functions, by full names as printed, that may be SQL functions of the catalog."""
    return frozenset(name for name in _functions(plans, full=False) if name.count(".") >= 2)


def user_functions(plan: Plan) -> frozenset[str]:
    """Return the functions of a catalog that a plan calls; their bodies may read tables."""
    return _functions([plan])


def _functions(plans: Sequence[Plan], *, full: bool = True) -> frozenset[str]:
    names = {name for plan in plans for name in functions_called(plan)}
    names |= {
        node.text.strip()
        for plan in plans
        for node in plan.nodes
        if node.name == "SQLFunctionNode" and full
    }
    return frozenset(name.lower() if full else name for name in names if "." in name)


def _called(plans: Sequence[Plan]) -> frozenset[str]:
    """Return the names of all functions in the plans, without their schemas."""
    names = {name for plan in plans for name in functions_called(plan)} | _functions(plans)
    return frozenset(name.rpartition(".")[2].lower() for name in names)
