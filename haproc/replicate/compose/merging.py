"""Makes one SQL statement with the same effect as all changes in a `ComposedWindow`.

Its source consists of groups: entries of equal form. The literals of a group are in one VALUES
list, with the types that each of them has alone. The group's SELECT casts them to the types of
their columns. An entry is

- a row to insert (its key is NULL, which matches nothing), or
- the change of the table's rows with one key: ``p`` is the number of the MERGE's clause for it; 0:
  none. The entry may also have a row that is inserted if the table has no row of this key. A key
  has only one such entry, so no row of the table is matched twice.

``i`` is true if an entry has a row to insert. The statement is a MERGE if the effect depends on the
table's rows, else an INSERT.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from haproc.classify.insert import combined_signature
from haproc.engine.confs import quoted, quoted_name
from haproc.replicate.compose.terms import Cell, Own, Piece, literal_type_text
from haproc.replicate.compose.window import ComposedWindow, State

GROUPS_MAX: Final = 48
CLAUSES_MAX: Final = 24
"""The most groups and clauses of one statement. Chosen: a group is a branch of a UNION, and each
clause is checked for each row."""
_TARGET, _SOURCE = "haproc_t", "haproc_s"

_Pieces: TypeAlias = tuple[str | Own | None, ...]
"""The pieces of a term (see `terms`), with None in place of each literal."""
_Values: TypeAlias = tuple[tuple[str, _Pieces], ...]


@dataclass(frozen=True, slots=True)
class _Form:
    """The common form of a group's entries: all but the literals.

    ``row``: the values of an inserted row; None: no row. ``sets``: the new values of the table's
    rows with the key. ``shared``: more columns that get a new value, the same one as in ``row``.
    """

    row: _Values | None
    keyed: bool = False
    deletes: bool = False
    sets: _Values = ()
    shared: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Group:
    form: _Form
    letters: str
    rows: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Branch:
    """A group as a branch of the source's UNION.

    ``values``: its values by column. ``clause``: what the MERGE does to the table's rows that match
    it; empty: nothing. ``inserts``: True if its entries have a row to insert.
    """

    values: dict[str, str]
    clause: str
    inserts: bool


def statement(table: str, window: ComposedWindow) -> str | None:
    """Return one statement with the effect of the window; None if that would be too large.

    None also if the window has no effect. ``table``: the table's full name, as operations have it.
    """
    groups = _groups(window)
    if not groups:
        return None
    branches = [_branch(window, group) for group in groups]
    clauses = list(dict.fromkeys(b.clause for b in branches if b.clause))
    if len(clauses) > CLAUSES_MAX:
        return None
    merges = any(group.form.keyed for group in groups)
    columns = _inserted_columns(window, branches)
    types = _source_types(window, branches, columns)
    if window.cells_max is not None and len(branches) * len(types) > window.cells_max:
        return None
    lists = ", ".join(_list(number, group) for number, group in enumerate(groups))
    selects = " UNION ALL ".join(
        _select(number, branch, clauses if merges else None, types)
        for number, branch in enumerate(branches)
    )
    source = f"WITH {lists} {selects}"
    names = ", ".join(quoted(window.names[c.removeprefix("c_")]) for c in columns)
    if not merges:
        return f"INSERT INTO {quoted_name(table)} ({names}) {source}"
    on = " AND ".join(
        f"{_TARGET}.{quoted(window.names[name])} = {_SOURCE}.k{n}"
        for n, name in enumerate(window.keys)
    )
    parts = [
        f"MERGE INTO {quoted_name(table)} AS {_TARGET} USING ({source}) AS {_SOURCE} ON {on}",
        *(f"WHEN MATCHED AND {_SOURCE}.p = {n} THEN {c}" for n, c in enumerate(clauses, 1)),
    ]
    if columns:
        values = ", ".join(f"{_SOURCE}.{quoted(column)}" for column in columns)
        parts.append(f"WHEN NOT MATCHED AND {_SOURCE}.i THEN INSERT ({names}) VALUES ({values})")
    return "\n".join(parts)


# -- groups --------------------------------------------------------------------------------


def _groups(window: ComposedWindow) -> list[_Group]:
    """Return the groups of all entries; an empty list if they are too many."""
    found: dict[_Form, list[_Group]] = {}
    count = 0
    for form, cells in _entries(window):
        count += _enter(found, form, cells)
        if count > GROUPS_MAX:
            return []
    return [group for groups in found.values() for group in groups]


def _entries(window: ComposedWindow) -> Iterator[tuple[_Form, list[Cell]]]:
    for row in window.rows:
        if not row.gone:
            yield _Form(_form(row.state)), _cells(row.state)
    for effect in window.row_effects.values():
        comes, state = effect.comes, effect.state or {}
        if comes is None and effect.state == {}:
            continue
        given = comes or {}
        shared = frozenset(name for name in state if given.get(name) == state[name])
        own = {name: term for name, term in state.items() if name not in shared}
        values = None if comes is None else _form(comes)
        form = _Form(values, True, effect.state is None, _form(own), shared)
        yield form, [*effect.cells, *_cells(given), *_cells(own)]


def _form(state: State) -> _Values:
    return tuple(
        (name, tuple(None if isinstance(piece, Cell) else piece for piece in term))
        for name, term in sorted(state.items())
    )


def _cells(state: State) -> list[Cell]:
    terms = (term for _, term in sorted(state.items()))
    return [piece for term in terms for piece in term if isinstance(piece, Cell)]


def _enter(found: dict[_Form, list[_Group]], form: _Form, cells: Sequence[Cell]) -> bool:
    """Add an entry to the group with its form and its literals' types; True if a new group."""
    letters, row = ",".join(cell.letter for cell in cells), ", ".join(cell.text for cell in cells)
    groups = found.setdefault(form, [])
    for group in groups:
        together = combined_signature(group.letters, letters)
        if together is not None:
            group.letters = together
            group.rows.append(row)
            return False
    groups.append(_Group(form, letters, [row]))
    return True


