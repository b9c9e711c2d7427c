"""Statements through adbc-driver-spark: ``python adbc_statements.py SCHEMA [parameters]``.

With a second argument it sends parameters, too: Spark 4.2.1 alone does not accept this driver's. It
prints the answers, to compare them between two servers.
"""

from __future__ import annotations

import os
import sys

import polars as pl
from adbc_driver_spark import dbapi

schema, *parameters = sys.argv[1:]


def shown(text: object) -> None:
    print(str(text).replace(schema, "SCHEMA"))


with dbapi.connect(os.environ["SPARK_REMOTE"]) as connection, connection.cursor() as cursor:
    cursor.execute(f"CREATE SCHEMA {schema}")
    cursor.execute(f"USE {schema}")
    cursor.execute("SET spark.sql.session.timeZone = UTC")  # else a Spark alone has its host's
    columns = "id BIGINT, name STRING, price DECIMAL(10, 2), seen TIMESTAMP, day DATE"
    nested = "tags ARRAY<STRING>, place STRUCT<x: INT, y: DOUBLE>"
    cursor.execute(f"CREATE TABLE items ({columns}, {nested}) USING delta")
    row = "1, 'one', 1.5, TIMESTAMP'2026-01-31 12:00:00Z', DATE'2026-01-31'"
    row += ", array('a', 'b'), struct(1, 2.5)"
    cursor.execute(f"INSERT INTO items VALUES ({row})")
    cursor.execute("INSERT INTO items (id, name) VALUES (2, 'two')")
    cursor.execute("UPDATE items SET price = 2 WHERE id = 2")
    cursor.execute("CREATE VIEW costly AS SELECT id FROM items WHERE price > 1.75")
    cursor.execute("CREATE TABLE many USING delta AS SELECT id, id % 7 AS rest FROM range(10000)")
    cursor.execute("MERGE INTO many USING costly ON many.id = costly.id WHEN MATCHED THEN DELETE")

    cursor.execute("SELECT *, map('k', 1) AS counts FROM items ORDER BY id")
    shown(cursor.fetch_arrow_table())
    if parameters:
        with connection.cursor() as other:  # it would send them again with what follows
            other.execute("SELECT id, name FROM items WHERE id = ?", (2,))
            assert other.fetchall() == [(2, "two")]
    shown(pl.read_database("SELECT sum(id), count(*) FROM many", connection))
    cursor.execute("SELECT id FROM many")
    shown(sum(batch.num_rows for batch in cursor.fetch_record_batch()))

    shown(connection.adbc_get_table_types())
    shown(connection.adbc_get_table_schema("items", db_schema_filter=schema))
    objects = connection.adbc_get_objects(depth="all", db_schema_filter=schema)
    shown([each for each in objects.read_all().to_pylist() if each["catalog_db_schemas"]])
    try:
        cursor.execute("SELECT * FROM nowhere")
        cursor.fetchall()
    except dbapi.Error as error:
        shown(f"{type(error).__name__} {str(error).splitlines()[0][:120]}")
    try:
        cursor.adbc_ingest("ingested", pl.DataFrame({"id": [1]}), mode="create")
    except dbapi.Error as error:
        shown(f"{type(error).__name__} of adbc_ingest")
