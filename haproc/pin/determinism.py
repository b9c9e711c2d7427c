"""Making a statement mean the same on every cluster, or saying why it cannot.

Theory of operation. Three things can be done about a part of a statement that would differ from
cluster to cluster. What is one value for the whole statement (the clock, the session's user) or
one value per written row (``rand()`` in VALUES) becomes a literal in the text. What is not, but
only feeds rows into a table (INSERT … SELECT, CREATE TABLE AS), is materialised: the query runs
once and its rows are replicated. Everything else is refused. It fails closed: an unknown function,
a sum of what may be floating point, a statement whose parts are not clear count as different,
unless Spark's analysis, which knows the types, dispels the doubt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from haproc.classify.model import Classified, Kind, OperationClass
from haproc.classify.tokens import LexicalError
from haproc.pin.definitions import examine_definition, examine_function
from haproc.pin.examine import Doubt, Examination, Finding
from haproc.pin.model import Moment, Pinned, Replacement, Source, Treatment
from haproc.pin.scan import Scan
from haproc.pin.split import Split, split_create, split_insert

_UNTOUCHED = frozenset(
    {Kind.TRUNCATE, Kind.OPTIMIZE, Kind.VACUUM, Kind.ANALYZE, Kind.DROP_TABLE, Kind.CREATE_VIEW}
    | {Kind.ALTER_VIEW, Kind.DROP_VIEW, Kind.CREATE_NAMESPACE, Kind.ALTER_NAMESPACE}
    | {Kind.DROP_NAMESPACE, Kind.DROP_FUNCTION, Kind.COMMENT, Kind.GRANT, Kind.ROWS}
    | {Kind.SELECT, Kind.VALUES, Kind.SHOW, Kind.DESCRIBE, Kind.EXPLAIN}
    | {Kind.SET, Kind.RESET, Kind.USE, Kind.TEMPORARY_VIEW, Kind.CACHE}
)
"""Statements whose effect holds no value that is computed now. A view's body is computed whenever
it is read, so it stays as it is."""
_CHANGING = frozenset({Kind.UPDATE, Kind.DELETE, Kind.MERGE})
_HIDING_WORDS = frozenset({"BEGIN", "EXECUTE"})
_OPAQUE_WORDS = frozenset({"BEGIN", "EXECUTE", "CALL"})

_HINT_CHANGE = (
    "compute the values first (INSERT … SELECT into a table is replicated as rows) and change the "
    "table from those"
)
_HINT_SUM = "sum or average CAST(… AS DECIMAL(p,s)), which is exact in any order"
_HINT_LIMIT = "order by every column of the select list, so that rows that tie are equal"
_HINT_DDL = "give the value in the INSERT instead, where it becomes a literal"


def pin(
    statement: Classified,
    moment: Moment,
) -> Pinned:
    """Return the statement ready for the log, or what else has to be done with it.

    What it doubts and calls dispellable is for Spark's analysis to settle (`haproc.witness`).
    """
    sql = statement.sql
    if statement.operation_class in (OperationClass.QUERY, OperationClass.SESSION):
        return Pinned(Treatment.REPLICATE, sql)
    if "${" in sql:
        return _refuse_variable(sql)
    if statement.insert is not None or statement.kind in _UNTOUCHED:
        return Pinned(Treatment.REPLICATE, sql)
    try:
        scan = Scan(sql)
    except LexicalError as error:
        return _refused(sql, [str(error)], "close it")
    examination = Examination(scan, moment)
    if statement.kind in (Kind.INSERT, Kind.INSERT_OVERWRITE):
        return _pin_insert(statement, examination)
    if statement.kind is Kind.CREATE_TABLE_AS:
        return _pin_create_as(statement, examination)
    if statement.kind in _CHANGING:
        return _pin_change(statement, examination)
    return _pin_rest(statement, examination)


def _refuse_variable(sql: str) -> Pinned:
    start = sql.index("${")
    name = sql[start : sql.find("}", start) + 1 or start + 30]
    return _refused(
        sql,
        [f"Spark replaces {name} by a setting or an environment variable of each cluster"],
        "write the value; where the text itself is meant, pass it as a parameter or write "
        "\\u0024 for the dollar sign",
    )


def _refused(sql: str, reasons: Sequence[str], hint: str) -> Pinned:
    return Pinned(Treatment.REFUSE, sql, reasons=tuple(reasons), hint=hint)


def _spliced(sql: str, replacements: Sequence[Replacement], start: int = 0, end: int = -1) -> str:
    """Return a stretch of the statement with its replacements in place."""
    end = len(sql) if end < 0 else end
    parts, position = [], start
    for part in sorted(replacements, key=lambda r: r.start):
        if start <= part.start and part.end <= end:
            parts += [sql[position : part.start], part.literal]
            position = part.end
    return "".join([*parts, sql[position:end]])


def _replicated(examination: Examination) -> Pinned:
    sql, replacements = examination.scan.sql, tuple(examination.replacements)
    unknown = frozenset(examination.unknown)
    return Pinned(Treatment.REPLICATE, _spliced(sql, replacements), replacements, unknown=unknown)


def _pin_insert(statement: Classified, examination: Examination) -> Pinned:
    scan = examination.scan
    split = split_insert(scan)
    if split is None:
        return _pin_unsplit(statement, examination)
    _examine_head(examination, split)
    in_head = list(examination.findings)
    if in_head:
        return _refused(scan.sql, [f.reason for f in in_head], "write a literal there")
    return _pin_query(statement, examination, split)


def _examine_head(examination: Examination, split: Split) -> None:
    """Examine what stands between the target and the query: PARTITION (…), REPLACE WHERE …

    A plain column list is left out, its names are no expressions.
    """
    scan, start = examination.scan, split.target_end
    for at in range(split.target_end, split.query):
        is_list = at == split.target_end or scan.symbol(at - 1) == ")"
        if scan.symbol(at) == "(" and (is_list or scan.word(at - 1) == "EXISTS"):
            examination.stretch(start, at)
            start = scan.closing[at] + 1
            break
    examination.stretch(start, split.query)


def _pin_unsplit(statement: Classified, examination: Examination) -> Pinned:
    """Several inserts from one source (``FROM s INSERT … INSERT …``), or a form not known."""
    scan = examination.scan
    examination.stretch(0, len(scan.tokens))
    findings = list(examination.findings) + _opaque(statement)
    if findings:
        hint = "write one INSERT … SELECT for each table, which can be replicated as rows"
        return _doubted(examination, findings, hint)
    return _replicated(examination)


def _pin_create_as(statement: Classified, examination: Examination) -> Pinned:
    split = split_create(examination.scan)
    if split is None and "CLONE" in examination.scan.words:
        reason = "a clone names a version of a table, which each cluster numbers itself"
        return _refused(statement.sql, [reason], "write CREATE TABLE … AS SELECT * FROM the table")
    if split is None:
        reason = "the query of CREATE TABLE AS cannot be told apart"
        return _refused(statement.sql, [reason], "create the table, then INSERT … SELECT")
    return _pin_query(statement, examination, split)


def _pin_query(
    statement: Classified,
    examination: Examination,
    split: Split,
) -> Pinned:
    scan = examination.scan
    end = len(scan.tokens)
    rows = _is_rows(scan, split)
    examination.stretch(0, split.head)
    examination.stretch(split.query, end, rows=rows)
    findings = list(examination.findings)
    if not rows:
        findings += _opaque(statement)
    pinned = _replicated(examination)
    if not findings:
        return pinned if rows else replace(pinned, source=_source(examination, split))
    return replace(
        pinned,
        treatment=Treatment.MATERIALISE,
        reasons=tuple(finding.reason for finding in findings),
        hint=_hint(findings, ""),
        source=_source(examination, split),
        dispellable=_all_doubtful(findings),
    )


def _is_rows(scan: Scan, split: Split) -> bool:
    """Whether the query is a plain VALUES list, whose expressions can see no column."""
    if split.head or scan.word(split.query) != "VALUES":
        return False
    queries = {"SELECT", "TABLE", "UNION", "INTERSECT", "EXCEPT", "MINUS", "LIMIT", "ORDER"}
    return not any(scan.word(at) in queries for at in range(split.query, len(scan.tokens)))


def _source(examination: Examination, split: Split) -> Source:
    """Return head and query; a WITH clause in front of INSERT moves to the query."""
    scan, replacements = examination.scan, examination.replacements
    start, query = scan.tokens[split.head].start, scan.tokens[split.query].start
    head = _spliced(scan.sql, replacements, start, query)
    text = _spliced(scan.sql, replacements, query)
    if split.head:
        before = _spliced(scan.sql, replacements, 0, start).rstrip()
        # The line break ends a comment that may stand last.
        text = f"{before}\n({text}\n)" if scan.word(split.query) == "WITH" else f"{before}\n{text}"
    return Source(head, text)


def _opaque(statement: Classified) -> list[Finding]:
    """Return what cannot be seen from the statement: which tables it reads."""
    reason = "which tables the statement reads cannot be told"
    return [] if statement.tables_known else [Finding(reason, Doubt.ANALYSIS)]


def _hint(findings: Sequence[Finding], otherwise: str) -> str:
    doubts = {finding.doubt for finding in findings}
    if doubts == {Doubt.SUM}:
        return _HINT_SUM
    return _HINT_LIMIT if doubts == {Doubt.LIMIT} else otherwise


def _pin_change(statement: Classified, examination: Examination) -> Pinned:
    """UPDATE, DELETE and MERGE: literals are fine, anything else is refused."""
    scan = examination.scan
    examination.stretch(1, len(scan.tokens))
    findings = list(examination.findings)
    reads_others = statement.kind is Kind.MERGE or any(t.upper == "SELECT" for t in scan.tokens)
    if reads_others:
        findings += _opaque(statement)
    if findings:
        return _doubted(examination, findings, _hint(findings, _HINT_CHANGE))
    return _replicated(examination)


def _doubted(examination: Examination, findings: Sequence[Finding], hint: str) -> Pinned:
    """Refuse, unless Spark's analysis dispels all doubts."""
    reasons = tuple(finding.reason for finding in findings)
    pinned = _replicated(examination)
    if not _all_doubtful(findings):
        return _refused(examination.scan.sql, reasons, hint)
    return replace(pinned, treatment=Treatment.REFUSE, reasons=reasons, hint=hint, dispellable=True)