def _list(number: int, group: _Group) -> str:
    """Return a group's literals as a named VALUES list."""
    names = ", ".join(f"x{n}" for n in range(group.letters.count(",") + 1))
    return f"v{number} ({names}) AS (VALUES {', '.join(f'({row})' for row in group.rows)})"


# -- branches ------------------------------------------------------------------------------


def _branch(window: ComposedWindow, group: _Group) -> _Branch:
    """Return the branch for a group: its columns in the source, and its MERGE clause."""
    form, letters = group.form, group.letters.split(",")
    values: dict[str, str] = {}
    places = iter(range(len(letters)))
    if form.keyed:
        for n, name in enumerate(window.keys):
            values[f"k{n}"] = f"CAST(x{next(places)} AS {window.types[name].upper()})"
    for name, pieces in form.row or ():
        values[f"c_{name}"] = _with(window, pieces, [f"x{n}" for n in _taken(pieces, places)])
    if not form.keyed or form.deletes:
        return _Branch(values, "DELETE" if form.deletes else "", form.row is not None)
    assigned = {name: f"{_SOURCE}.{quoted(f'c_{name}')}" for name in form.shared}
    slots: dict[str, int] = {}
    for name, pieces in form.sets:
        at = _taken(pieces, places)
        if any(isinstance(piece, Own) for piece in pieces):
            found = [_slot(letters[n], n, slots, values) for n in at]
            assigned[name] = _with(window, pieces, found)
            continue
        # An inserted row may have another value in this column.
        column = f"c_{name}" if form.row is None else f"u_{name}"
        values[column] = _with(window, pieces, [f"x{n}" for n in at])
        assigned[name] = f"{_SOURCE}.{quoted(column)}"
    sets = ", ".join(f"{quoted(window.names[n])} = {text}" for n, text in sorted(assigned.items()))
    return _Branch(values, f"UPDATE SET {sets}" if sets else "", form.row is not None)


def _taken(pieces: _Pieces, places: Iterator[int]) -> list[int]:
    """Return the places of a term's literals among the group's literals."""
    return [next(places) for piece in pieces if piece is None]


def _slot(letter: str, place: int, slots: dict[str, int], values: dict[str, str]) -> str:
    """Return a literal as a clause refers to it: NULL, or a column of the source.

    The column is added to ``values``.
    """
    if letter == "n":
        return "NULL"
    number = slots[letter] = slots.get(letter, -1) + 1
    name = f"{letter.lower() if letter != 'T' else 'ts'}_{number}"
    values[name] = f"CAST(x{place} AS {literal_type_text(letter)})"
    return f"{_SOURCE}.{name}"


def _with(window: ComposedWindow, pieces: _Pieces, literals: Sequence[str]) -> str:
    """Return a term as SQL text, with ``literals`` in the places of its literals."""
    rest = iter(literals)
    texts: list[Piece] = []
    for piece in pieces:
        if piece is None:
            texts.append(next(rest))
        elif isinstance(piece, Own):
            texts.append(f"{_TARGET}.{quoted(window.names[piece.name])}")
        else:
            texts.append(piece)
    return " ".join(str(text) for text in texts)


# -- the source ----------------------------------------------------------------------------


def _inserted_columns(window: ComposedWindow, branches: Sequence[_Branch]) -> list[str]:
    """Return the source's columns with a value in any inserted row, in the table's order."""
    named = {name for branch in branches if branch.inserts for name in branch.values}
    return [f"c_{name}" for name in window.names if f"c_{name}" in named]


def _source_types(
    window: ComposedWindow, branches: Sequence[_Branch], inserted: Sequence[str]
) -> dict[str, str]:
    """Return the source's columns, each with the type that it has in every branch."""
    names = [name for branch in branches for name in branch.values]
    types: dict[str, str] = {}
    for name in dict.fromkeys((*inserted, *names)):
        if name.startswith(("c_", "u_")):
            types[name] = window.types[name[2:]].upper()
        elif name.startswith("k"):
            types[name] = window.types[window.keys[int(name[1:])]].upper()
        else:
            found = next(b.values[name] for b in branches if name in b.values)
            types[name] = found.partition(" AS ")[2].removesuffix(")")
    return types


def _select(
    number: int, branch: _Branch, clauses: Sequence[str] | None, types: dict[str, str]
) -> str:
    """Return a branch as a SELECT. ``clauses``: those of the MERGE; None: of an INSERT."""
    items = [
        f"{branch.values.get(name, f'CAST(NULL AS {kind})')} AS {quoted(name)}"
        for name, kind in types.items()
    ]
    if clauses is not None:
        program = clauses.index(branch.clause) + 1 if branch.clause else 0
        items = [f"{program} AS p", f"{str(branch.inserts).upper()} AS i", *items]
    return f"SELECT {', '.join(items)} FROM v{number}"
