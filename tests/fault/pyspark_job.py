"""PySpark jobs to be killed under: each is a process that prints its place, and waits.

``python -m tests.fault.pyspark_job JOB host:port,host:port,… TABLE FOLDER``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from tests.fault.torture.programs import Way
from tests.fault.torture.pyspark_program import opened

ROUNDS = 3
ROWS = 20
"""The rows that each round writes in each of its ways."""
LARGE_ROWS = 1_500_000
"""The rows of a result of some 45 MB."""


def at(place: str, *, waits: bool = False) -> None:
    """Print the job's place; wait for a line of input if ``waits``."""
    print(place, flush=True)
    if waits:
        sys.stdin.readline()


def large_row(number: int) -> str | None:
    """Return the text of the large result in the row of this number."""
    return None if number % 7 == 0 else f"row {number}"


# -- a program that leans on its session ---------------------------------------------------------


def expected() -> list[tuple[int, str]]:
    """Return the rows that `program` leaves in its table."""
    rows = []
    for number in range(ROUNDS):
        for n in range(ROWS):
            salted = f"{n * 10 + 7}"
            rows += [(number * 1000 + n, f"{way} {salted}") for way in ("sql", "frame", "pandas")]
            rows += [(number * 1000 + n, "arguments")] * (n == 0)
    return sorted(rows)


def program(session: Any, table: str, folder: Path) -> None:
    """Write with everything that a session can hold, round after round."""
    module = folder / "salted_numbers.py"
    module.write_text("def salted(n):\n    return n * 10 + 7\n")
    session.addArtifacts(str(module), pyfile=True)
    session.conf.set("spark.sql.shuffle.partitions", "3")
    session.range(ROWS).createOrReplaceTempView("numbers")
    session.sql("CREATE TEMPORARY VIEW even AS SELECT id FROM numbers WHERE id % 2 = 0")
    session.sql("DECLARE VARIABLE rounds INT DEFAULT 0")

    def salted(n: int) -> int:
        from salted_numbers import salted as of_module  # type: ignore[import-not-found]

        return int(of_module(n))

    session.udf.register("salted", salted, LongType())
    for number in range(ROUNDS):
        at(f"round {number}", waits=True)
        one_round(session, table, number)
    at("done")


def one_round(session: Any, table: str, number: int) -> None:
    """Read and write in every way; AssertionError if something is wrong."""
    first = number * 1000
    session.sql(f"INSERT INTO {table} SELECT {first} + id, concat('sql ', salted(id)) FROM numbers")
    session.sql(f"INSERT INTO {table} VALUES (:id, :name)", {"id": first, "name": "arguments"})
    session.sql("SET VAR rounds = rounds + 1")
    frame = session.table("numbers").select(
        (F.col("id") + first).alias("id"), F.expr("concat('frame ', salted(id))").alias("name")
    )
    frame.write.mode("append").insertInto(table)

    def named(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            names = [f"pandas {n * 10 + 7}" for n in batch["id"]]
            yield pd.DataFrame({"id": batch["id"] + first, "name": names})

    mapped = session.range(ROWS).mapInPandas(named, "id BIGINT, name STRING")
    mapped.writeTo(table).append()
    assert session.sql("SELECT count(*) FROM even").collect()[0][0] == ROWS // 2
    assert session.sql("SELECT rounds").collect()[0][0] == number + 1
    assert session.conf.get("spark.sql.shuffle.partitions") == "3"
    # At session level: it sees what it wrote, wherever it is by now.
    seen = session.table(table).where(F.col("id") >= first).count()
    assert seen == 3 * ROWS + 1, seen


# -- a large result ------------------------------------------------------------------------------


def large(session: Any, table: str, folder: Path) -> None:
    """Read a result of tens of megabytes, and wait in the middle of it."""
    text = f"SELECT id, if(id % 7 = 0, null, concat('row ', id)) FROM range(0, {LARGE_ROWS}, 1, 5)"
    count = 0
    for row in session.sql(text).toLocalIterator():
        assert (row[0], row[1]) == (count, large_row(count)), (count, row)
        count += 1
        if count == 1000:
            at("reading", waits=True)
    at(f"read {count}")


def main() -> None:
    """Run the named job."""
    name, doors, table, folder = sys.argv[1:]
    session = opened(Way.PLAIN, doors.split(","))
    {"program": program, "large": large}[name](session, table, Path(folder))
    session.stop()


if __name__ == "__main__":
    main()