def _all_doubtful(findings: Sequence[Finding]) -> bool:
    return all(finding.doubt is not Doubt.CERTAIN for finding in findings)


def _pin_rest(statement: Classified, examination: Examination) -> Pinned:
    """DDL, and statements that nothing is known of."""
    scan, sql = examination.scan, statement.sql
    if statement.kind is Kind.UNKNOWN and scan.word(0) not in _HIDING_WORDS:
        # Only a rule of the operator's lets such a statement come here: it vouches for that.
        examination.vouched = True
        examination.stretch(0, len(scan.tokens))
        findings = list(examination.findings)
        if findings:
            return _refused(sql, [f.reason for f in findings], _hint(findings, _HINT_CHANGE))
        return _replicated(examination)
    if statement.kind is Kind.UNKNOWN or scan.word(0) in _OPAQUE_WORDS:
        reason = "HAProc cannot look into this statement"
        return _refused(sql, [reason], "send the statements that it stands for one by one")
    if statement.kind is Kind.RESTORE:
        reason = "each cluster numbers and dates the versions of its tables itself"
        return _refused(sql, [reason], "write the rows that the table should hold")
    if statement.kind is Kind.COPY:
        reason = "every cluster would read the files again, at another time or not at all"
        hint = "load them with INSERT … SELECT from the files, which is replicated as rows"
        return _refused(sql, [reason], hint)
    if statement.kind is Kind.CREATE_FUNCTION:
        findings = examine_function(examination)
        hint = "only SQL functions that give the same everywhere can be replicated"
    else:
        findings, hint = examine_definition(examination), _HINT_DDL
    return _doubted(examination, findings, hint) if findings else Pinned(Treatment.REPLICATE, sql)
