"""Records Spark's readings of the corpus; recording again gives the same bytes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.readings import corpus
from tests.readings.golden import FOLDER, NOW, WAREHOUSE
from tests.readings.spark import Spark, SparkError

_NOW: Final = datetime.fromisoformat(NOW)
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:([ T])(\d\d:\d\d:\d\d)(?:\.\d+)?)?")
SEED: Final = 7
"""Stands for random numbers, and for the creation times of functions."""
_SEED: Final = re.compile(r"-?\d{12,}L")
_CREATED: Final = re.compile(r"(createTime\w*\W{1,4})\d{10,}")
_LABEL: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def record(connect: Callable[[], Spark], progress: Callable[[str], None]) -> None:
    """Read the corpus in its worlds and write the files. ``connect`` opens a session."""
    with worlds(connect) as sessions:
        row = sessions["default"].rows("SET spark.sql.warehouse.dir")[0]
        warehouse = str(list(row.values())[1]).removeprefix("file:").rstrip("/")
        normaliser = Normaliser(warehouse)
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name in corpus.names():
            found = {
                statement: _tried(statement, corpus.worlds_of(name), sessions, normaliser)
                for statement in corpus.statements(name)
            }
            text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
            data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
            (FOLDER / f"{name}.json.gz").write_bytes(data)
            errors = sum("error" in each for each in found.values())
            progress(f"{name}: {len(found)} statements, {errors} errors, {len(data)} bytes")


@contextmanager
def worlds(connect: Callable[[], Spark]) -> Iterator[dict[str, Spark]]:
    """Make the worlds, yield a session in each, and drop them afterwards."""
    sessions = {name: connect() for name in corpus.WORLDS}
    drops: list[str] = []
    try:
        for name, session in sessions.items():
            _make(session, name, drops)
        yield sessions
    finally:
        for drop in reversed(drops):
            sessions["default"].rows(drop)
        for session in sessions.values():
            session.close()


def _make(session: Spark, name: str, drops: list[str]) -> None:
    """Make a world in its schema; add the statements that drop it to ``drops``."""
    session.rows("SET spark.sql.session.timeZone = UTC")
    schema = [] if name == "default" else [f"CREATE SCHEMA {name}"]
    for statement in [*schema, f"USE {name}", *corpus.world(name)]:
        session.rows(statement)
        made = re.match(r"CREATE (SCHEMA|TABLE) (\S+)", statement)
        if made and (name == "default" or made[1] == "SCHEMA"):
            cascade = " CASCADE" if made[1] == "SCHEMA" else ""
            drops.append(f"DROP {made[1]} IF EXISTS {made[2]}{cascade}")


def _tried(
    statement: str,
    worlds: tuple[str, ...],
    sessions: dict[str, Spark],
    normaliser: Normaliser,
) -> dict[str, Any]:
    """Return the reading in the first world that has one, or the first one's error.

    An error of the analyzer is returned with the parser's reading of the statement.
    """
    errors = []
    for world in worlds:
        try:
            decoded = json.loads(sessions[world].read(statement))
        except SparkError as error:
            errors.append({"world": world, "error": error.condition})
        else:
            return {"world": world, "reading": normaliser.plain(decoded, statement)}
    try:
        decoded = json.loads(sessions[worlds[0]].read(statement, analyze=False))
    except SparkError:
        return errors[0]
    return errors[0] | {"parsed": normaliser.plain(decoded, statement)}


@dataclass(slots=True)
class Normaliser:
    """Removes from a reading the values that differ between runs or servers.

    ``warehouse``: the folder in which the server keeps its tables.
    """

    warehouse: str
    _statement: str = ""
    _ctes: dict[int, int] = field(default_factory=dict)

    def plain(self, reading: Any, statement: str) -> Any:
        """Return the reading of a statement in its stored form."""
        self._statement, self._ctes = statement, {}
        return self._plain(reading)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._field(key, each) for key, each in value.items()}
        if isinstance(value, list):
            return [self._plain(each) for each in value]
        if isinstance(value, str):
            return self._text(value)
        is_long = isinstance(value, int) and abs(value) >= 10**12
        return SEED if is_long and str(abs(value)) not in self._statement else value

    def _field(self, key: str, value: Any) -> Any:
        # Counted by the server over all statements; no other number has the name `id`.
        if key in ("cteId", "loopId", "id") and isinstance(value, int):
            return self._ctes.setdefault(value, len(self._ctes))
        return "label" if key == "label" and _LABEL.fullmatch(str(value)) else self._plain(value)

    def _text(self, text: str) -> str:
        short = text.replace(self.warehouse, WAREHOUSE[5:])
        if _SEED.fullmatch(short) and short.strip("-L") not in self._statement:
            return f"{SEED}L"
        return _CREATED.sub(rf"\g<1>{SEED}", _MOMENT.sub(_fixed, short))


def _fixed(found: re.Match[str]) -> str:
    """Return the replacement of a moment: one near to now is moved to a fixed one."""
    now = datetime.now(UTC).replace(tzinfo=None)
    day, between, clock = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day} {clock or '00:00:00'}")
    except ValueError:
        return found[0]
    days = (moment.date() - now.date()).days
    if abs(days) > 1:
        return found[0]
    shown = (_NOW + timedelta(days=days)).date().isoformat()
    if clock is None:
        return shown
    return shown + between + ("00:00:00" if clock == "00:00:00" else NOW[11:])
