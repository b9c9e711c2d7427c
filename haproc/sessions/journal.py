"""What is kept of a client's session: its *journal*, from which any HAProc makes it anew.

An entry is one step that changed the session: settings, a statement or a plan that left something
in it (a temporary view, a function, a variable), a file. Entries are written in the order in which
they took effect; run in that order in a fresh Spark session they come to the same session.

Settings are values, so entries that change nothing else need not be run one by one: before an entry
that leaves something, and at the end, the session is given the settings as they are there.

Bytes: a `dmq.record` whose kind names the entry and its version. A kind that is not known is
refused, never guessed: what a later version wrote is for a later version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, assert_never

from dmq.record import Json, Record, decode, encode
from haproc.engine.interface import Settings
from haproc.sessions.confs import Options, with_confs

SHOWN_CHARS: Final = 80
"""How much of an entry's text an error shows."""


@dataclass(frozen=True, slots=True)
class SettingsEntry:
    """The session's settings are these from here on: what USE, SET and RESET come to."""

    settings: Settings


@dataclass(frozen=True, slots=True)
class ConfEntry:
    """Settings that a client set and unset by name, as Spark Connect's Config does.

    Those below ``haproc.`` are the door's own; see `haproc.sessions.confs`.
    """

    sets: tuple[tuple[str, str], ...] = ()
    unsets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SqlEntry:
    """A statement that left a temporary view, function or variable, or dropped one."""

    text: str


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """The same as a plan: a serialized ``spark.connect.Plan``."""

    plan: bytes


@dataclass(frozen=True, slots=True)
class ArtifactEntry:
    """A file that the client added, by its name there (``pyfiles/x.py``, ``cache/…``).

    ``blobs`` are the SHA-256 (hex) of its pieces, in order, which are stored once for all sessions;
    ``size`` is that of all of them.
    """

    name: str
    blobs: tuple[str, ...]
    size: int


Entry: TypeAlias = SettingsEntry | ConfEntry | SqlEntry | PlanEntry | ArtifactEntry


class UnknownEntryError(Exception):
    """An entry was written by a later version, or is none."""


@dataclass(frozen=True, slots=True)
class State:
    """A session's state as far as it consists of values."""

    settings: Settings
    options: Options = ()


def after(state: State, entry: Entry, defaults: Settings) -> State:
    """Return the state behind an entry; ``defaults`` are what unset settings go back to."""
    match entry:
        case SettingsEntry(settings):
            return State(settings, state.options)
        case ConfEntry(sets, unsets):
            return State(*with_confs(state.settings, state.options, sets, unsets, defaults))
        case SqlEntry() | PlanEntry() | ArtifactEntry():
            return state
        case _:
            assert_never(entry)


def leaves_something(entry: Entry) -> bool:
    """Tell whether an entry has to be run, other than settings, which are values."""
    return not isinstance(entry, SettingsEntry | ConfEntry)


def holds_temporaries(entries: Sequence[Entry]) -> bool:
    """Tell whether names may mean something else in the session than elsewhere."""
    return any(isinstance(entry, SqlEntry | PlanEntry) for entry in entries)


def superseding(last: Entry | None, entry: Entry) -> Entry | None:
    """Return what stands for both the last entry and a new one; None: they need two places.

    Only of settings behind settings is that plain: nothing was run in between.
    """
    match last, entry:
        case SettingsEntry(), SettingsEntry():
            return entry
        case ConfEntry(), ConfEntry():
            sets = {key: value for key, value in last.sets if key not in entry.unsets}
            sets |= dict(entry.sets)
            unsets = dict.fromkeys((*last.unsets, *entry.unsets))
            return ConfEntry(tuple(sets.items()), tuple(key for key in unsets if key not in sets))
        case _:
            return None


def shown(entry: Entry) -> str:
    """Return what an error calls an entry by."""
    match entry:
        case SettingsEntry() | ConfEntry():
            return "settings"
        case SqlEntry(text):
            line = " ".join(text.split())
            return line if len(line) <= SHOWN_CHARS else f"{line[:SHOWN_CHARS]}…"
        case PlanEntry():
            return "a temporary view or function made through Spark Connect"
        case ArtifactEntry(name):
            return f"the file {name}"
        case _:
            assert_never(entry)


# -- bytes -----------------------------------------------------------------------------------


def to_bytes(entry: Entry, request_ids: Sequence[str] = ()) -> bytes:
    """Return an entry's bytes; ``request_ids``: of the statements that it stands for."""
    record = _record(entry)
    *earlier, last = request_ids or ("",)
    more: dict[str, Json] = {"earlier": [*earlier]} if earlier else {}
    return encode(replace(record, key=last, headers={**record.headers, **more}))


def _record(entry: Entry) -> Record:
    match entry:
        case SettingsEntry(settings):
            return Record("session.settings", headers={"settings": _of_settings(settings)})
        case ConfEntry(sets, unsets):
            headers: dict[str, Json] = {"set": [[k, v] for k, v in sets], "unset": [*unsets]}
            return Record("session.conf", headers=headers)
        case SqlEntry(text):
            return Record("session.sql", payload=text.encode())
        case PlanEntry(plan):
            return Record("session.plan", payload=plan)
        case ArtifactEntry(name, blobs, size):
            headers = {"name": name, "blobs": [*blobs], "size": size}
            return Record("session.artifact", headers=headers)
        case _:
            assert_never(entry)


def from_bytes(data: bytes) -> tuple[Entry, tuple[str, ...]]:
    """Return the entry and its request ids; raises UnknownEntryError and LogError."""
    record = decode(data)
    earlier: Any = record.headers.get("earlier", [])
    return _entry(record), tuple(each for each in (*earlier, record.key) if each)


def _entry(record: Record) -> Entry:
    h: Mapping[str, Any] = record.headers
    match record.kind:
        case "session.settings":
            catalog, schema, zone, ansi, confs = h["settings"]
            pairs = tuple((key, value) for key, value in confs)
            return SettingsEntry(Settings(catalog, schema, zone, ansi, pairs))
        case "session.conf":
            return ConfEntry(tuple((k, v) for k, v in h["set"]), tuple(h["unset"]))
        case "session.sql":
            return SqlEntry(record.payload.decode())
        case "session.plan":
            return PlanEntry(record.payload)
        case "session.artifact":
            return ArtifactEntry(h["name"], tuple(h["blobs"]), h["size"])
        case other:
            raise UnknownEntryError(other)


def _of_settings(settings: Settings) -> Json:
    confs: list[Json] = [list(pair) for pair in settings.confs]
    return [settings.catalog, settings.schema, settings.time_zone, settings.ansi, confs]
