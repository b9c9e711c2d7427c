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
from haproc.witness.probes import definitions, merge_source, update_values
from haproc.witness.shape import misleading_texts, shape, writes_floats


@dataclass(frozen=True, slots=True)
class Form:
    """What to explain of a statement, in one form of it.

    ``own``: the statement itself; none for Delta's own, which cannot be explained. ``hidden``: what
    its plan does not show: the source of a MERGE or the values of an UPDATE (the first of them),
    items of rows, and expressions that are kept as text. ``misleading``: texts in them that look
    like parts of a plan.
    """

    own: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    misleading: frozenset[str] = frozenset()

    @property
    def texts(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.own, *self.hidden)


@dataclass(frozen=True, slots=True)
class Questions:
    """What to explain: the statement ``as_it_stands``, and with ``neutral`` literals.

    ``shape``: what statements have in common whose verdict is the same; empty if there is no such
    thing. ``decimals``: no number in it is a float. ``rows``: what rows that stand in it may hold.
    ``unclear`` says why nothing can be asked.
    """

    as_it_stands: Form = Form()
    neutral: Form = Form()
    shape: str = ""
    decimals: bool = False
    rows: tuple[Rows, ...] = ()
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
            return Questions(*_definitions(own, statement.kind, statement.writes, scan))
        neutral = Scan(shape(scan))
        return Questions(
            _of_rows(statement.kind, scan),
            _of_rows(statement.kind, neutral),
            neutral.sql,
            decimals=not writes_floats(scan.tokens),
            rows=rows_in(scan),
        )
    except UnclearError as error:
        return Questions(unclear=str(error))


def session_questions(sql: str) -> Questions:
    """Return what has to be explained of a statement that makes something of the session's own."""
    scan = Scan(sql)
    if scan.word(0) != "CREATE" or all(scan.word(at) != "FUNCTION" for at in range(1, 7)):
        return Questions(Form((sql,)))
    try:
        return Questions(*_definitions((sql,), Kind.CREATE_FUNCTION, frozenset(), scan))
    except UnclearError as error:
        return Questions(unclear=str(error))


def _of_rows(kind: Kind, scan: Scan) -> Form:
    hidden = shown(scan)
    if kind is Kind.UPDATE and (values := update_values(scan)):
        hidden = [values, *hidden]
    if kind is Kind.MERGE:
        hidden = [merge_source(scan), *hidden]
    return Form((scan.sql,), tuple(hidden), misleading_texts(scan))


def _definitions(
    own: tuple[str, ...], kind: Kind, writes: frozenset[str], scan: Scan
) -> tuple[Form, Form]:
    """Return both forms of a statement that defines something: it is explained as it stands."""
    texts = [Scan(text) for text in definitions(kind, writes, scan)]
    neutral = [Scan(shape(text)) for text in texts]
    return _defining(own, texts), _defining(own, neutral)


def _defining(own: tuple[str, ...], texts: list[Scan]) -> Form:
    hidden = [*(text.sql for text in texts), *(row for text in texts for row in shown(text))]
    misleading = (each for text in texts for each in misleading_texts(text))
    return Form(own, tuple(hidden), frozenset(misleading))


def _is_plain(statement: Classified, pinned: Pinned) -> bool:
    if statement.kind is not Kind.INSERT or pinned.treatment is not Treatment.REPLICATE:
        return False
    return pinned.source is None and plain_insert(pinned.sql, Context()) is not None
