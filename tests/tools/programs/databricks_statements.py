"""Statements sent with databricks-sdk: ``python databricks_statements.py URL SCHEMA``.

It uses only features of the oldest SDK, except where ``NEWEST``.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from typing import Any

from databricks.sdk import WorkspaceClient
from databricks.sdk.service import sql

url, schema = sys.argv[1:]
NEWEST = hasattr(sql, "QueryTag")
ENDED = {"SUCCEEDED", "FAILED", "CANCELED"}
ring = WorkspaceClient(host=url, token="a token that a ring without users ignores")
statements = ring.statement_execution
(warehouse,) = ring.warehouses.list()
assert ring.current_user.me().user_name == "anonymous"


def run(text: str, **options: Any) -> Any:
    options = {"wait_timeout": "50s", "schema": schema, **options}
    return statements.execute_statement(statement=text, warehouse_id=warehouse.id, **options)


def done(text: str, **options: Any) -> Any:
    found = run(text, **options)
    assert found.status.state.value == "SUCCEEDED", found.status
    return found


def ended(statement_id: str) -> Any:
    """Wait for a statement's end."""
    for _ in range(600):
        found = statements.get_statement(statement_id)
        if found.status.state.value in ENDED:
            return found
        time.sleep(0.1)
    raise AssertionError(found.status)


done(f"CREATE SCHEMA {schema}", schema=None)
columns = "id BIGINT, name STRING, price DECIMAL(10, 2), seen TIMESTAMP, day DATE"
done(f"CREATE TABLE items ({columns}, tags ARRAY<STRING>) USING delta")
row = "1, 'one', 1.5, TIMESTAMP'2026-01-31 12:00:00Z', DATE'2026-01-31', array('a', 'b')"
done(f"INSERT INTO items VALUES ({row}), (2, NULL, NULL, NULL, NULL, NULL)")
found = done("SELECT * FROM items ORDER BY id")
types = ["LONG", "STRING", "DECIMAL", "TIMESTAMP", "DATE", "ARRAY"]
assert [each.type_name.value for each in found.manifest.schema.columns] == types
one = ["1", "one", "1.50", "2026-01-31T12:00:00.000Z", "2026-01-31", '["a","b"]']
assert found.result.data_array == [one, ["2", *[None] * 5]], found.result.data_array

many = "SELECT id, repeat('x', 100) AS text FROM range(100000)"
found = done(many)
chunk, ids = found.result, [int(each[0]) for each in found.result.data_array]
while chunk.next_chunk_index is not None:
    chunk = statements.get_statement_result_chunk_n(found.statement_id, chunk.next_chunk_index)
    ids += [int(each[0]) for each in chunk.data_array]
assert found.manifest.total_chunk_count > 1
assert sorted(ids) == list(range(100_000))

found = done(many, disposition=sql.Disposition.EXTERNAL_LINKS, format=sql.Format.JSON_ARRAY)
rows = 0
for link in found.result.external_links:
    with urllib.request.urlopen(link.external_link, timeout=60) as answer:
        rows += len(json.load(answer))
assert rows == 100_000

found = run("INSERT INTO items (id) VALUES (3)", wait_timeout="0s")
assert ended(found.statement_id).status.state.value == "SUCCEEDED"
found = run("SELECT id FROM range(1000000000000) WHERE hash(id) = 7", wait_timeout="0s")
statements.cancel_execution(found.statement_id)
assert ended(found.statement_id).status.state.value == "CANCELED"

found = run("SELECT * FROM nowhere")
assert found.status.state.value == "FAILED"
assert "TABLE_OR_VIEW_NOT_FOUND" in found.status.error.message
try:
    run("SET spark.sql.caseSensitive = true")
except Exception as error:
    refused = str(error)
else:
    raise AssertionError("it was not refused")

if NEWEST:
    assert found.status.sql_state == "42P01"
    three = sql.StatementParameterListItem(name="id", value="3", type="BIGINT")
    found = done("SELECT id FROM items WHERE id = :id", parameters=[three], row_limit=5)
    assert found.result.data_array == [["3"]]
    for _ in range(2):  # one request, sent again
        tags = [sql.QueryTag("request_id", f"{schema}-4")]
        done("INSERT INTO items (id) VALUES (4)", query_tags=tags)
print(refused)
