"""The combined effect of consecutive statements on one table, by key. Values in, values out.

A *key* is the values of the columns that conditions compare, such as 7 in ``WHERE id = 7``. A
window takes changes in the order of the log, and keeps their combined effect: for each key, the new
values of the table's rows with this key; for each inserted row, its present values. Keys need not
be unique: an UPDATE changes the state of its key, and of each earlier inserted row with it.

An upsert (MERGE) either updates or inserts. That depends on whether a row with its key exists,
which the window mostly cannot know. So it keeps both: the new values of the table's rows, and one
row *that is inserted if the table has none*. Later changes apply to both. After the upsert the key
has a row in either case.

A change may enter only if its effect in the window is the same as alone, *provided that each of the
statements alone succeeds*: the caller must know that. If this is not certain, the change stays out
(`take` returns False), and the window does not change. The conditions:

- All conditions fix the same columns, whose types let literals show if values are equal.
- Every written column stores values unchanged (see `terms`).
- No key changes, and an upsert inserts rows with the key that it compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from haproc.engine.interface import Column
from haproc.replicate.compose.terms import (
    NULL,
    PIECES_MAX,
    Cell,
    Change,
    Changed,
    Expression,
    Given,
    Inserted,
    Key,
    Merged,
    Own,
    Sets,
    Term,
    bound,
    has_keys,
    is_plain,
    key_value,
    put_into,
    settled,
    storable,
    stored,
)

State: TypeAlias = dict[str, Term]
"""The present value of each column of a row; a column that is missing here is unchanged."""
PIECES_PER_CELL: Final = 3
"""The pieces of a term that count as one cell: a literal with its cast has three."""


class _Unfit(Exception):
    """The change must stay out of the window."""


@dataclass(slots=True)
class Row:
    """A row that the window inserts; ``gone``: a later change has deleted it."""

    state: State
    gone: bool = False


@dataclass(slots=True)
class RowEffect:
    """The effect on the table's rows with one key.

    ``cells``: the key's literals. ``state``: the rows' new values; None: the rows are deleted.
    ``otherwise``: the row that is inserted if the table has none with the key.
    """

    cells: tuple[Cell, ...]
    state: State | None = field(default_factory=dict)
    otherwise: Row | None = None

    @property
    def comes(self) -> State | None:
        """The present values of ``otherwise``; None if no row is inserted."""
        return None if self.otherwise is None or self.otherwise.gone else self.otherwise.state


@dataclass(frozen=True, slots=True)
class _Effect:
    """The effect of one statement on the rows with one key. ``cells``: the key's literals.

    ``sets``: the rows' new values; None deletes them. ``row``: inserted if there is no such row.
    """

    cells: tuple[Cell, ...]
    sets: State | None
    row: Row | None = None


class ComposedWindow:
    """The combined effect of consecutive changes to one table. ``columns``: the table's columns.

    ``cells_max``: the most cells (rows times columns) that the changes read and write in all; None:
    no limit, for changes that have been in a window before.
    """

    def __init__(self, columns: Sequence[Column], cells_max: int | None = None) -> None:
        self.cells_max = cells_max
        self._columns = columns
        self.types: Mapping[str, str] = {c.name.lower(): c.type_text for c in columns}
        self.names: Mapping[str, str] = {c.name.lower(): c.name for c in columns}
        self.keys: tuple[str, ...] = ()
        """The columns that each condition compares; empty before the first condition."""
        self.rows: list[Row] = []
        self.row_effects: dict[Key, RowEffect] = {}
        self._all = tuple(self.types)
        self._ambiguous = len(self.types) < len(columns)
        self._by_key: dict[Key, list[Row]] = {}
        self._cells = 0

    def anew(self) -> ComposedWindow:
        """Return an empty window of the same table."""
        return ComposedWindow(self._columns, self.cells_max)

    def take(self, change: Change) -> bool:
        """Add a change; False if it must stay out because its effect could differ in the window."""
        if self._ambiguous:
            return False
        before = self._cells
        try:
            match change:
                case Inserted():
                    self._insert(change)
                case Changed():
                    self._change(change)
                case Merged():
                    self._merge(change)
        except (_Unfit, ValueError):
            self._cells = before
            return False
        return True

    def _spend(self, cells: int) -> None:
        """Count cells that will be read and written; raises _Unfit if they are too many."""
        self._cells += cells
        if self.cells_max is not None and self._cells > self.cells_max:
            raise _Unfit

    # -- inserted rows ---------------------------------------------------------------------

    def _insert(self, change: Inserted) -> None:
        columns = change.columns or self._all
        if len(set(columns)) < len(columns):
            raise _Unfit
        self._spend(len(change.rows) * len(columns))
        rows = []
        for cells in change.rows:
            if len(cells) != len(columns):
                raise _Unfit
            state = {
                name: self._constant(name, cell) for name, cell in zip(columns, cells, strict=True)
            }
            rows.append(Row(state))
        keys = [self._key_of(row, self.keys) if self.keys else None for row in rows]
        for row, key in zip(rows, keys, strict=True):
            self._add(row, key)

    def _add(self, row: Row, key: Key | None) -> None:
        self.rows.append(row)
        if key is not None:
            self._by_key.setdefault(key, []).append(row)

    def _constant(self, name: str, cell: Cell) -> Term:
        if not storable(cell, self._plain(name)):
            raise _Unfit
        return stored((cell,), self.types[name])

    def _plain(self, name: str) -> str:
        """Return the type of a column; raises _Unfit unless it stores values unchanged."""
        found = self.types.get(name, "")
        if not is_plain(found):
            raise _Unfit
        return found

    def _key_of(self, row: Row, names: Iterable[str]) -> Key | None:
        """Return an inserted row's key; None if it has a NULL, so that no condition is true."""
        values = []
        for name in names:
            cell = row.state[name][1] if name in row.state else NULL
            assert isinstance(cell, Cell)
            value = key_value(cell, self.types.get(name, ""))
            if value is None and cell.letter != "n":
                raise _Unfit
            values.append(value)
        return None if None in values else tuple(v for v in values if v is not None)

    # -- changed rows ----------------------------------------------------------------------

    def _change(self, change: Changed) -> None:
        self._spend(len(change.keys) * len(change.columns))
        sets = self._stated(change.columns, change.sets, {}, {})
        effects = {}
        for cells in change.keys:
            key = self._key(change.columns, cells)
            if key is not None:
                effects[key] = _Effect(cells, sets or None)
        self._take_effect(change.columns, effects)

    def _merge(self, change: Merged) -> None:
        types = dict(change.source)
        if change.whole and types.keys() != self.types.keys():
            raise _Unfit
        pairs = (*(change.sets or ()), *change.row)
        pieces = sum(len(value) for _, value in pairs)
        self._spend(len(change.rows) * (len(types) + len(pairs) + pieces // PIECES_PER_CELL))
        held = {name: (Given(on),) for name, on in zip(change.columns, change.on, strict=True)}
        # Setting a key column to the column that it is compared with changes nothing.
        sets = tuple((name, new) for name, new in change.sets or () if new != held.get(name))
        effects: dict[Key, _Effect] = {}
        unmatched = []
        for cells in change.rows:
            given = dict(zip(types, cells, strict=True))
            key_cells = tuple(given[name] for name in change.on)
            key = self._key(change.columns, key_cells)
            row = Row(self._stated((), change.row, given, types)) if change.row else None
            other = row is not None and self._key_of(row, change.columns) != key
            if other or key in effects:
                raise _Unfit
            if key is not None:
                news = self._stated(change.columns, sets, given, types)
                effects[key] = _Effect(key_cells, None if change.sets is None else news, row)
            elif row is not None:
                unmatched.append(row)
        self._take_effect(change.columns, effects)
        self.rows += unmatched

    def _key(self, columns: Sequence[str], cells: Sequence[Cell]) -> Key | None:
        """Return the key that these literals are; None if no row of the table can have it."""
        pairs = zip(columns, cells, strict=True)
        values = [key_value(cell, self.types.get(name, "")) for name, cell in pairs]
        return None if None in values else tuple(v for v in values if v is not None)

    def _take_effect(self, columns: tuple[str, ...], effects: Mapping[Key, _Effect]) -> None:
        if self.keys and columns != self.keys:
            raise _Unfit
        by_key = self._by_key if self.keys else self._filed(columns)
        self._spend(sum(1 + len(by_key.get(key, ())) for key in effects))
        row_effects = {k: self.row_effects.get(k) or RowEffect(e.cells) for k, e in effects.items()}
        there = {k: _there(row_effects[k], by_key.get(k, ())) for k, e in effects.items() if e.row}
        news = [
            each
            for key, effect in effects.items()
            for each in self._news(effect.sets or {}, row_effects[key], by_key.get(key, ()))
        ]
        self.keys, self._by_key = columns, by_key
        self.row_effects |= row_effects
        for state, new in news:
            state.update(new)
        for key, effect in effects.items():
            if effect.sets is None:
                self._delete(key)
            if effect.row is not None and there[key] is not True:
                self._come(key, effect.row, surely=there[key] is False)

    def _come(self, key: Key, row: Row, *, surely: bool) -> None:
        """Add the row that an upsert inserts; not ``surely``: only if the table has no such key."""
        if surely:
            self._add(row, key)
        else:
            self.row_effects[key].otherwise = row
            self._by_key.setdefault(key, []).append(row)

    def _filed(self, columns: tuple[str, ...]) -> dict[Key, list[Row]]:
        """Return the window's inserted rows by their key; ``columns``: the key's columns."""
        if not columns or not all(has_keys(self._plain(name)) for name in columns):
            raise _Unfit
        by_key: dict[Key, list[Row]] = {}
        for row in self.rows:
            key = self._key_of(row, columns)
            if key is not None:
                by_key.setdefault(key, []).append(row)
        return by_key

    def _stated(
        self, keys: Sequence[str], sets: Sets, given: Mapping[str, Cell], types: Mapping[str, str]
    ) -> State:
        """Return the new values that a statement sets; raises _Unfit if one is a key column.

        ``given``: the source's columns as literals; ``types``: their types.
        """
        if any(name in keys for name, _ in sets):
            raise _Unfit
        return {name: self._value(name, expression, given, types) for name, expression in sets}

    def _value(
        self, name: str, expression: Expression, given: Mapping[str, Cell], types: Mapping[str, str]
    ) -> Term:
        type_text = self._plain(name)
        alone = expression[0] if len(expression) == 1 else None
        if isinstance(alone, Given):
            alone = given[alone.name]
        if isinstance(alone, Cell):
            return self._constant(name, alone)
        for piece in expression:
            if isinstance(piece, Own):
                self._plain(piece.name)
        return stored(bound(settled(expression, self.types, types), given, types), type_text)

    def _news(
        self, sets: State, effect: RowEffect, rows: Sequence[Row]
    ) -> list[tuple[State, State]]:
        """Return each state of a key that an UPDATE changes, together with its new values."""
        if not sets:
            return []
        found = [(row.state, self._whole(row.state, sets)) for row in rows]
        if effect.state is not None:
            found.append((effect.state, effect.state))
        return [(state, self._put(sets, seen)) for state, seen in found]

    def _put(self, sets: State, seen: State) -> State:
        """Return a row's new values after an UPDATE (``sets``), from its values before (``seen``).

        Raises _Unfit if they are too long.
        """
        new = put_into_all(sets, seen)
        if any(len(term) > PIECES_MAX for term in new.values()):
            raise _Unfit
        self._spend(sum(map(len, new.values())) // PIECES_PER_CELL)
        return new

    def _whole(self, state: State, sets: State) -> State:
        """Return an inserted row's state, with NULL for used columns that its INSERT left out."""
        used = {piece.name for term in sets.values() for piece in term if isinstance(piece, Own)}
        absent = {name: stored((NULL,), self.types[name]) for name in used - state.keys()}
        return absent | state

    def _delete(self, key: Key) -> None:
        self.row_effects[key].state = None
        for row in self._by_key.pop(key, ()):
            row.gone = True


def _there(effect: RowEffect, rows: Sequence[Row]) -> bool | None:
    """True if the table has a row with a key after the changes; None if that is not known.

    False if it surely has none. ``rows``: the window's rows of the key. Raises _Unfit if the
    table's rows are deleted and ``otherwise`` is the only row: then the key has a row only if the
    table had none.
    """
    if any(row is not effect.otherwise for row in rows):
        return True
    if not rows:
        return None if effect.state is not None else False
    if effect.state is None:
        raise _Unfit
    return True


def put_into_all(sets: State, state: State) -> State:
    """Return a row's new values after an UPDATE (``sets``), all from its ``state`` before it."""
    return {name: put_into(term, state) for name, term in sets.items()}
