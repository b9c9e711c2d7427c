"""The verdict on a write: whether every cluster can run it as it stands, or needs its rows.

What differs from cluster to cluster becomes a literal where one value stands for it, rows where it
feeds a query, and a refusal elsewhere. It fails closed: what is in no list counts as different.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from haproc.classify.model import Kind
from haproc.classify.names import Context, joined
from haproc.pin.model import Moment, Treatment
from haproc.reading.anatomy import anatomy, parsed_anatomy
from haproc.reading.cut import Cut, Spliced, cut
from haproc.reading.exact import examine
from haproc.reading.known import WRITING
from haproc.reading.model import Facts, Finding, Remedy
from haproc.reading.names import VARIABLE, Uses, parts
from haproc.reading.tree import UNASKED, Node, Place, Reading
from haproc.reading.words import examine_words

_NAMING: Final = frozenset(
    {"ColumnDefinition", "QualifiedColType", "UnresolvedFieldName", "UnresolvedFieldPosition"}
    | {"AlterColumnSpec", "UnresolvedTableSpec", "OptionList", "SerdeInfo", "ClusterBySpec"}
    | {"IdentityTransform", "FieldReference", "First", "After"}
)
"""What says columns and their places in DDL, and computes nothing."""
_HINT_SESSION: Final = "name tables, views and functions of the catalog alone"
_SAID: Final = frozenset({"TableSpec", "UnresolvedTableSpec"})
_NAMED: Final = frozenset({"ResolvedIdentifier"})
_HINT: Final = (
    "compute the values first (INSERT … SELECT into a table is replicated as rows) and change the "
    "table from those"
)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a write is for Spark, and what becomes of it.

    ``sql``: the statement with literals in place of what moves; ``moved``: there are any; ``cut``:
    its query and what is around that, if it has one that can be told apart. ``reads``: tables and
    views; ``rests_on``: these, what is written, and the functions of the catalog; ``known``:
    nothing is missing from these. ``of_session``: the query means something in its client's
    session only.
    """

    kind: Kind
    writes: frozenset[str]
    treatment: Treatment
    sql: str
    moved: bool = False
    cut: Cut | None = None
    reads: frozenset[str] = frozenset()
    rests_on: frozenset[str] = frozenset()
    known: bool = True
    of_session: bool = False
    reasons: tuple[str, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """The same of a query: ``reasons``: why it would not give the same everywhere, if it would not.

    ``refused``: those of them for which it may not be run at all. ``elsewhere``: what it reads that
    is no Delta table of which the catalog chose the place, and may change by other ways than writes
    to its name. ``columns``, ``metadata``: see `Reading`.
    """

    reads: frozenset[str]
    rests_on: frozenset[str]
    known: bool
    of_session: bool
    reasons: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    metadata: frozenset[str] = frozenset()


def judge(reading: Reading, context: Context, facts: Facts, moment: Moment) -> Judged:
    """Return the verdict on a statement that changes rows; raises RefusedError.

    ``context`` is where the session's unqualified names belong.
    """
    whole = anatomy(reading, context)
    if whole.refusal is not None:
        raise whole.refusal
    source = examine(reading, whole.source, facts, moment) if whole.source is not None else []
    beside = [each for node in whole.fixed for each in _expressions(node)]
    fixed = [f for node in beside for f in examine(reading, node, facts, moment)]
    fixed += examine_words(reading, moment)
    literals = _literals([*source, *fixed])
    judged = Judged(
        whole.kind,
        whole.writes,
        Treatment.REPLICATE,
        Spliced(reading.text, literals)[:],
        moved=bool(literals),
        reads=whole.reads,
        rests_on=whole.rests_on,
        known=whole.known,
    )
    refusing = [each for each in fixed if each.remedy is not Remedy.VALUE]
    refusing += [each for each in source if each.remedy is Remedy.NONE]
    of_session = _of_session(whole.fixed)
    if refusing or of_session:
        reasons = [*_reasons(refusing), *(f"it rests on {each}" for each in of_session)]
        hints = [each.hint for each in refusing if each.hint]
        return _refused(judged, reasons, hints[0] if hints else _HINT)
    in_source = _of_session([whole.source]) if whole.source is not None else ()
    reasons = _reasons(each for each in source if each.remedy is Remedy.ROWS)
    reasons += [f"it rests on {each}" for each in in_source]
    if not judged.known:
        reasons.append("what it reads has no full name in the catalog")
    judged = replace(judged, of_session=bool(in_source))
    if whole.source is not None:
        judged = replace(judged, cut=cut(reading, judged.kind, literals))
    return as_rows(judged, reasons) if reasons else judged


def judge_definition(reading: Reading, context: Context) -> Judged | None:
    """Return the verdict on DDL and the like; None if it computes something; raises RefusedError.

    The analyzer need not be asked where the session holds nothing temporary; None also if it has
    to be.
    """
    by_text = reading.unseen == UNASKED
    whole = parsed_anatomy(reading, context) if by_text else anatomy(reading, context)
    if whole is None:
        return None
    if whole.refusal is not None:
        raise whole.refusal
    said = {each.cls for node in whole.parsed_fixed for each in node.walk()}
    if whole.source is not None or whole.fixed or whole.texts or not said <= _NAMING:
        return None
    judged = Judged(
        whole.kind,
        whole.writes,
        Treatment.REPLICATE,
        reading.text,
        rests_on=whole.rests_on,
        known=whole.known,
    )
    if not whole.of_session:
        return judged
    return _refused(judged, [f"it rests on {each}" for each in whole.of_session], _HINT_SESSION)


def _expressions(node: Node) -> list[Node]:
    """Return what computes something in a part of a statement; a table's own words do not."""
    if node.is_tree and node.cls not in _SAID:
        return [node]
    return [each for child in node.children for each in _expressions(child)]


def _of_session(nodes: Iterable[Node]) -> list[str]:
    """Return what only the client's session has; variables are not it, as their values are said."""
    uses = Uses()
    uses.take_analyzed(nodes)
    return [each for each in uses.session if not each.startswith(VARIABLE)]


def as_rows(judged: Judged, reasons: Iterable[str]) -> Judged:
    """Return what becomes of a write that can't run everywhere as it stands, for these reasons."""
    said = tuple(dict.fromkeys((*judged.reasons, *reasons)))
    if judged.cut is None:
        return replace(judged, treatment=Treatment.REFUSE, reasons=said, hint=_HINT)
    return replace(judged, treatment=Treatment.MATERIALISE, reasons=said)


def judge_query(reading: Reading, facts: Facts, moment: Moment) -> JudgedQuery:
    """Return what a query or a DataFrame would give elsewhere; raises RefusedError."""
    assert reading.analyzed is not None
    found = examine(reading, reading.analyzed, facts, moment)
    if reading.parsed is not None:
        found = [*found, *examine_words(reading, moment)]
    uses = Uses()
    uses.take_analyzed([reading.analyzed])
    writes = {each.cls for each in reading.analyzed.walk()} & (WRITING - _NAMED)
    refused = [each.reason for each in found if each.remedy is Remedy.NONE]
    refused += [f"it is no query: Spark takes it for {each}" for each in sorted(writes)]
    reasons = [*refused, *_reasons(found), *(f"it rests on {each}" for each in uses.session)]
    if not uses.known:
        reasons.append("what it reads has no full name in the catalog")
    return JudgedQuery(
        frozenset(uses.reads),
        frozenset(uses.reads | uses.functions),
        uses.known,
        bool(uses.session),
        tuple(dict.fromkeys(reasons)),
        tuple(_elsewhere(reading.analyzed)),
        tuple(refused),
        reading.columns,
        reading.metadata,
    )


def _elsewhere(root: Node) -> Iterator[str]:
    for node in root.walk():
        if node.cls == "CatalogTable":
            told = node.attributes
            managed = told.get("kind") == "MANAGED" and told.get("provider") == "delta"
            if not managed and told.get("kind") != "VIEW":
                yield joined(parts(node))
        elif node.cls in ("DataSourceV2Relation", "StreamingRelationV2"):
            yield joined(parts(node)) or node.cls


def _literals(findings: Sequence[Finding]) -> list[tuple[Place, str]]:
    """Return what is put where; of places in each other the outer one."""
    found: dict[Place, str] = {}
    for each in findings:
        if each.remedy is Remedy.VALUE and each.place is not None:
            found.setdefault(each.place, each.literal)
    return sorted(found.items(), key=lambda each: (each[0].start, -each[0].end))


def _refused(judged: Judged, reasons: list[str], hint: str) -> Judged:
    said = tuple(dict.fromkeys(reasons))
    return replace(judged, treatment=Treatment.REFUSE, reasons=said, hint=hint)


def _reasons(findings: Iterable[Finding]) -> list[str]:
    return [each.reason for each in findings]
