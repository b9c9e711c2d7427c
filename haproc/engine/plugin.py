"""Whether a cluster's Spark runs with HAProc's plugin (`haproc/spark`), in this HAProc's version.

Without it, the writes of the ring would use what a client cached in Spark. The server itself is the
witness: the plugin brings a function that tells its version.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.remote import RemoteSession
from haproc.engine.table import rows_in_turn
from haproc.failure import ErrorClass

SOURCES: Final = Path(__file__).parent.parent / "spark"
"""Where the plugin's Java lies; it is part of the installed package."""
CLASS: Final = "haproc.spark.Extension"
READER: Final = "haproc.spark.Reader"
"""What Spark Connect loads beside it: the plugin that reads statements."""
_ASK = "SELECT haproc_plugin() AS version"
_UNKNOWN = frozenset({"UNRESOLVED_ROUTINE", "ROUTINE_NOT_FOUND"})


@functools.cache
def version() -> str:
    """Return the version that a cluster must have: a digest of the plugin's sources."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.java")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


class Plugin:
    """Looks at each server once: in another one the session is of another epoch."""

    def __init__(self) -> None:
        self._seen_in: int | None = None

    async def check(self, remote: RemoteSession, timeout_s: float) -> None:
        """Raise EngineError, of class ErrorClass.PLUGIN_MISSING if it is not there as it must be.

        ``remote``: always the same session.
        """
        epoch = remote.epoch
        if epoch == self._seen_in:
            return
        found = await _found(remote, timeout_s)
        if found != version():
            has = f"version {found}" if found else "none"
            raise EngineError(
                ErrorKind.ENVIRONMENT,
                f"the cluster's Spark must run with HAProc's plugin in version {version()} and has "
                f"{has}. `haproc spark-jar` prints the jar and the settings with which Spark loads "
                "it; start Spark anew with them",
                error_class=ErrorClass.PLUGIN_MISSING,
            )
        self._seen_in = epoch


async def _found(remote: RemoteSession, timeout_s: float) -> str:
    try:
        rows = await rows_in_turn(remote, _ASK, timeout_s)
    except EngineError as error:
        if error.error_class.partition(".")[0] in _UNKNOWN:
            return ""
        raise
    return str(rows[0]["version"])
