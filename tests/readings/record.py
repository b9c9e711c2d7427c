"""Records what Spark makes of the corpus, such that recording anew gives the same bytes."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.readings import corpus
from tests.readings.golden import FOLDER, NOW, WAREHOUSE
from tests.readings.spark import Spark, SparkError

_NOW: Final = datetime.fromisoformat(NOW)
_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:([ T])(\d\d:\d\d:\d\d)(?:\.\d+)?)?")
_SEED: Final = re.compile(r"-?\d{15,}L?")


def record(connect: Callable[[], Spark], progress: Callable[[str], None]) -> None:
    """Make the worlds, read the corpus in them, write the files, and drop the worlds.

    ``connect`` opens a session.
    """
    sessions = {name: connect() for name in corpus.WORLDS}
    drops: list[str] = []
    try:
        for name, session in sessions.items():
            _make(session, name, drops)
        plain = normaliser(sessions["default"])
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name in corpus.names():
            found = {
                statement: _tried(statement, corpus.worlds_of(name), sessions, plain)
                for statement in corpus.statements(name)
            }
            text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
            data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
            (FOLDER / f"{name}.json.gz").write_bytes(data)
            errors = sum("error" in each for each in found.values())
            progress(f"{name}: {len(found)} statements, {errors} errors, {len(data)} bytes")
    finally:
        for drop in reversed(drops):
            sessions["default"].rows(drop)
        for session in sessions.values():
            session.close()


def _make(session: Spark, name: str, drops: list[str]) -> None:
    """Make a world in its schema; what drops it afterwards is added to ``drops``."""
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
    plain: Callable[[Any], Any],
) -> dict[str, Any]:
    """Return the reading in the first world that has one, or the first one's error."""
    errors = []
    for world in worlds:
        try:
            said = json.loads(sessions[world].read(statement))
        except SparkError as error:
            errors.append({"world": world, "error": error.condition})
        else:
            return {"world": world, "reading": plain(said)}
    return errors[0]


def normaliser(session: Spark) -> Callable[[Any], Any]:
    """Return what takes from a reading all that another run or server would say otherwise."""
    row = session.rows("SET spark.sql.warehouse.dir")[0]
    warehouse = "file:" + str(list(row.values())[1]).removeprefix("file:").rstrip("/")

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return plain_text(value) if isinstance(value, str) else value

    def plain_text(text: str) -> str:
        short = text.replace(warehouse, WAREHOUSE).replace(warehouse[5:], WAREHOUSE[5:])
        return _MOMENT.sub(_fixed, short)

    return plain


def _fixed(found: re.Match[str]) -> str:
    """Return what stands for a moment: near to now it is counted from another one."""
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
