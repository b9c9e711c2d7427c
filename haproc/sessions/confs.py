"""What a session's settings are after it was given others: by name, or by a statement.

Time zone and ANSI mode have fields of their own in `Settings`; names below ``haproc.`` are
*options*, which tell HAProc how to treat the session's statements and never reach Spark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, TypeAlias

from haproc.classify.model import Kind
from haproc.engine.interface import Settings

Options: TypeAlias = tuple[tuple[str, str], ...]
"""By name, sorted."""
Pairs: TypeAlias = tuple[tuple[str, str], ...]

OPTIONS: Final = "haproc."
"""How the names of options begin."""
_TIME_ZONE: Final = "spark.sql.session.timeZone"
_ANSI: Final = "spark.sql.ansi.enabled"
_OF_FIELDS: Final = frozenset({_TIME_ZONE.lower(), _ANSI})


def with_confs(
    settings: Settings, options: Options, sets: Pairs, unsets: Sequence[str], defaults: Settings
) -> tuple[Settings, Options]:
    """Return both after these were unset, to the ring's defaults, and set."""
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

    ``found`` is what the cluster says now (catalog, schema, time zone, ANSI mode); ``rows`` is the
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
