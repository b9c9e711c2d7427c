"""What of a server tells whether it gives the results that another one gives."""

from __future__ import annotations

from collections.abc import Collection

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import SETTINGS_OF_RESULTS, VERSION
from haproc.engine.remote import RemoteSession
from haproc.engine.table import single_row

_VERSIONS = (
    # The revision belongs to it: a build of one's own has the same number.
    ("spark", "version()"),
    # Of time zones' rules and of how dates and numbers are written, too.
    ("java", "java_method('java.lang.System', 'getProperty', 'java.version')"),
    # Spark Connect has no question for it; it is a constant of Delta's package.
    ("delta", "java_method('io.delta.package', 'VERSION')"),
)


async def settings_of_results(
    remote: RemoteSession, names: Collection[str], timeout_s: float
) -> dict[str, str | None]:
    """See Engine.server_settings. The session must be a fresh one.

    Spark and Delta themselves set something in a session once statements run in it (Delta 4.4:
    `spark.sql.parquet.fieldId.read.enabled`), so the settings are read before there is any.
    """
    given = [name for prefix in SETTINGS_OF_RESULTS for name in await remote.confs_below(prefix)]
    found = dict(await remote.get_confs_if_any(sorted({*given, *names})))
    for what, expression in _VERSIONS:
        found[VERSION + what] = await _version(remote, expression, timeout_s)
    return found


async def _version(remote: RemoteSession, expression: str, timeout_s: float) -> str | None:
    try:
        row = await single_row(remote, f"SELECT {expression} AS version", timeout_s)
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        return None  # there is no such class: no Delta
    return None if row["version"] is None else str(row["version"])
