"""The ways in which a PySpark program writes a table; its rows contain their writer's name."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from tests.fault.torture.history import Verb
from tests.fault.torture.workloads import LIST_KEYS, SETS, SHARED_KEYS

Write = Callable[[Any, str, Sequence[int], str], object]
"""Writes rows with these ids into the table; ``(session, table, ids, writer)``."""
_SCHEMA = "id BIGINT, writer STRING"


@dataclass(frozen=True, slots=True)
class InsertWay:
    """A way of writing, and the greatest number of rows that it writes."""

    write: Write
    rows_max: int = 1

    def rows(self, chance: random.Random) -> int:
        """Return the number of rows to write."""
        return chance.randint(1, self.rows_max)


def table_for(chance: random.Random) -> str:
    """Return a table of ids."""
    return chance.choice(SETS)


# -- SQL -----------------------------------------------------------------------------------------


def _sql(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    rows = ", ".join(f"({each}, '{writer}')" for each in ids)
    return session.sql(f"INSERT INTO {table} VALUES {rows}")


def _sql_with_names(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    text = f"INSERT INTO {table} VALUES (:id, :writer)"
    return session.sql(text, args={"id": ids[0], "writer": writer})


def _sql_with_places(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    return session.sql(f"INSERT INTO {table} VALUES (?, ?)", args=[ids[0], writer])


def _sql_over_a_view(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    return session.sql(
        f"INSERT INTO {table} SELECT {ids[0]} + id, '{writer}' FROM steps WHERE id < {len(ids)}"
    )


def _sql_over_a_frame(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    frame = _range(session, ids, writer)
    return session.sql(f"INSERT INTO {table} SELECT id, writer FROM {{frame}}", frame=frame)


# -- DataFrames ----------------------------------------------------------------------------------


def _rows(session: Any, ids: Sequence[int], writer: str) -> Any:
    return session.createDataFrame([(each, writer) for each in ids], _SCHEMA)


def _range(session: Any, ids: Sequence[int], writer: str) -> Any:
    return session.range(ids[0], ids[-1] + 1).select("id", F.lit(writer).alias("writer"))


def _save_as_table(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    return _rows(session, ids, writer).write.mode("append").saveAsTable(table, format="delta")


def _insert_into(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    return _rows(session, ids, writer).write.insertInto(table)


def _write_to(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    return _rows(session, ids, writer).writeTo(table).append()


def _computed_everywhere(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    return _range(session, ids, writer).writeTo(table).append()


def _from_a_table(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    """The keys of a list are always 0, 1 and 2."""
    keys = session.table("app_1").where(F.col("k") < len(ids))
    rows = keys.select((F.col("k") + F.lit(ids[0])).alias("id"), F.lit(writer).alias("writer"))
    return rows.write.mode("append").saveAsTable(table, format="delta")


def _by_chance(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    chance = F.concat(F.lit(writer), F.expr("uuid()"), F.rand().cast("string"))
    return _range(session, ids, writer).select("id", chance.alias("writer")).write.insertInto(table)


def _by_own_function(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    reversed_text = F.udf(lambda text: text[::-1], StringType())
    rows = _range(session, ids, writer).select("id", reversed_text("writer").alias("writer"))
    return rows.write.mode("append").saveAsTable(table, format="delta")


def _by_registered_function(session: Any, table: str, ids: Sequence[int], writer: str) -> object:
    rows = _range(session, ids, writer).select("id", F.expr("string(marked(id))").alias("writer"))
    return rows.writeTo(table).append()


WAYS: Sequence[InsertWay] = (
    InsertWay(_sql, 4),
    InsertWay(_sql_with_names),
    InsertWay(_sql_with_places),
    InsertWay(_sql_over_a_view, 10),
    InsertWay(_sql_over_a_frame, 10),
    InsertWay(_save_as_table, 20),
    InsertWay(_insert_into, 20),
    InsertWay(_write_to, 20),
    InsertWay(_computed_everywhere, 50),
    InsertWay(_from_a_table, len(LIST_KEYS)),
    InsertWay(_by_chance, 50),
    InsertWay(_by_chance, 3000),
    InsertWay(_by_own_function, 10),
    InsertWay(_by_registered_function, 10),
)
"""3,000 rows make several parts: see `run.SETTINGS`."""


# -- values that change --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Change:
    """A write of one value to a key."""

    verb: Verb
    table: str
    key: str
    run: Callable[[], object]


def changes(
    session: Any,
    chance: random.Random,
    registers: Sequence[str],
    lists: Sequence[str],
    value: int,
) -> Change:
    """Return a change of a register or a list, by SQL with arguments or by a DataFrame."""
    if chance.random() < 0.4:
        table, key = chance.choice(lists), chance.choice(LIST_KEYS)
        text = f"UPDATE {table} SET l = concat(l, :more) WHERE k = :k"
        args = {"more": f",{value}", "k": int(key)}
        return Change(Verb.APPEND, table, key, lambda: session.sql(text, args=args))
    table, key = chance.choice(registers), chance.choice(SHARED_KEYS)
    way = chance.random()
    if way < 0.4:
        text = f"UPDATE {table} SET v = ? WHERE k = ?"
        return Change(Verb.UPDATE, table, key, lambda: session.sql(text, args=[value, int(key)]))
    if way < 0.7:
        merge = (
            f"MERGE INTO {table} t USING (SELECT :k AS k, :v AS v) s ON t.k = s.k "
            "WHEN MATCHED THEN UPDATE SET v = s.v "
            "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)"
        )
        named = {"k": int(key), "v": value}
        return Change(Verb.PUT, table, key, lambda: session.sql(merge, args=named))
    return Change(Verb.PUT, table, key, lambda: _merge_into(session, table, int(key), value))


def _merge_into(session: Any, table: str, key: int, value: int) -> object:
    rows = session.createDataFrame([(key, value)], "k BIGINT, v BIGINT").alias("s")
    merge = rows.mergeInto(table, F.col(f"{table}.k") == F.col("s.k"))
    return merge.whenMatched().updateAll().whenNotMatched().insertAll().merge()
