"""Finds out from the log which names were redefined, and so which operations are stale.

Also the newest write of each table, for cached answers, and DDL that touches only what it names.
"""

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

# Stale operations: a definition that they rest on has changed before their place in the log.
#
# Before a HAProc appends an operation, it looks up the definitions of the operation's tables, views
# and functions. The record's content depends on them: does the query's text mean the same
# everywhere, or must rows replace it? The operation names what it *rests on*, and ``analyzed_to``:
# the lookup was made on a cluster that had applied all records below. If a record between there and
# the operation may have changed one of these definitions, the operation is *stale*: every cluster
# passes over it, and its HAProc analyzes it again and appends it anew.
#
# Only the log decides whether an operation is stale. The outcomes of the records in between do not
# matter, nor whether they are stale or repetitions: such a record costs one more analysis. The
# question is always "since ``analyzed_to``", so the newest change of each name is all that is kept.
#
# ``analyzed_to`` may be at most `reach` records back: a share of the operation's own idempotency
# window. So a HAProc that reads the log from ``records_needed`` below its cursor knows the stale
# records of the window, and the new records that repeat one that is not stale.


_SHARE: Final = 4
"""A quarter of the window. Chosen: even at the highest rate of a ring, a quarter of the default
window lasts some seconds. And to read a quarter more at a start costs little."""

NOTHING: Final = frozenset[str]()
ANYTHING: Final = "*"
"""In `Operation.rests_on`: the operation may also rest on names that are not in the set."""
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
"""Kinds of statements that change a table's rows, and never its schema."""
_MAY: Final = frozenset({Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.MERGE})
"""Kinds of statements that change a table's schema only if they say so, or a setting does."""
_MERGING: Final = ("automerge", "overwriteschema")
"""Parts of the names of settings by which every statement may change a table's schema."""


def reach(window_records: int) -> int:
    """Return how many records may lie between an operation's ``analyzed_to`` and the operation.

    With more it counts as stale.
    """
    return window_records // _SHARE


def records_needed(window_records: int) -> int:
    """Return how many records below its cursor a HAProc must read to judge new operations."""
    return window_records + reach(window_records)


def redefined_by(
    op: Operation, evolves: bool | None = None, *, writes_known: bool = False
) -> frozenset[str] | None:
    """Return the names that an operation may redefine, of those it writes; None: any name.

    The HAProc that makes the operation stores this in the record. ``evolves``: the plan shows that
    the operation may change its table's columns; None: no plan was read. ``writes_known``: the
    operation writes only ``op.writes``, even if not all that it reads is known.
    """
    if not (op.tables_known or writes_known):
        return None
    if op.kind in _NEVER:
        return frozenset()
    if op.kind in _MAY:
        return op.writes if _evolves(op, evolves) else frozenset()
    return op.writes


def _evolves(op: Operation, evolves: bool | None) -> bool:
    """True if an INSERT or a MERGE may change the columns of its table.

    It may because of WITH SCHEMA EVOLUTION, an option, or a setting of the session. An INSERT of
    plain rows (`Operation.insert`) has no options.
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
    """Return the names that an operation or a fence may redefine; None: any name."""
    return frozenset({op.name}) if isinstance(op, Fence) else op.redefines


class Definitions:
    """The newest redefinition of each name in the last records, as far back as `reach`."""

    def __init__(self, window_records: int) -> None:
        self._reach = reach(window_records)
        self._anything = self._something = -1
        self._newest: dict[str, int] = {}
        self._order: deque[tuple[int, str]] = deque()
        self._read_to = 0
        self._known_from = 0

    @property
    def known_from(self) -> int:
        """The offset from which on all records were noted here."""
        return self._known_from

    def begin(self, known_from: int) -> None:
        """Set ``known_from``: the offset of the first record that will be noted."""
        self._known_from = known_from

    def note(self, offset: int, op: Operation | Fence) -> None:
        """Note a record, whatever its outcome; offsets must rise from call to call."""
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
        """True if a definition that the operation rests on may have changed since it was analyzed.

        ``offset``: the operation's own. None if this HAProc has not read enough of the log to know
        it.
        """
        if op.analyzed_to is None:
            return False
        if offset - op.analyzed_to > reach(op.window):
            return True
        if self._defined_since(op.rests_on, op.analyzed_to):
            return True
        return None if op.analyzed_to < self._known_from else False

    def unchanged(self, names: Iterable[str], since: int) -> bool:
        """True if no record read so far, from ``since`` on, may have redefined one of the names.

        False also if that is too far back to be known.
        """
        remembered = max(self._known_from, self._read_to - self._reach)
        return since >= remembered and not self._defined_since(names, since)

    def _defined_since(self, names: Iterable[str], since: int) -> bool:
        return self._anything >= since or any(
            (self._something if name == ANYTHING else self._newest.get(name, -1)) >= since
            for name in names
        )


TABLES_MAX: Final = 10_000
"""The most tables whose newest writes are remembered. Chosen: a few MiB."""


def defines(op: Operation) -> bool:
    """True if the operation may change what queries mean: it may redefine a name.

    An exclusive operation may always do so, because it may touch more than it names.
    """
    return op.exclusive or redefined(op) != NOTHING


def touches(op: Operation, tables: frozenset[str]) -> bool:
    """True if the operation may change the result of a query that reads these tables."""
    return defines(op) or not op.writes.isdisjoint(tables)


class Written:
    """The offset of the newest write of each table, to tell if cached answers are still right.

    An answer that shows all writes to its tables below an offset is still right at a later offset
    if no record in between writes these tables. Records are noted when they are read, long before
    they are applied. Their outcomes do not matter: a record without effect costs a cached answer,
    and no more.

    Every operation that this process reads must be noted, with rising offsets.
    """

    def __init__(self, tables_max: int = TABLES_MAX) -> None:
        self._tables_max = tables_max
        self._newest: dict[str, int] = {}
        self._defined = self._unknown = -1

    def note(self, offset: int, op: Operation) -> None:
        """Note an operation, whatever its outcome."""
        if defines(op):
            self._defined = offset
        self._newest.update(dict.fromkeys(op.writes, offset))
        if len(self._newest) > self._tables_max:
            self._newest.clear()
            self._unknown = offset

    @property
    def newest(self) -> Mapping[str, int]:
        """By table, the offset of its newest known write."""
        return self._newest

    def defined(self, since: int) -> bool:
        """True if an operation from offset ``since`` on may have redefined a name."""
        return self._defined >= since

    def changed(self, tables: Iterable[str], since: int) -> bool:
        """True if an operation from offset ``since`` on may change a query of these tables."""
        newest = max((self._newest.get(name, -1) for name in tables), default=-1)
        return max(newest, self._defined, self._unknown) >= since


# DDL that touches only the tables that it names, so it need not wait for operations on others.
#
# DDL with a place of files may touch the files of a table that it does not name. An operation on a
# schema or a function touches names that it does not contain. So the list of kinds is closed, and a
# doubtful one is not on it. The HAProc that makes an operation stores the result in its record.


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
"""Parts of the names of options in a plan that say where a table's files are."""
_GOES_ON: Final = frozenset({"FROM", "AS"})
"""Words that may follow the name ``location`` if it is a column, not the keyword."""


def names_all(op: Operation) -> bool:
    """True if the operation is DDL that touches only the tables that its text or plan names."""
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
    """True if a statement's text may say where files are.

    With ``renames`` also if it has RENAME.
    """
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
