"""What has to be explained to judge a statement: itself, in neutral form too, and what it hides."""

from __future__ import annotations

from dataclasses import dataclass

from haproc.classify.insert import plain_insert
from haproc.classify.model import Classified, Kind
from haproc.classify.names import Context
from haproc.pin.inline import Rows, UnclearError, rows_in, shown
from haproc.pin.model import Pinned, Treatment
from haproc.pin.scan import Scan
from haproc.witness.commands import is_deltas_own
from haproc.witness.judge import OF_ROWS
from haproc.witness.probes import definitions, merge_source, over_target, update_subqueries
from haproc.witness.shape import misleading_texts, shape, writes_floats


@dataclass(frozen=True, slots=True)
class Questions:
    """What to explain.

    ``own``: the statement itself; empty for Delta's own, which cannot be explained. ``hidden``:
    what its plan does not show: the source of a MERGE (the first of them), items of rows, and
    expressions that are kept as text. ``neutral``: both in neutral form, for statements that
    compute rows; the first of it is the shape. ``decimals``: no number in it is a float.
    ``rows``: what rows that stand in it may hold. ``misleading``: texts that look like parts of a
    plan, in the neutral form if there is one, ``own_misleading``: in the statement itself.
    ``subqueries``: so many are in an UPDATE, and among the hidden. ``unclear`` says why nothing
    can be asked.
    """

    own: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    neutral: tuple[str, ...] = ()
    decimals: bool = False
    rows: tuple[Rows, ...] = ()
    misleading: frozenset[str] = frozenset()
    own_misleading: frozenset[str] = frozenset()
    subqueries: int = 0
    unclear: str = ""


def questions(statement: Classified, pinned: Pinned) -> Questions | None:
    """Return what has to be explained; None for an INSERT of literals, which needs nothing.

    It may be one only now that its reads of the clock are pinned.
    """
    if statement.insert is not None or _is_plain(statement, pinned):
        return None
    scan = Scan(pinned.sql)
    try:
        if statement.kind not in OF_ROWS:
            own = () if is_deltas_own(scan) else (pinned.sql,)
            texts = definitions(statement.kind, statement.writes, scan)
            rows = [row for text in texts for row in shown(Scan(text))]
            return Questions(own, (*texts, *rows), misleading=misleading_texts(scan))
        neutral = Scan(shape(scan))
        misleading = misleading_texts(neutral), misleading_texts(scan)
        values = not writes_floats(scan.tokens), rows_in(scan), *misleading
        hidden, neutral_hidden = shown(scan), shown(neutral)
        subqueries = update_subqueries(scan) if statement.kind is Kind.UPDATE else []
        if subqueries:
            hidden = [over_target(scan, subqueries), *hidden]
            neutral_hidden = [over_target(neutral, update_subqueries(neutral)), *neutral_hidden]
        if statement.kind is Kind.MERGE:
            hidden = [merge_source(scan), *hidden]
            neutral_hidden = [merge_source(neutral), *neutral_hidden]
        neutral_texts = (neutral.sql, *neutral_hidden)
        return Questions((pinned.sql,), tuple(hidden), neutral_texts, *values, len(subqueries))
    except UnclearError as error:
        return Questions(unclear=str(error))


def session_questions(sql: str) -> Questions:
    """Return what has to be explained of a statement that makes something of the session's own."""
    scan = Scan(sql)
    if scan.word(0) != "CREATE" or all(scan.word(at) != "FUNCTION" for at in range(1, 7)):
        return Questions((sql,))
    try:
        return Questions((sql,), tuple(definitions(Kind.CREATE_FUNCTION, frozenset(), scan)))
    except UnclearError as error:
        return Questions(unclear=str(error))


def _is_plain(statement: Classified, pinned: Pinned) -> bool:
    if statement.kind is not Kind.INSERT or pinned.treatment is not Treatment.REPLICATE:
        return False
    return pinned.source is None and plain_insert(pinned.sql, Context()) is not None
