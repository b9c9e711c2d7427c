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
from haproc.witness.known import is_query_root, is_root_of, nature_of
from haproc.witness.plan import Plan
from haproc.witness.targets import is_same_table, tables_named, written

OF_ROWS = frozenset(
    {Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.UPDATE, Kind.DELETE, Kind.MERGE}
    | {Kind.CREATE_TABLE_AS}
)
"""Statements whose plans show everything that they compute."""
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


def judge(statement: Classified, pinned: Pinned, plans: Sequence[Plan], facts: Facts) -> Verdict:
    """Return the verdict on a statement that computes rows.

    ``plans``: the statement's own, and of what its plan does not show.
    """
    disagreement = _disagreement(statement, plans[0])
    reads, known, rests_on = _touched(statement, [*plans, *facts.bodies], facts.frames)
    if disagreement:
        return Verdict(
            Treatment.REFUSE, (disagreement,), reads, rests_on, known, hint=HINT_ANALYSIS
        )
    return _judged(statement, pinned, plans, facts)


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


def _disagreement(statement: Classified, plan: Plan) -> str:
    root = plan.root.name
    if not is_root_of(root, statement.kind):
        return f"Spark takes the statement for {root}, HAProc for {statement.kind.value}"
    if statement.kind not in OF_ROWS:
        return ""
    target = written(plan)
    ours = sorted(statement.writes)
    if len(ours) == 1 and is_same_table(target, ours[0]):
        return ""
    return (
        f"Spark writes {target or 'a table without a name'}, HAProc has read "
        f"{', '.join(ours) or 'no name that can be told'}"
    )


def judge_definition(
    statement: Classified,
    pinned: Pinned,
    main: Plan | None,
    expressions: Sequence[Plan],
    facts: Facts,
) -> Verdict:
    """Return the verdict on DDL and administration, by the expressions in it.

    ``main``: the statement's own plan; None for what Spark cannot explain. A view's body may hold
    whatever differs, for it is computed when it is read, but no code outside SQL.
    """
    reasons, _ = _reasons(expressions, facts)
    unseen = pinned.unknown - _called(expressions)
    if unseen:
        reasons.append(f"the function {min(unseen)}() is nowhere in what Spark makes of it")
    plans = [*([main] if main is not None else []), *expressions, *facts.bodies]
    _, known, rests_on = _touched(statement, plans)
    if main is not None:
        disagreement = _disagreement(statement, main)
        foreign = foreign_functions(main)
        reasons = [disagreement] * bool(disagreement) + reasons
        reasons += [f"{name}() runs code that HAProc cannot look into" for name in foreign]
    treatment = Treatment.REFUSE if reasons else Treatment.REPLICATE
    hint = pinned.hint or HINT_REFUSED * bool(reasons)
    return Verdict(treatment, tuple(reasons), frozenset(), rests_on, known, hint)


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


def query_refusal(plan: Plan) -> str:
    """Say why a statement that was taken for a query may not run as one; empty if it may."""
    if not is_query_root(plan.root.name) or any(
        not is_query_root(node.name) and node.name in _WRITING for node in plan.nodes
    ):
        return f"Spark takes it for {plan.root.name}, which is no query"
    foreign = foreign_functions(plan)
    return f"{foreign[0]}() runs arbitrary code" if foreign else ""


def session_refusal(statement: Classified, plans: Sequence[Plan]) -> str:
    """Say why a session statement may not run; ``plans``: its own, then those of its parts."""
    if not is_root_of(plans[0].root.name, statement.kind):
        return f"Spark takes it for {plans[0].root.name}"
    foreign = [name for plan in plans for name in foreign_functions(plan)]
    return f"{foreign[0]}() runs arbitrary code" if foreign else ""


_WRITING = frozenset(
    {"AppendData", "OverwriteByExpression", "OverwritePartitionsDynamic", "UpdateCommand"}
    | {"DeleteCommand", "DeleteFromTable", "MergeIntoCommand", "InsertIntoHadoopFsRelationCommand"}
    | {"InsertIntoHiveTable", "InsertIntoHiveDirCommand", "InsertIntoDataSourceDirCommand"}
)
