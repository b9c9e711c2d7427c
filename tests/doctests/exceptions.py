"""Examples that fail, and the reasons; all others succeed.

Counts are by the object whose documentation has the examples; one failure often causes others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ARGUMENTS = "Delta's parser drops a text's arguments; HAProc binds plain values only"
_SETTING = "the setting is none of those that a session may change"
_FILES = "files belong to no table of the ring"
_STREAM = "a stream runs on one server, beside the order of writes"

ON_SPARK: Final[Mapping[str, tuple[int, str]]] = {
    "pyspark.sql.connect.session.SparkSession.sql": (2, _ARGUMENTS),
}
"""On the ring's Sparks, without HAProc."""

THROUGH_THE_RING: Final[Mapping[str, tuple[int, str]]] = {
    "pyspark.sql.connect.group.GroupedData.transformWithState": (1, _SETTING),
    "pyspark.sql.connect.group.GroupedData.transformWithStateInPandas": (1, _SETTING),
    "pyspark.sql.connect.session.SparkSession.read": (1, _FILES),
    "pyspark.sql.connect.session.SparkSession.readStream": (2, _STREAM),
    "pyspark.sql.connect.session.SparkSession.streams": (3, _STREAM),
    "pyspark.sql.connect.tvf.TableValuedFunction.python_worker_logs": (1, _SETTING),
}
"""Further ones that fail through the ring."""


def allowed(name: str) -> int:
    """Return the number of an object's examples that may fail through the ring."""
    return sum(known[name][0] for known in (ON_SPARK, THROUGH_THE_RING) if name in known)
