"""What contradicts itself in the settings that sessions begin with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from haproc.classify.model import RefusedError
from haproc.classify.session_settings import instead, travels
from haproc.config.model import Config
from haproc.engine.confs import ANSI, TIME_ZONE
from haproc.engine.pools import POOL
from haproc.pin.moment import zone_of

_UTC: Final = "UTC"


def check_defaults(config: Config) -> Iterator[tuple[str, str]]:
    """Yield a path and what is wrong there."""
    zone = dict(config.session_defaults).get(TIME_ZONE)
    if zone is not None and config.time_zone not in (_UTC, zone):
        yield "time_zone", f"session_defaults has another {TIME_ZONE}: leave one of them out"
    if zone is None:
        yield from _zone("time_zone", config.time_zone)
    for name, value in config.session_defaults:
        path = f"session_defaults.{name}"
        spelt = next((each for each in (TIME_ZONE, ANSI) if each.lower() == name.lower()), name)
        if name == POOL:
            yield path, "each user's queries have a pool of their own"
        elif not travels(name):
            yield path, f"it does not go with each write: {instead(name)}"
        elif name != spelt:
            yield path, f"Spark spells it {spelt}"
        elif name == ANSI and value not in ("true", "false"):
            yield path, f"must be true or false, not {value!r}"
        elif name == TIME_ZONE:
            yield from _zone(path, value)


def _zone(path: str, name: str) -> Iterator[tuple[str, str]]:
    try:
        zone_of(name)
    except RefusedError as error:
        yield path, error.message
