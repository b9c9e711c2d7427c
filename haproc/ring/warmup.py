"""Run one of each kind of statement on a fresh server, whose first ones take seconds."""

from __future__ import annotations

from collections.abc import Callable

import grpc.aio

from haproc.engine import protos

_TABLE = "default.haproc_warm_up"
STATEMENTS = (
    "SELECT 1",
    f"DROP TABLE IF EXISTS {_TABLE}",
    f"CREATE TABLE {_TABLE} (id BIGINT, name STRING) USING delta",
    f"INSERT INTO {_TABLE} VALUES (1, 'a'), (2, 'b')",
    f"UPDATE {_TABLE} SET name = 'c' WHERE id = 1",
    f"MERGE INTO {_TABLE} t USING (SELECT 3L AS id, 'd' AS name) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *",
    f"DELETE FROM {_TABLE} WHERE id = 2",
    f"SELECT count(*), bit_xor(xxhash64(*)) FROM {_TABLE}",
    f"DESCRIBE HISTORY {_TABLE}",
    f"DROP TABLE {_TABLE}",
)


async def run(port: int, token: str, progress: Callable[[str], None]) -> None:
    """Warm the server on this port up."""
    import time
    import uuid

    session = str(uuid.uuid4())
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream(
            "/spark.connect.SparkConnectService/ExecutePlan",
            request_serializer=protos.base.ExecutePlanRequest.SerializeToString,
            response_deserializer=protos.base.ExecutePlanResponse.FromString,
        )
        for number, sql in enumerate(STATEMENTS, 1):
            r = protos.base.ExecutePlanRequest(session_id=session)
            r.user_context.user_id = "haproc"
            r.plan.root.sql.query = sql
            t = time.time()
            async for m in call(
                r, metadata=(("authorization", f"Bearer {token}"),), wait_for_ready=True
            ):
                pass
            progress(f"warming up {number}/{len(STATEMENTS)} {time.time() - t:.2f} {sql[:20]}")
