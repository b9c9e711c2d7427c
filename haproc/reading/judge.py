"""The verdict on a write: every cluster can run it as it is, or needs its rows, or it is refused.

If a part could differ between clusters, a literal replaces it if the part is one value, and rows
replace the query that it is in; otherwise the write is refused. In doubt, for a class that is not
listed, a part counts as different.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from haproc.classify.model import Kind, RefusedError, Touched
from haproc.classify.names import Context, joined
from haproc.classify.rules import QUERY_KINDS
from haproc.failure import ErrorClass
from haproc.pin.literals import Moment, Treatment
from haproc.reading.anatomy import Anatomy, anatomy, expressions, parsed_anatomy
from haproc.reading.cut import Cut, Spliced, cut
from haproc.reading.definitions import function_of, is_numbered, queries
from haproc.reading.exact import examine
from haproc.reading.known import WRITING
from haproc.reading.names import VARIABLE, Uses, computed, expression_classes, parts
from haproc.reading.settled import examine_computed, examine_words, is_beside
from haproc.reading.tree import PLAINER, UNASKED, Facts, Finding, Node, Reading, Remedy, TextRange

OF_ROWS: Final = frozenset(
    {Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.UPDATE, Kind.DELETE, Kind.MERGE}
    | {Kind.CREATE_TABLE_AS}
)
"""Kinds of statements that change rows: `judge` is for these, `judge_definition` for all others."""
_NAMING: Final = frozenset(
    {"ColumnDefinition", "QualifiedColType", "UnresolvedFieldName", "UnresolvedFieldPosition"}
    | {"AlterColumnSpec", "UnresolvedTableSpec", "OptionList", "SerdeInfo", "ClusterBySpec"}
    | {"IdentityTransform", "FieldReference", "First", "After"}
)
"""Classes that only name columns and their places in DDL, and compute nothing."""
_HINT_SESSION: Final = "name tables, views and functions of the catalog alone"
_HINT_LATER: Final = (
    "every cluster computes it anew whenever rows are written or the function is called: write "
    "only what gives the same everywhere there, and other values in the INSERT"
)
_CLONE: Final = "CloneTableStatement"
_HINT_CLONE: Final = "write CREATE TABLE … AS SELECT * FROM the table"
_PLAIN: Final = frozenset({"TableSpec", "UnresolvedTableSpec"})
_NAMED: Final = frozenset({"ResolvedIdentifier"})
_HINT: Final = (
    "compute the values first (INSERT … SELECT into a table is replicated as rows) and change the "
    "table from those"
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A write as Spark has read it, and the verdict on it.

    ``sql``: the statement with ``literals`` in place of moving parts; ``cut``: its query and the
    text around it; None if it has no query that can be cut out. ``reads``: tables and views;
    ``rests_on``: these, the written tables, and the catalog's functions; ``known``: True if these
    are complete. ``expressions``: as in `Touched`. ``of_session``: True if the query only makes
    sense in its client's session. ``computes``: True if each cluster computes something besides the
    query.
    """

    kind: Kind
    writes: frozenset[str]
    treatment: Treatment
    sql: str
    literals: tuple[tuple[TextRange, str], ...] = ()
    cut: Cut | None = None
    reads: frozenset[str] = frozenset()
    rests_on: frozenset[str] = frozenset()
    known: bool = True
    expressions: frozenset[str] = frozenset()
    of_session: bool = False
    computes: bool = False
    reasons: tuple[str, ...] = ()
    hint: str = ""

    @property
    def touched(self) -> Touched:
        """The names and expressions with which an operator's rules are matched."""
        return Touched(self.reads | self.writes, self.known, expressions=self.expressions)

    @property
    def moved(self) -> bool:
        """True if literals replaced parts that depend on the clock or session (moving parts)."""
        return bool(self.literals)


@dataclass(frozen=True, slots=True)
class Definition:
    """The verdict on a statement that changes no rows, such as DDL; it may not be complete yet.

    ``queries``: the expressions that the statement stores, such as defaults, as queries. They are
    computed later, so they must be read and judged, too (`with_part`). ``function``: the function
    that it defines, whose body must be read, too (`haproc.reading.definitions`); None: none.
    """

    judged: Judged
    queries: tuple[str, ...] = ()
    function: Node | None = None


