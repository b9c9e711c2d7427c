"""Makes the ring compare its clusters, and stores the findings in ``haproc.verifications``.

Run ``python -m haproc.pipeline.verify`` on a schedule. It begins a verification, waits for the
reports of all clusters that can send one, up to a time limit, and stores a row for each table and
cluster. A finding that is written twice has one row: its key is the verification's offset in the
log, the table and the cluster.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from haproc.pipeline import ring, tables
from haproc.pipeline.ring import ClientDoors, RingError

PATH: Final = "/api/ha/verify"
WAIT_S: Final = 3600.0
"""How long, by default, to wait for clusters while they read their tables."""
ANSWER_S: Final = 20.0
"""The longest wait for one answer: a HAProc asks its peers first, each for a few seconds at
most."""
POLL_S: Final = 1.0
EQUAL: Final = "equal"
NOT_EQUAL: Final = 3
_NOT_READ_YET: Final = 404
_SCHEMA: Final[Any] = pa.schema(
    [
        ("marker", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("table", pa.string()),
        ("cluster", pa.string()),
        ("finding", pa.string()),
        ("reason", pa.string()),
    ]
)
_SAME: Final = (
    "verifications.marker = new.marker AND verifications.table <=> new.table "
    "AND verifications.cluster = new.cluster"
)


def verified(
    doors: ClientDoors,
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Mapping[str, Any]:
    """Begin a verification; return its result when all clusters have reported, or after ``wait_s``.

    Raises RingError if no HAProc could report anything in that time.
    """
    end = clock() + wait_s
    marker = json.loads(doors.ask(PATH, {}).body)["marker"]
    found: dict[str, Any] = {}
    while True:
        try:
            found = json.loads(doors.ask(f"{PATH}/{marker}").body)
        except RingError as error:
            if error.status != _NOT_READ_YET:
                raise
            doors.next()
        if found.get("complete"):
            return found
        if clock() >= end:
            break
        pause(POLL_S)
    if not found:
        raise RingError(f"no HAProc has read the marker at offset {marker} within {wait_s:g} s")
    return found


def rows(found: Mapping[str, Any], now: datetime) -> list[dict[str, Any]]:
    """Return the result as rows: one for each table and cluster, and one for each cluster."""
    kept = {"marker": found["marker"], "time": now}
    whole = [
        {**kept, "table": None, "cluster": name, **each} for name, each in found["clusters"].items()
    ]
    return whole + [
        {**kept, "table": table, "cluster": name, "finding": finding, "reason": ""}
        for table, by in found["tables"].items()
        for name, finding in by.items()
    ]


def findings_text(found: Mapping[str, Any]) -> str:
    """Return each cluster's finding, in one line for people."""
    clusters = [
        f"{name} {each['finding']}" + (f" ({each['reason']})" if each["reason"] else "")
        for name, each in found["clusters"].items()
    ]
    late = "" if found["complete"] else "; not all have reported in time"
    return f"verification at offset {found['marker']}: {', '.join(clusters)}{late}"


def equal(found: Mapping[str, Any]) -> bool:
    """True if every cluster was found equal, so each has reported."""
    return all(each["finding"] == EQUAL for each in found["clusters"].values())


def keep(spark: Any, found: Mapping[str, Any], now: datetime) -> None:
    """Insert the findings into ``haproc.verifications``, except those that are there."""
    from pyspark.sql import functions

    made = spark.createDataFrame(pa.Table.from_pylist(rows(found, now), schema=_SCHEMA))
    merged = made.alias("new").mergeInto(tables.VERIFICATIONS, functions.expr(_SAME))
    merged.whenNotMatched().insertAll().merge()


def main() -> int:
    """Run the program: verify once; return the exit code.

    0: all clusters are equal. 3: some differ, or have not reported in time. 1: the ring refused, or
    did not answer.
    """
    parser = ring.arguments("Compare all clusters' tables, and keep what is found.")
    parser.add_argument(
        "--wait-s", type=float, default=WAIT_S, help=f"for clusters that read ({WAIT_S:g})"
    )
    options = parser.parse_args()
    try:
        doors = ring.doors(options, answer_s=ANSWER_S)
        with ring.session(options) as spark:
            # Before the verification, which delays DDL.
            tables.create(spark, tables.VERIFICATIONS, tables.CREATE_VERIFICATIONS)
            found = verified(doors, options.wait_s)
            print(findings_text(found), flush=True)
            keep(spark, found, datetime.now(UTC))
    except RingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if equal(found) else NOT_EQUAL


if __name__ == "__main__":
    sys.exit(main())
