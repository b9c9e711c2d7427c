"""Frames of polars, written and read: ``python polars_frames.py URL SCHEMA``."""

from __future__ import annotations

import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import polars as pl
import sqlalchemy as sa
from polars.testing import assert_frame_equal

import haclient

url, schema = sys.argv[1:]
address = url.removeprefix("http://")
count = 1000
frame = pl.DataFrame(
    {
        "id": range(count),
        "name": [f"n{n}" for n in range(count)],
        "share": [n / 4 for n in range(count)],
        "price": pl.Series([Decimal(n) / 4 for n in range(count)], dtype=pl.Decimal(10, 2)),
        "paid": [True, None] * (count // 2),
        "day": [date(2026, 1, 31)] * count,
        "at": pl.Series([datetime(2026, 1, 31, 12, tzinfo=UTC)] * count),
        "local": [datetime(2026, 1, 31, 12)] * count,
        "raw": [b"\0\xff"] * count,
    }
)
types = "id BIGINT, name STRING, share DOUBLE, price DECIMAL(10, 2), paid BOOLEAN, day DATE"
types += ", at TIMESTAMP, local TIMESTAMP_NTZ, raw BINARY"


def same(read: pl.DataFrame, wanted: pl.DataFrame) -> None:
    """Check that the values are equal; `read_database` omits the zone, UTC, from the type."""
    zoned = pl.col("at").cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    assert_frame_equal(read.with_columns(zoned), wanted, check_dtypes=False)


everything = f"SELECT * FROM {schema}.frames ORDER BY id"

with haclient.connect(url) as ring:
    ring.execute(f"CREATE SCHEMA {schema}")
    ring.execute(f"CREATE TABLE {schema}.frames ({types}) USING delta")
    ring.append(f"{schema}.frames", frame)
    assert_frame_equal(pl.DataFrame(ring.execute(everything)), frame, check_dtypes=False)
    same(pl.read_database(everything, ring), frame)
    parts = list(pl.read_database(everything, ring, iter_batches=True, batch_size=300))
    assert [len(each) for each in parts] == [300, 300, 300, 100]
    few = pl.read_database(
        f"SELECT name FROM {schema}.frames WHERE id > ?",
        ring,
        execute_options={"parameters": [997]},
    )
    assert few["name"].to_list() == ["n998", "n999"]

# What an installed haproc has in its metadata.
sa.dialects.registry.register("haproc", "haclient.sqlalchemy", "HAProcDialect")
engine = sa.create_engine(f"haproc://{address}/{schema}")
same(pl.read_database(sa.text("SELECT * FROM frames ORDER BY id"), engine), frame)
made = frame.drop("price", "raw")
for how, rows in (("fail", count), ("append", 2 * count), ("replace", count)):
    made.write_database("made", engine, if_table_exists=how)
    assert pl.read_database("SELECT count(*) AS n FROM made", engine)["n"].item() == rows
read = pl.read_database("SELECT * FROM made ORDER BY id", engine.connect())
same(read, made)
engine.dispose()
print(pl.__version__, read.schema)