@dataclass(frozen=True, slots=True)
class JudgedQuery:
    """The verdict on a query; ``reasons``: why it may give something else on other clusters.

    ``refused``: those of them for which it must not run at all. ``unmanaged``: the relations that
    it reads and that may change without a write to their name (no Delta table, or in a folder that
    the catalog did not choose). ``columns``, ``metadata``: see `Reading`.
    """

    reads: frozenset[str]
    rests_on: frozenset[str]
    known: bool
    of_session: bool
    expressions: frozenset[str] = frozenset()
    reasons: tuple[str, ...] = ()
    unmanaged: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    metadata: frozenset[str] = frozenset()


def judge(reading: Reading, context: Context, facts: Facts, moment: Moment) -> Judged:
    """Return the verdict on a statement that changes rows; raises RefusedError.

    ``context``: the catalog and schema that complete the session's names.
    """
    whole = anatomy(reading, context)
    if whole.refusal is not None:
        raise whole.refusal
    if reading.parsed is not None and reading.parsed.cls == _CLONE:
        reason = "a clone names a version of a table, which each cluster numbers itself"
        raise RefusedError(ErrorClass.NONDETERMINISTIC, reason, _HINT_CLONE)
    source = examine(reading, whole.source, facts, moment) if whole.source is not None else []
    beside = [each for node in whole.fixed for each in _expressions(node)]
    fixed = [f for node in beside for f in examine(reading, node, facts, moment)]
    fixed += examine_words(reading, moment)
    is_fixed = is_beside(reading, whole)
    for each in examine_computed(reading, facts, moment):
        (fixed if is_fixed(each) else source).append(each)
    literals = _literals([*source, *fixed])
    judged = _as_it_stands(reading, whole, literals)
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


def _as_it_stands(
    reading: Reading, whole: Anatomy, literals: Sequence[tuple[TextRange, str]] = ()
) -> Judged:
    return Judged(
        whole.kind,
        whole.writes,
        Treatment.REPLICATE,
        Spliced(reading.text, literals)[:],
        literals=tuple(literals),
        reads=whole.reads,
        rests_on=whole.rests_on,
        known=whole.known,
        expressions=expression_classes(reading),
        computes=bool(whole.beside),
    )


def judge_definition(
    reading: Reading, context: Context, facts: Facts, moment: Moment
) -> Definition | None:
    """Return the verdict on a statement that changes no rows; raises RefusedError.

    None if Spark's analyzer is needed, and was not asked: at first it is not, if the session holds
    nothing temporary.
    """
    by_text = reading.unseen == UNASKED
    if by_text and facts.vouched:
        return None
    whole = parsed_anatomy(reading, context) if by_text else anatomy(reading, context)
    if whole is None:
        return None
    if facts.vouched:
        return Definition(_vouched(reading, whole, facts, moment))
    if whole.refusal is not None:
        raise whole.refusal
    classes = {each.cls for node in whole.parsed_fixed for each in node.walk()}
    computes = bool(whole.source or whole.fixed or whole.texts) or not classes <= _NAMING
    if computes and by_text:
        return None
    judged = replace(_as_it_stands(reading, whole), computes=computes)
    if whole.of_session:
        reasons = [f"it rests on {each}" for each in whole.of_session]
        return Definition(_refused(judged, reasons, _HINT_SESSION))
    if not computes:
        return Definition(judged)
    found = [each for node in whole.fixed for each in examine(reading, node, facts, moment)]
    found += examine_computed(reading, facts, moment)
    return _computing(reading, judged, found)


def _computing(reading: Reading, judged: Judged, findings: list[Finding]) -> Definition:
    """Return the verdict on DDL that computes something later.

    ``findings``: what in its trees may differ between clusters.
    """
    assert reading.parsed is not None
    reasons = _reasons(findings)
    if is_numbered(reading.parsed):
        reasons.append("every cluster numbers the rows of an IDENTITY column itself")
    if reasons:
        return Definition(_refused(judged, reasons, _HINT_LATER))
    if (function := function_of(reading)) is not None:
        return Definition(judged, function=function)
    return Definition(judged, tuple(queries(reading)))


def _vouched(reading: Reading, whole: Anatomy, facts: Facts, moment: Moment) -> Judged:
    """Return the verdict on a statement of unknown kind that an operator's rule allows.

    Literals replace what depends on the clock or session; if another part may differ between
    clusters, the statement is refused.
    """
    assert reading.analyzed is not None
    nodes = expressions([reading.analyzed])
    found = [each for node in nodes for each in examine(reading, node, facts, moment)]
    found += examine_computed(reading, facts, moment)
    literals = _literals(found)
    judged = replace(_as_it_stands(reading, whole, literals), known=False)
    reasons = _reasons(each for each in found if each.remedy is not Remedy.VALUE)
    return _refused(judged, reasons, _HINT) if reasons else judged


