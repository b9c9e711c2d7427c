"""The stored content of a client's session, with its settings: its *journal*."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

from msgspec import Struct, structs

from haproc.classify.model import Kind
from haproc.engine.interface import Settings

# The settings of a session after a change of some: by name, or by a statement.
#
# Time zone and ANSI mode have fields of their own in `Settings`; names below ``haproc.`` are
# *options*, which decide how HAProc treats the session's statements and never reach Spark.


Options: TypeAlias = tuple[tuple[str, str], ...]
"""Names with their values, sorted."""
Pairs: TypeAlias = tuple[tuple[str, str], ...]

OPTIONS: Final = "haproc."
"""The prefix of options' names."""
_TIME_ZONE: Final = "spark.sql.session.timeZone"
_ANSI: Final = "spark.sql.ansi.enabled"
_OF_FIELDS: Final = frozenset({_TIME_ZONE.lower(), _ANSI})


def with_confs(
    settings: Settings, options: Options, sets: Pairs, unsets: Sequence[str], defaults: Settings
) -> tuple[Settings, Options]:
    """Return settings and options after some were unset, to the ring's defaults, and some set."""
    own, confs = dict(options), dict(settings.confs)
    zone, ansi = settings.time_zone, settings.ansi
    changes = [*((key, None) for key in unsets), *sets]
    for key, value in changes:
        if key.startswith(OPTIONS):
            _put(own, key, value)
        elif key == _TIME_ZONE:
            zone = defaults.time_zone if value is None else value
        elif key == _ANSI:
            ansi = defaults.ansi if value is None else value.strip().lower() == "true"
        elif key.lower() not in _OF_FIELDS:  # spelt otherwise they mean nothing to Spark
            _put(confs, key, dict(defaults.confs).get(key) if value is None else value)
    changed = dataclasses.replace(
        settings, time_zone=zone, ansi=ansi, confs=tuple(sorted(confs.items()))
    )
    return changed, tuple(sorted(own.items()))


def _put(values: dict[str, str], key: str, value: str | None) -> None:
    if value is None:
        values.pop(key, None)
    else:
        values[key] = value


def settings_after(
    before: Settings,
    found: Settings,
    kind: Kind,
    sql: str,
    rows: list[tuple[object, ...]],
    defaults: Settings,
) -> Settings:
    """Return the settings that a session must have after a session statement.

    ``found``: the cluster's present values (catalog, schema, time zone, ANSI mode); ``rows`` is the
    statement's result: SET key=value answers with the key and its value. RESET goes back to the
    ring's ``defaults``, not to those of one cluster.
    """
    confs = dict(before.confs)
    if kind is Kind.SET and "=" in sql and len(rows) == 1 and len(rows[0]) == 2:
        confs[str(rows[0][0])] = str(rows[0][1])
    elif kind is Kind.RESET:
        words = sql.split(None, 1)
        key = words[1].strip(" `;").lower() if len(words) > 1 else ""
        confs = {name: value for name, value in confs.items() if key and name.lower() != key}
        confs |= {name: value for name, value in defaults.confs if key in ("", name.lower())}
        found = dataclasses.replace(
            found,
            time_zone=defaults.time_zone if key in ("", _TIME_ZONE.lower()) else before.time_zone,
            ansi=defaults.ansi if key in ("", _ANSI) else before.ansi,
        )
    confs = {name: value for name, value in confs.items() if name.lower() not in _OF_FIELDS}
    return dataclasses.replace(found, confs=tuple(sorted(confs.items())))


# The *journal* of a client's session, from which any HAProc recreates the session.
#
# The journal keeps effects: the values of settings and variables, and for each temporary view and
# function the newest definition, with the settings under which it was made and, of a view, the
# columns that it was resolved to. Files are kept as they are. A newer entry replaces older ones of
# the same name (`superseded`), so the journal grows with what the session holds, not with what was
# done in it. Entries are in the order in which they took effect.


