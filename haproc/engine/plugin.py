"""Whether a cluster's Spark runs with HAProc's plugin (`haproc/spark`), in this HAProc's version.

Without it, the writes of the ring would use what a client cached in Spark, and nothing would tell
what a statement is. The server itself is the witness: the relation that tells the versions is the
reader's, and it asks a function that the extension brings, so both are loaded.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.plugin_plans import version_plan
from haproc.engine.remote import RemoteSession
from haproc.engine.table import rows_in_turn
from haproc.failure import ErrorClass

SOURCES: Final = Path(__file__).parent.parent / "spark"
"""Where the plugin's Java lies; it is part of the installed package."""
CLASS: Final = "haproc.spark.Extension"
READER: Final = "haproc.spark.Reader"
EXTENSION_SETTING: Final = "spark.sql.extensions"
READER_SETTING: Final = "spark.connect.extensions.relation.classes"
"""By which Spark loads the two: lists, with commas."""
SPARK: Final = "4.2"
"""The version of Spark that the plugin is built for: it uses what is Spark's own business."""
_LACKS: Final = {
    "UNRESOLVED_ROUTINE": f"{CLASS} in {EXTENSION_SETTING}",
    "ROUTINE_NOT_FOUND": f"{CLASS} in {EXTENSION_SETTING}",
    "CONNECT_INVALID_PLAN.NO_HANDLER_FOR_EXTENSION": f"{READER} in {READER_SETTING}",
}
"""What is not loaded, by the error of who asks for it."""
_UNLOADABLE: Final = frozenset({"java.lang.ClassNotFoundException", "java.lang.LinkageError"})
"""Of a setting that names the plugin without its jar, or with one for another Spark."""
_HOW: Final = (
    "`haproc spark-jar` prints the jar and the settings with which Spark loads it; start Spark "
    "anew with them"
)


@functools.cache
def version() -> str:
    """Return the version that a cluster must have: a digest of the plugin's sources."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.java")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def missing(found: Mapping[str, str]) -> str:
    """Return what a server lacks by the versions that it tells; empty if nothing.

    ``found``: by `version` (the plugin's), `spark` and `delta`.
    """
    spark = ".".join(found["spark"].split(".")[:2])
    if found["version"] != version():
        return f"HAProc's plugin in version {version()}, it has version {found['version']}: {_HOW}"
    if spark != SPARK:
        return f"Spark {SPARK}, for which HAProc and its plugin are made; it is {found['spark']}"
    return "" if found["delta"] else "Delta Lake: none of its jars is there"


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
        lacks = await _lacks(remote, timeout_s)
        if lacks:
            raise EngineError(
                ErrorKind.ENVIRONMENT,
                f"the cluster's Spark lacks {lacks}",
                error_class=ErrorClass.PLUGIN_MISSING,
            )
        self._seen_in = epoch


async def _lacks(remote: RemoteSession, timeout_s: float) -> str:
    try:
        rows: list[dict[str, Any]] = await rows_in_turn(remote, version_plan(), timeout_s)
    except EngineError as error:
        what = _LACKS.get(error.error_class, _LACKS.get(error.error_class.partition(".")[0]))
        if what is not None:
            return f"HAProc's plugin: there is no {what}. {_HOW}"
        if _UNLOADABLE.isdisjoint(error.details.java_classes):
            raise
        return f"HAProc's plugin: a class cannot be loaded ({error.message}). {_HOW}"
    return missing(rows[0])