def with_part(
    part: Reading, judged: Judged, context: Context, facts: Facts, moment: Moment
) -> Judged:
    """Return the verdict on DDL after one of its `Definition.queries` was read as ``part``.

    ``judged``: the verdict so far. Raises RefusedError.
    """
    confirm_query(part, context)
    found = judge_query(part, facts, moment)
    judged = replace(
        judged,
        reads=judged.reads | found.reads,
        rests_on=judged.rests_on | found.rests_on,
        known=judged.known and found.known,
        expressions=judged.expressions | found.expressions,
    )
    if not found.reasons:
        return judged
    return _refused(judged, [*judged.reasons, *found.reasons], _HINT_LATER)


def confirm_query(reading: Reading, context: Context) -> None:
    """Raise RefusedError if a text is no query, or if it runs code that is not SQL."""
    whole = anatomy(reading, context)
    if whole.refusal is not None:
        raise whole.refusal
    if whole.kind not in QUERY_KINDS:
        raise RefusedError(
            ErrorClass.ANALYSIS_DIFFERS,
            f"Spark takes it for {whole.kind.value}, which is no query",
            "send a query by itself, without other statements",
        )


def _expressions(node: Node) -> list[Node]:
    """Return the outermost expressions in a part of a statement, except those in `_PLAIN`."""
    if node.is_tree and node.cls not in _PLAIN:
        return [node]
    return [each for child in node.children for each in _expressions(child)]


def _of_session(nodes: Iterable[Node]) -> list[str]:
    """Return, in words, the objects that only the client's session has.

    Variables are left out, because literals replace them.
    """
    uses = Uses()
    uses.take_analyzed(nodes)
    return [each for each in uses.session if not each.startswith(VARIABLE)]


def as_rows(judged: Judged, reasons: Iterable[str]) -> Judged:
    """Return the verdict that a write's rows are needed, for these reasons.

    The verdict is to refuse the write if it has no query that can be cut out.
    """
    distinct = tuple(dict.fromkeys((*judged.reasons, *reasons)))
    if judged.cut is None:
        return replace(judged, treatment=Treatment.REFUSE, reasons=distinct, hint=_HINT)
    return replace(judged, treatment=Treatment.MATERIALISE, reasons=distinct)


def judge_query(reading: Reading, facts: Facts, moment: Moment) -> JudgedQuery:
    """Return the verdict on a query or a DataFrame; raises RefusedError."""
    if reading.analyzed is None:
        raise RefusedError(ErrorClass.HIDDEN_STATEMENT, "it hides what it runs", PLAINER)
    found = examine(reading, reading.analyzed, facts, moment)
    found += examine_computed(reading, facts, moment)
    if reading.parsed is not None:
        computed([reading.parsed])
        found += examine_words(reading, moment)
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
        expression_classes(reading),
        tuple(dict.fromkeys(reasons)),
        tuple(_unmanaged(reading.analyzed)),
        tuple(refused),
        reading.columns,
        reading.metadata,
    )


def _unmanaged(root: Node) -> Iterator[str]:
    for node in root.walk():
        if node.cls == "CatalogTable":
            attributes = node.attributes
            managed = attributes.get("kind") == "MANAGED" and attributes.get("provider") == "delta"
            if not managed and attributes.get("kind") != "VIEW":
                yield joined(parts(node))
        elif node.cls in ("DataSourceV2Relation", "StreamingRelationV2"):
            yield joined(parts(node)) or node.cls


def _literals(findings: Sequence[Finding]) -> list[tuple[TextRange, str]]:
    """Return the literals of findings with their places, in order; an outer place comes first."""
    found: dict[TextRange, str] = {}
    for each in findings:
        if each.remedy is Remedy.VALUE and each.place is not None:
            found.setdefault(each.place, each.literal)
    return sorted(found.items(), key=lambda each: (each[0].start, -each[0].end))


def _refused(judged: Judged, reasons: list[str], hint: str) -> Judged:
    distinct = tuple(dict.fromkeys(reasons))
    return replace(judged, treatment=Treatment.REFUSE, reasons=distinct, hint=hint)


def _reasons(findings: Iterable[Finding]) -> list[str]:
    return [each.reason for each in findings]
