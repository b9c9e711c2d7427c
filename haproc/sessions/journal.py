"""The *journal* of a client's session: the entries from which any HAProc can rebuild it."""

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
"""Options of a session: names with their values, sorted by name."""
Pairs: TypeAlias = tuple[tuple[str, str], ...]

OPTIONS: Final = "haproc."
"""The prefix of settings that are HAProc's own options and never reach Spark."""
_TIME_ZONE: Final = "spark.sql.session.timeZone"
_ANSI: Final = "spark.sql.ansi.enabled"
_OF_FIELDS: Final = frozenset({_TIME_ZONE.lower(), _ANSI})


def with_confs(
    settings: Settings, options: Options, sets: Pairs, unsets: Sequence[str], defaults: Settings
) -> tuple[Settings, Options]:
    """Return the settings and options after a client's change of some.

    First those in ``unsets`` go back to the ring's ``defaults``, then those in ``sets`` are set.
    """
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
    """Return the settings that a session must have after a USE, SET or RESET (``sql``).

    ``found``: the cluster's present catalog, schema, time zone and ANSI mode. ``rows``: the
    statement's result; SET key=value answers with the key and its value. RESET goes back to the
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
"""The most characters of an entry's text that an error shows."""


@dataclass(frozen=True, slots=True)
class SettingsEntry:
    """A change: the session has exactly these settings, after a USE, SET or RESET."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class ConfEntry:
    """A change: a client set and unset some settings by name, as Spark Connect's Config does.

    Those that begin with ``haproc.`` are HAProc's own options; Spark never gets them.
    """

    sets: tuple[tuple[str, str], ...] = ()
    unsets: tuple[str, ...] = ()


class StateEntry(Struct, frozen=True, tag="state"):
    """All settings and options of the session after a change of some.

    The journal has this entry in place of a SettingsEntry or ConfEntry.
    """

    settings: Settings
    options: Options = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """What a statement leaves in its session.

    ``name``: ``view x`` or ``function x``, in lower case; empty if it is not known, and then the
    entry replaces no other one. ``removes``: True if the statement drops the object. ``settings``:
    those under which the statement ran. ``columns``: name and type of each column of a view; None:
    not known.
    """

    name: str = ""
    removes: bool = False
    settings: Settings | None = None
    columns: tuple[tuple[str, str], ...] | None = None


class SqlEntry(Struct, frozen=True, tag="sql"):
    """An entry: a SQL statement that made or dropped a temporary view or function."""

    text: str
    effect: Effect = Effect()


class PlanEntry(Struct, frozen=True, tag="plan"):
    """An entry: a Spark Connect plan that made or dropped a temporary view or function.

    ``plan``: a serialized ``spark.connect.Plan``.
    """

    plan: bytes
    effect: Effect = Effect()


@dataclass(frozen=True, slots=True)
class Variable:
    """A session variable; ``value``: an Arrow stream of one row with one column.

    ``default``: the expression that DEFAULT means, as it was declared; empty: NULL.
    """

    name: str
    type: str
    value: bytes
    default: str = ""


class VariablesEntry(Struct, frozen=True, tag="variables"):
    """An entry: all session variables with the values that they had then."""

    variables: tuple[Variable, ...]


class ArtifactEntry(Struct, frozen=True, tag="artifact"):
    """An entry: a file that the client added; ``name``: as in the session (``pyfiles/x.py``, …).

    ``blobs``: the SHA-256 (hex) of the file's pieces, in order; each is stored once for all
    sessions. ``size``: the bytes of the file.
    """

    name: str
    blobs: tuple[str, ...]
    size: int


Kept: TypeAlias = StateEntry | SqlEntry | PlanEntry | VariablesEntry | ArtifactEntry
"""The kinds of entries that a journal has."""
Entry: TypeAlias = SettingsEntry | ConfEntry | Kept
"""A change of a session, as it is given to be recorded."""


def after(state: StateEntry, change: SettingsEntry | ConfEntry, defaults: Settings) -> StateEntry:
    """Return the state after a change of settings; ``defaults``: the ring's, for unset ones."""
    if isinstance(change, SettingsEntry):
        return StateEntry(change.settings, state.options)
    changed = with_confs(state.settings, state.options, change.sets, change.unsets, defaults)
    return StateEntry(*changed)


def with_settings(entry: Kept, settings: Settings) -> Kept:
    """Return a statement's or plan's entry with ``settings`` in its effect; others unchanged."""
    match entry:
        case SqlEntry(effect=effect) | PlanEntry(effect=effect):
            return structs.replace(entry, effect=replace(effect, settings=settings))
        case _:
            return entry


def holds_temporaries(entries: Sequence[Kept]) -> bool:
    """True if one of the entries makes a temporary object, so that a name may mean that one."""
    return any(isinstance(entry, SqlEntry | PlanEntry | VariablesEntry) for entry in entries)


def shown(entry: Kept) -> str:
    """Return the text by which an error names a journal entry."""
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
