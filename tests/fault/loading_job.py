"""Loads batch after batch, and begins where its tables end. Run as a job; see `job_kills`.

Each batch is written in three ways: under its own id over HTTP, at any HAProc; as an INSERT of
literals; and as a DataFrame whose rows differ at each computation. It ends once there is a row in
the table ``enough``.
"""

import itertools
import json
import os
import sys
import time
import urllib.error
import urllib.request

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ROWS = 3
"""Rows of a batch's DataFrame."""
SHORT_S = 5.0
"""A HAProc that takes longer may be frozen."""


def main(by_id: str, by_sql: str, by_frame: str, enough: str) -> None:
    """Load batches until the table ``enough`` has a row."""
    spark = SparkSession.builder.getOrCreate()
    sql, frame = newest(spark.table(by_sql)), newest(spark.table(by_frame))
    print(f"attempt {os.environ['HAPROC_JOB_ATTEMPT']} from {sql + 1}, {frame + 1}", flush=True)
    for batch in itertools.count(min(sql, frame) + 1):
        send(batch, f"INSERT INTO {by_id} VALUES ({batch}, 0)")
        if batch > sql:
            spark.sql(f"INSERT INTO {by_sql} VALUES ({batch}, 0)")
        if batch > frame:
            n = F.col("id").cast("int")
            rows = spark.range(ROWS).select(F.lit(batch), n, F.expr("uuid()"))
            rows.toDF("batch", "n", "chance").writeTo(by_frame).append()
        print(f"wrote {batch}", flush=True)
        if spark.table(enough).head() is not None:
            break


def newest(table: DataFrame) -> int:
    """Return the newest batch of the table, or -1."""
    row = table.agg(F.coalesce(F.max("batch"), F.lit(-1))).head()
    assert row is not None
    return int(row[0])


def send(batch: int, statement: str) -> None:
    """Write under an id that every attempt uses, to each HAProc in turn, until one accepts it."""
    servers = os.environ["HACLIENT_SERVERS"].split(",")
    request_id = f"{os.environ['HAPROC_JOB_ID']}-{batch}"
    body = json.dumps({"request_id": request_id, "statement": statement}).encode()
    headers = {
        "Authorization": f"Bearer {os.environ['HACLIENT_TOKEN']}",
        "Content-Type": "application/json",
    }
    for turn in itertools.count(batch):
        server = servers[turn % len(servers)]
        request = urllib.request.Request(f"{server}/api/2.0/sql/statements", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=SHORT_S) as response:
                if json.load(response)["status"]["state"] == "SUCCEEDED":
                    return
        except urllib.error.HTTPError as error:
            message = error.read().decode()
            if error.code < 500 and error.code != 429:
                raise SystemExit(f"{request_id} is refused: {message}") from error
        except OSError:
            pass
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