SHOWN_CHARS: Final = 80
"""The number of characters of an entry's text that an error shows."""


@dataclass(frozen=True, slots=True)
class SettingsEntry:
    """All settings of the session, after a USE, SET or RESET."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class ConfEntry:
    """Settings that a client set and unset by name, as Spark Connect's Config does.

    Those below ``haproc.`` are the door's own options, which Spark never gets.
    """

    sets: tuple[tuple[str, str], ...] = ()
    unsets: tuple[str, ...] = ()


class StateEntry(Struct, frozen=True, tag="state"):
    """All settings and options of the session: its state, as far as it consists of values.

    The journal's form of SettingsEntry and ConfEntry.
    """

    settings: Settings
    options: Options = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """A statement's effect on a session.

    ``name``: ``view x`` or ``function x``, in lower case; empty if unknown: then the statement
    replaces no other one. ``removes``: the name is removed. ``settings``: those under which the
    statement ran. ``columns``: name and type of each column that a view had.
    """

    name: str = ""
    removes: bool = False
    settings: Settings | None = None
    columns: tuple[tuple[str, str], ...] | None = None


class SqlEntry(Struct, frozen=True, tag="sql"):
    """A statement that made or dropped a temporary view or function."""

    text: str
    effect: Effect = Effect()


class PlanEntry(Struct, frozen=True, tag="plan"):
    """A plan that made or dropped a temporary view or function.

    ``plan``: a serialized ``spark.connect.Plan``.
    """

    plan: bytes
    effect: Effect = Effect()


@dataclass(frozen=True, slots=True)
class Variable:
    """A session variable: its type and its value, an Arrow stream of one row with one column.

    ``default``: the expression to which DEFAULT goes back, as it was declared; empty: NULL.
    """

    name: str
    type: str
    value: bytes
    default: str = ""


class VariablesEntry(Struct, frozen=True, tag="variables"):
    """All session variables with their values, as they are from here on."""

    variables: tuple[Variable, ...]


class ArtifactEntry(Struct, frozen=True, tag="artifact"):
    """A file that the client added, by its name there (``pyfiles/x.py``, ``cache/…``).

    ``blobs`` are the SHA-256 (hex) of its pieces, in order, which are stored once for all sessions;
    ``size`` is that of all of them.
    """

    name: str
    blobs: tuple[str, ...]
    size: int


Kept: TypeAlias = StateEntry | SqlEntry | PlanEntry | VariablesEntry | ArtifactEntry
"""The entries that a journal keeps."""
Entry: TypeAlias = SettingsEntry | ConfEntry | Kept
"""A change of a session."""


def after(state: StateEntry, change: SettingsEntry | ConfEntry, defaults: Settings) -> StateEntry:
    """Return the state after a change of settings; ``defaults``: the values of unset settings."""
    if isinstance(change, SettingsEntry):
        return StateEntry(change.settings, state.options)
    changed = with_confs(state.settings, state.options, change.sets, change.unsets, defaults)
    return StateEntry(*changed)


def with_settings(entry: Kept, settings: Settings) -> Kept:
    """Return an entry for the journal; a statement or plan gets the settings of its run."""
    match entry:
        case SqlEntry(effect=effect) | PlanEntry(effect=effect):
            return structs.replace(entry, effect=replace(effect, settings=settings))
        case _:
            return entry


def holds_temporaries(entries: Sequence[Kept]) -> bool:
    """True if names may mean something else in the session than elsewhere."""
    return any(isinstance(entry, SqlEntry | PlanEntry | VariablesEntry) for entry in entries)


def shown(entry: Kept) -> str:
    """Return the name of an entry in errors."""
    match entry:
        case StateEntry():
            return "settings"
        case VariablesEntry():
            return "the values of its variables"
        case SqlEntry(text):
            line = " ".join(text.split())
            return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"
        case PlanEntry():
            return "a temporary view or function made through Spark Connect"
        case ArtifactEntry(name):
            return f"the file {name}"
        case _:
            assert_never(entry)
