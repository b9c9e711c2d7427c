"""Finds out, after a failed attempt, if the cluster has committed the statement.

The table's transaction marker shows it; for DDL, the fingerprint of the objects that it names.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from haproc import protos
from haproc.classify.model import Kind
from haproc.classify.names import NAMESPACES, Context, defined_object, joined
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import parse
from haproc.engine.confs import quoted_name
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import ABSENT, UNREADABLE, Lane, Named, Settings, Sort
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.replicate.agree.poison_rejection import conclusive
from haproc.replicate.log_state.definitions import redefined
from haproc.replicate.member.core import Core
from haproc.replicate.queue.units import Unit
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, SpooledRows

LOOKS_MAX: Final = 16
"""The most lookups that `Foreseen` keeps. One more replaces the oldest, which is done later."""
AGE_MS_MAX: Final = 5_000
"""A lookup that began longer ago is not used, because the storage may have changed. Chosen: longer
than Spark analyzes a statement."""


@dataclass(slots=True, eq=False)
class _Look:
    finished: int
    began_ms: int
    over: bool = False
    found: str = ""
    """The fingerprint; empty if the lookup failed."""


class Foreseen:
    """Looks up the fingerprints of objects early: while the DDL about them is still analyzed.

    Lookup and analysis each take about as long as the statement itself. A lookup is used only if no
    operation has finished on this cluster since before it began. An operation that changes these
    objects must finish before the DDL starts, so the lookup is not used then.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._looks: OrderedDict[tuple[Named, ...], _Look] = OrderedDict()

    def look(self, named: tuple[Named, ...]) -> None:
        """Begin the lookup for a statement that will be appended; ``named``: its objects."""
        if not named:
            return
        core = self._core
        look = self._looks[named] = _Look(core.schedule.finished, core.unix_ms())
        self._looks.move_to_end(named)
        if len(self._looks) > LOOKS_MAX:
            self._looks.popitem(last=False)
        core.tasks.spawn(self._run(named, look))

    async def _run(self, named: tuple[Named, ...], look: _Look) -> None:
        try:
            look.found = await self._core.engine.object_fingerprint(named)
        except EngineError:
            pass  # `object_fingerprint` asks again, and raises the error
        finally:
            look.over = True
            self._core.news.moved()

    async def object_fingerprint(self, named: tuple[Named, ...]) -> str:
        """Return the present fingerprint of the objects; raises EngineError.

        The caller makes sure that no DDL on these objects runs meanwhile.
        """
        look = self._looks.pop(named, None)
        if look is not None and self._counts(look):
            await self._core.news.until(lambda: look.over)
            if look.found and self._counts(look):
                return look.found
        return await self._core.engine.object_fingerprint(named)

    def _counts(self, look: _Look) -> bool:
        core = self._core
        recent = core.unix_ms() - look.began_ms <= AGE_MS_MAX
        return recent and look.finished == core.schedule.finished


TABLES_KNOWN_MAX: Final = 10_000
"""The most tables of which is remembered if they keep transaction markers. Chosen: a megabyte."""
BEFORE_CHARACTERS_MAX: Final = 24
"""A longer fingerprint is replaced by its hash, so that several fit beside the cursor."""
_CREATES_TABLE: Final = frozenset({Kind.CREATE_TABLE, Kind.CREATE_TABLE_AS})
_ABOUT_TABLES: Final = _CREATES_TABLE | {
    Kind.ALTER_TABLE,
    Kind.DROP_TABLE,
    Kind.CREATE_VIEW,
    Kind.ALTER_VIEW,
    Kind.DROP_VIEW,
    Kind.COMMENT,
    Kind.RESTORE,
    Kind.OTHER_DDL,
}
_CHANGES_NO_ROWS: Final = frozenset({Kind.OPTIMIZE, Kind.VACUUM, Kind.ANALYZE})
_ABOUT_OTHERS: Final = frozenset(
    {
        Kind.CREATE_NAMESPACE,
        Kind.ALTER_NAMESPACE,
        Kind.DROP_NAMESPACE,
        Kind.CREATE_FUNCTION,
        Kind.DROP_FUNCTION,
    }
)


def about(op: Operation) -> tuple[Named, ...]:
    """Return the objects that DDL changes; empty for other statements, or if none is known."""
    if (
        isinstance(op.write, ArrowRows | SpooledRows)
        or op.kind not in _ABOUT_TABLES | _ABOUT_OTHERS
    ):
        return ()
    if op.kind in _ABOUT_TABLES and op.writes:
        content = not _drops_one(op)
        return tuple(Named(Sort.TABLE, name, content) for name in sorted(op.writes))
    if isinstance(op.write, SparkPlan):
        return _about_plan(op, op.write)
    if isinstance(op.write, ComputedPlan):
        return ()
    found = defined_object(op.write.sql, Context(op.settings.catalog, op.settings.schema))
    if found is None:
        return ()
    what, name = found
    if what in NAMESPACES:
        return (Named(Sort.NAMESPACE, name),)
    return (Named(Sort.FUNCTION if what == "FUNCTION" else Sort.TABLE, name),)


def _drops_one(op: Operation) -> bool:
    """True if the operation only drops one table or view."""
    return op.kind in (Kind.DROP_TABLE, Kind.DROP_VIEW) and len(op.writes) == 1


def _about_plan(op: Operation, write: SparkPlan) -> tuple[Named, ...]:
    """Return the namespace that a call of Spark's catalog creates or drops; empty: another call."""
    parts = read_plan(parse(protos.base.Plan, write.plan)).target
    if not parts:
        return ()
    full = parts if len(parts) > 1 else (op.settings.catalog, *parts)
    return (Named(Sort.NAMESPACE, joined(full)),)


