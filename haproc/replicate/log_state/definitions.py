"""The definitions and tables of an operation, and the offsets at which these were written."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final

from haproc import protos
from haproc.classify.model import Kind
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import parse
from haproc.classify.tokens import LexicalError, TokenKind, tokenize
from haproc.engine.interface import Settings
from haproc.engine.statement import ArrowRows, SparkPlan
from haproc.replicate.records.control import Fence
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, SpooledRows

# Whether what an operation rests on still stood as it was at its place in the order.
#
# Before an operation enters the log, the HAProc that received it looks up what its tables, views
# and functions are, and what is written down rests on that: which query text means the same
# everywhere, which one has to become rows. The operation names what it *rests on*, and
# ``analyzed_to``: all records below it were applied where that was looked up. If a record between
# there and the operation's own place may have defined any of it anew, the operation is *stale*:
# every cluster passes over it, as if it were not in the log, and its HAProc looks again and appends
# it anew.
#
# Whether it is stale depends on the log alone: not on what became of the records in between, nor
# on whether they are stale or repetitions themselves. One that never ran costs one more look. What
# is asked is always "between there and here", so the newest definition of each name is enough to
# know.
#
# How far back that may lie is a part of the record's own window of request ids (`reach`). So a
# HAProc that reads the log from ``records_needed`` below its cursor knows which records of the
# window are stale, and which new ones repeat one that is not.


_SHARE: Final = 4
"""Chosen: a quarter of the default window is seconds at any rate that a ring reaches, and reading a
quarter more at a start is little."""

NOTHING: Final = frozenset[str]()
ANYTHING: Final = "*"
"""Among the names that an operation rests on: those are not all that it rests on."""
_NEVER: Final = frozenset(
    {
        Kind.DELETE,
        Kind.UPDATE,
        Kind.TRUNCATE,
        Kind.OPTIMIZE,
        Kind.VACUUM,
        Kind.ANALYZE,
        Kind.ROWS,
    }
)
"""Kinds that change what a table holds, and never what it is."""
_MAY: Final = frozenset({Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.MERGE})
"""Kinds that change what a table is where that is asked for."""
_MERGING: Final = ("automerge", "overwriteschema")
"""Words in the names of the settings that evolve the schema for every statement."""


def reach(window_records: int) -> int:
    """Return the most records that may stand between the look and the operation."""
    return window_records // _SHARE


def records_needed(window_records: int) -> int:
    """Return the number of records below its cursor that a HAProc must know to judge later ones."""
    return window_records + reach(window_records)


def redefined_by(
    op: Operation, evolves: bool | None = None, *, writes_known: bool = False
) -> frozenset[str] | None:
    """Return the names that the operation may redefine, of those it writes; None: anything.

    Decided once, where the operation is made, and written into the record. ``evolves``: whether it
    may change its table's columns by itself, where its plan was read. ``writes_known``:
    ``op.writes`` is all that it writes, though more may be read than is known.
    """
    if not (op.tables_known or writes_known):
        return None
    if op.kind in _NEVER:
        return frozenset()
    if op.kind in _MAY:
        return op.writes if _evolves(op, evolves) else frozenset()
    return op.writes


def _evolves(op: Operation, evolves: bool | None) -> bool:
    """True if an INSERT or a MERGE may change its table's columns.

    It does by WITH SCHEMA EVOLUTION, by an option, or by a setting of the session. Plain rows
    (`Operation.insert`) have no options.
    """
    if _merges_by_itself(op.settings):
        return True
    if isinstance(op.write, ArrowRows | SpooledRows) or op.insert is not None:
        return False
    if evolves is not None:
        return evolves
    if isinstance(op.write, SparkPlan | ComputedPlan):
        reading = read_plan(parse(protos.base.Plan, op.write.plan))
        return reading.evolves or (reading.sql is not None and _evolves_by_text(reading.sql.text))
    return _evolves_by_text(op.write.sql)


def _evolves_by_text(sql: str) -> bool:
    if "with" not in sql.lower():
        return False
    try:
        tokens = [t for t in tokenize(sql) if t.kind is not TokenKind.HINT]
    except LexicalError:
        return True
    return any(
        token.upper == "WITH" and (following.upper == "SCHEMA" or following.is_symbol("("))
        for token, following in pairwise(tokens)
    )


def _merges_by_itself(settings: Settings) -> bool:
    return any(
        any(word in key.lower() for word in _MERGING) and value.strip().lower() != "false"
        for key, value in settings.confs
    )


def redefined(op: Operation | Fence) -> frozenset[str] | None:
    """Return the names that a record of the log may redefine; None: anything."""
    return frozenset({op.name}) if isinstance(op, Fence) else op.redefines


class Definitions:
    """The definitions that the last records changed; ``window_records`` as in `Window`."""

    def __init__(self, window_records: int) -> None:
        self._reach = reach(window_records)
        self._anything = self._something = -1
        self._newest: dict[str, int] = {}
        self._order: deque[tuple[int, str]] = deque()
        self._read_to = 0
        self._known_from = 0

    @property
    def known_from(self) -> int:
        """All records from here on were seen, as far as is remembered."""
        return self._known_from

    def begin(self, known_from: int) -> None:
        """The first record that will be noted stands there."""
        self._known_from = known_from

    def note(self, offset: int, op: Operation | Fence) -> None:
        """Take in a record, whatever becomes of it; offsets must rise from call to call."""
        self._read_to = offset + 1
        names = redefined(op)
        if names != NOTHING:
            self._something = offset
        if names is None:
            self._anything = offset
            return
        for name in names:
            self._newest[name] = offset
            self._order.append((offset, name))
        while self._order and self._order[0][0] < offset - self._reach:
            old, name = self._order.popleft()
            if self._newest.get(name) == old:
                del self._newest[name]

    def stale(self, offset: int, op: Operation) -> bool | None:
        """True if a definition that the operation rests on may have changed since its analysis.

        ``offset``: the operation's place. None if this HAProc has not read enough of the log.
        """
        if op.analyzed_to is None:
            return False
        if offset - op.analyzed_to > reach(op.window):
            return True
        if self._defined_since(op.rests_on, op.analyzed_to):
            return True
        return None if op.analyzed_to < self._known_from else False

    def unchanged(self, names: Iterable[str], since: int) -> bool:
        """True if no record from ``since`` up to the newest one read may have redefined a name."""
        remembered = max(self._known_from, self._read_to - self._reach)
        return since >= remembered and not self._defined_since(names, since)

    def _defined_since(self, names: Iterable[str], since: int) -> bool:
        return self._anything >= since or any(
            (self._something if name == ANYTHING else self._newest.get(name, -1)) >= since
            for name in names
        )


TABLES_MAX: Final = 10_000
"""Of more tables than this it is no longer known which were written when. Chosen: a few MiB."""


def defines(op: Operation) -> bool:
    """True if an operation may change the meaning of a query: its names, or their types.

    An exclusive operation may, because it may touch more than it names.
    """
    return op.exclusive or redefined(op) != NOTHING


def touches(op: Operation, tables: frozenset[str]) -> bool:
    """True if an operation may change the result of a query of these tables."""
    return defines(op) or not op.writes.isdisjoint(tables)


class Written:
    """The newest offset at which each table is written, for answers that may be given again.

    An answer that shows all writes to its tables below an offset is still right at a later one if
    no record in between writes any of them. Records are known when they are read, long before they
    are applied. Their outcomes are not looked at: a record that was rejected, is stale or repeats
    another costs an answer, and no more.

    It receives every operation that this process reads, with rising offsets.
    """

    def __init__(self, tables_max: int = TABLES_MAX) -> None:
        self._tables_max = tables_max
        self._newest: dict[str, int] = {}
        self._defined = self._unknown = -1

    def note(self, offset: int, op: Operation) -> None:
        """Take in an operation, whatever becomes of it."""
        if defines(op):
            self._defined = offset
        self._newest.update(dict.fromkeys(op.writes, offset))
        if len(self._newest) > self._tables_max:
            self._newest.clear()
            self._unknown = offset

    @property
    def newest(self) -> Mapping[str, int]:
        """The offset of the newest write of each table that is known."""
        return self._newest

    def defined(self, since: int) -> bool:
        """True if a record from ``since`` on may have changed the meaning of any query."""
        return self._defined >= since

    def changed(self, tables: Iterable[str], since: int) -> bool:
        """True if a record from ``since`` on may change the result of a query of these tables."""
        newest = max((self._newest.get(name, -1) for name in tables), default=-1)
        return max(newest, self._defined, self._unknown) >= since


# Which DDL touches nothing but the tables that it names, so that it need not wait for all others.
#
# What names a place may touch the files of a table that it does not name. An operation on a schema
# or a function touches names that it does not contain. So this is a closed list, and whatever is
# not certain is not on it. Decided once, where the operation is made, and written into its record.


_KINDS: Final = frozenset(
    {
        Kind.CREATE_TABLE,
        Kind.CREATE_TABLE_AS,
        Kind.ALTER_TABLE,
        Kind.DROP_TABLE,
        Kind.CREATE_VIEW,
        Kind.ALTER_VIEW,
        Kind.DROP_VIEW,
    }
)
_PLACES: Final = (b"path", b"location")
"""Parts of the names of a plan's options that give the place of a table's files."""
_GOES_ON: Final = frozenset({"FROM", "AS"})
"""Behind a column of the name ``location``."""


def names_all(op: Operation) -> bool:
    """True if an operation is DDL that touches only the tables that it names."""
    if not (op.tables_known and op.writes) or op.kind not in _KINDS:
        return False
    match op.write:
        case ArrowRows() | SpooledRows():
            return False
        case SparkPlan(plan):
            return not _names_place(plan)
        case ComputedPlan(query, template):
            return not (_names_place(query) or _names_place(template))
    return not _may_name_place(op.write.sql, renames=op.kind in (Kind.ALTER_TABLE, Kind.ALTER_VIEW))


def _names_place(plan: bytes) -> bool:
    plan = plan.lower()
    return any(word in plan for word in _PLACES)


def _may_name_place(sql: str, *, renames: bool) -> bool:
    """True if a text may name a place of files, or ``renames`` its target."""
    try:
        tokens = [token for token in tokenize(sql) if token.kind is not TokenKind.HINT]
    except LexicalError:
        return True
    if renames and any(token.upper == "RENAME" for token in tokens):
        return True
    return any(
        (token.upper == "OPTIONS" and following.is_symbol("("))
        or (token.upper == "LOCATION" and not _is_column(following))
        for token, following in pairwise(tokens)
    )


def _is_column(following: object) -> bool:
    kind, upper = getattr(following, "kind", None), getattr(following, "upper", "")
    return kind is TokenKind.SYMBOL or upper in _GOES_ON
