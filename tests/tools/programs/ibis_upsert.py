"""Tables made, filled, upserted and read through ibis: ``python ibis_upsert.py SCHEMA``."""

from __future__ import annotations

import sys
from datetime import datetime
from decimal import Decimal

import ibis
import pandas as pd
from pyspark.sql import SparkSession

schema = sys.argv[1]
ring = ibis.pyspark.connect(SparkSession.builder.getOrCreate())
ring.create_database(schema)
items = pd.DataFrame(
    {
        "id": [1, 2, 3],
        "name": ["one", "two", "three"],
        "price": [Decimal("1.50"), Decimal("2.25"), Decimal("0")],
        "seen": [datetime(2024, 1, day) for day in (1, 2, 3)],
    }
)
table = ring.create_table("items", items, format="delta", database=schema)
ring.insert("items", items.assign(id=[4, 5, 6]), database=schema)
for number in range(2):
    changed = items.assign(id=[2, 6, 7 + number], name=[f"again {number}"] * 3)
    ring.upsert("items", changed, on="id", database=schema)
# From another table, by an expression.
more = table.filter(table.id > 5).mutate(id=table.id + 10, name=table.name.upper())
ring.upsert("items", more, on="id", database=schema)

declared = {"id": "int64", "day": "date", "user": "string", "tags": "array<string>"}
ring.create_table("declared", schema=declared, format="delta", database=schema)
today = table.select(
    id="id", day=table.seen.date(), user="name", tags=ibis.array([table.name, "tag"])
)
ring.insert("declared", today, database=schema)
ring.insert("declared", today.filter(today.id < 3), database=schema, overwrite=True)

counted = table.group_by("name").agg(n=table.count(), most=table.price.max())
ring.create_table("counted", counted, format="delta", database=schema)
ring.create_table(
    "counted", counted.filter(counted.n > 1), database=schema, overwrite=True, format="delta"
)
# Its views are temporary ones.
costly = ring.create_view("costly", table.filter(table.price > 2))
ring.create_table("costly_kept", costly, database=schema, format="delta")
ring.create_table("dropped", counted, format="delta", database=schema)
ring.truncate_table("dropped", database=schema)
ring.drop_table("dropped", database=schema)
print(table.count().execute(), ring.list_tables(database=schema))