class Doubts:
    """Finds out if a unit in doubt was committed.

    A statement with a transaction marker was committed if its tables have the marker.

    DDL has no marker. Before its first attempt this cluster stores a fingerprint of the objects
    that the DDL names. No other operation changes these objects until the DDL has an outcome. So a
    later attempt compares:

    - The objects have changed: the DDL was committed.
    - They have not changed: the DDL had no effect, and runs again. Its answer is that of a first
      run: "already exists" is an error.

    An interrupted CREATE TABLE can leave files, or an incomplete table. These are removed before
    the DDL runs again.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kept: OrderedDict[str, bool] = OrderedDict()
        """By table: True if it keeps transaction markers; removed when it is redefined."""
        self._foreseen = Foreseen(core)

    def foresee(self, op: Operation) -> None:
        """Begin early to look up the objects of an operation that is about to be appended."""
        self._foreseen.look(about(op))

    async def note(self, unit: Unit) -> None:
        """Note the fingerprint of the objects that a DDL unit names, before its first attempt.

        The caller stores it. Raises EngineError.
        """
        named = about(unit.operations[0])
        before = _short(await self._foreseen.object_fingerprint(named)) if named else ""
        self._core.schedule.unmarked.stood(unit.offsets[0], before)

    def _before(self, unit: Unit) -> str:
        return self._core.schedule.unmarked.before(unit.offsets[0])

    async def tables_show(self, unit: Unit) -> bool:
        """True if the tables will show for certain whether a unit was committed.

        True also for a statement that changes no rows: a second run makes no difference.
        """
        op = unit.operations[0]
        if op.kind in _CHANGES_NO_ROWS or (about(op) and self._before(unit)):
            return True
        try:
            return conclusive(op) and all([await self._keeps_marks(name) for name in op.writes])
        except EngineError:
            return False

    async def _keeps_marks(self, table: str) -> bool:
        if table not in self._kept:
            self._kept[table] = await self._core.engine.keeps_marks(table)
            if len(self._kept) > TABLES_KNOWN_MAX:
                self._kept.popitem(last=False)
        return self._kept[table]

    def redefined(self, op: Operation) -> None:
        """Forget what is known of the tables that this operation may have redefined."""
        tables = redefined(op)
        for table in list(self._kept if tables is None else tables):
            self._kept.pop(table, None)

    async def settled(self, unit: Unit, lane: Lane) -> bool:
        """Return True if the unit was applied; else remove its remains, so that it can run again.

        The caller has made sure that no earlier attempt runs. Raises EngineError.
        """
        if await self.committed(unit):
            return True
        op, before = unit.operations[0], self._before(unit)
        if op.kind in _CREATES_TABLE and before == ABSENT and (named := about(op)):
            now = await self._core.engine.object_fingerprint(named)
            await self._take_away(named[0].name, now, unit, lane)
        return False

    async def committed(self, unit: Unit) -> bool:
        """True if tables or other objects show that the unit was applied; raises EngineError."""
        core, op = self._core, unit.operations[0]
        before, named = self._before(unit), about(op)
        if not before or not named:
            found = await core.engine.offsets_applied(sorted(op.writes), core.own_log.application)
            return any(offset >= unit.version for offset in found.values())
        now = await core.engine.object_fingerprint(named)
        if op.kind in _CREATES_TABLE and before == ABSENT:
            return _complete(op.kind, now)
        if _drops_one(op):
            return before != ABSENT and now == ABSENT
        changed = before != _short(now)
        if changed and UNREADABLE in now.split("/"):
            raise EngineError(
                ErrorKind.ENVIRONMENT, f"what {op.kind.value} changed cannot be read: {now}"
            )
        return changed

    async def _take_away(self, table: str, now: str, unit: Unit, lane: Lane) -> None:
        """Remove the table and the files that an interrupted CREATE TABLE left.

        Spark has no statement that removes files, but DROP SCHEMA removes all files at its place:
        so a schema is made at the table's place, and dropped. A lane runs the statements, so a
        process that was replaced cannot.
        """
        core = self._core
        sqls = [] if now == ABSENT else [f"DROP TABLE IF EXISTS {quoted_name(table)}"]
        if place := await core.engine.default_place(table):
            log = hashlib.blake2b(core.own_log.application.encode(), digest_size=4).hexdigest()
            schema = f"spark_catalog.haproc_clear_{log}_{unit.version}"
            text = place.replace("\\", "\\\\").replace("'", "\\'")
            sqls += [
                f"CREATE SCHEMA IF NOT EXISTS {schema} LOCATION '{text}'",
                f"DROP SCHEMA {schema}",
            ]
        for sql in sqls:
            await lane.apply(SqlText(sql), Settings(), None, timeout_s=core.timeouts.apply_s)


def _short(text: str) -> str:
    if len(text) <= BEFORE_CHARACTERS_MAX:
        return text
    return hashlib.blake2b(text.encode(), digest_size=BEFORE_CHARACTERS_MAX // 2).hexdigest()


def _complete(kind: Kind, now: str) -> bool:
    """True if a table that did not exist before was created completely; ``now``: its fingerprint.

    A Delta table enters the catalog as the last step; so does any table that is created without
    rows. Others may be in the catalog before all of their partitions are.
    """
    if now in (ABSENT, UNREADABLE):
        return False
    return "@" in now or kind is Kind.CREATE_TABLE
