"""Many parameter sets of one INSERT: sent as rows if possible, otherwise as a statement."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

import haclient
from haclient.parameters import as_rows
from haclient.statements import ValueInsert, value_insert
from tests.unit.haclient_rig import Open, connect, run, servers, settle
from tests.unit.haclient_server import Server, answering, failing

__all__ = ["connect", "servers"]

MANY = [(n, f"text {n}") for n in range(2500)]
SQL = "INSERT INTO s.t VALUES (?, ?)"
ONE = ValueInsert("t", (), ("",))


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("insert into t values (?)", ONE),
        ("INSERT INTO t /* x */ VALUES ( ? ) -- y\n;", ONE),
        (
            "INSERT INTO `a.b`.c.`d``e` (x, `y,`) VALUES (:x, :y)",
            ValueInsert("`a.b`.c.`d``e`", ("x", "y,"), ("x", "y")),
        ),
        ("INSERT INTO t (x) VALUES (?, ?)", None),
        ("INSERT INTO t VALUES (?, :x)", None),
        ("INSERT INTO t VALUES (?), (?)", None),
        ("INSERT INTO t VALUES (? + 1)", None),
        ("INSERT INTO t VALUES (?, 1)", None),
        ("INSERT INTO t VALUES (now(), ?)", None),
        ("INSERT INTO t VALUES ()", None),
        ("INSERT INTO t VALUES ?", None),
        ("INSERT INTO t BY NAME VALUES (?)", None),
        ("INSERT INTO TABLE t VALUES (?)", None),
        ("INSERT OVERWRITE t VALUES (?)", None),
        ("INSERT INTO t PARTITION (p = 1) VALUES (?)", None),
        ("INSERT INTO IDENTIFIER(:t) VALUES (:x)", None),
        ("INSERT INTO t.VALUES (?)", None),
        ("INSERT INTO 't' VALUES (?)", None),
        ("INSERT", None),
        ("", None),
    ],
)
def test_insert_of_markers_only_is_recognised(sql: str, found: ValueInsert | None) -> None:
    assert value_insert(sql) == found


NOON = datetime(2026, 1, 31, 12)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, None], pa.bool_()),
        ([127, -128], pa.int8()),
        ([128, None], pa.int16()),
        ([1 << 40], pa.int64()),
        ([1 << 63], None),
        ([1, True], None),
        ([1, 1.5], None),
        ([0.5, None], pa.float64()),
        ([Decimal("1.50"), Decimal(2)], pa.decimal128(3, 2)),
        ([Decimal("NaN")], None),
        (["x", None], pa.string()),
        (["\ud800"], None),
        ([b"x"], pa.binary()),
        ([date(2026, 1, 31)], pa.date32()),
        ([NOON, None], pa.timestamp("us")),
        ([NOON.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
        ([NOON, NOON.replace(tzinfo=UTC)], None),
        ([time(12)], pa.time64("us")),
        ([time(12, tzinfo=UTC)], None),
        ([timedelta(1)], pa.duration("us")),
        ([UUID(int=1)], pa.string()),
        ([None], None),
        ([[1]], None),
    ],
)
def test_values_of_one_kind_become_a_column(values: list[Any], kind: pa.DataType | None) -> None:
    table = as_rows(ONE, [(value,) for value in values])
    assert (table and table.schema.field(0).type) == kind
    if table is not None and not isinstance(values[0], UUID):
        assert table.column(0).to_pylist() == values


def test_parameter_sets_that_do_not_match_the_markers_are_no_rows() -> None:
    named = ValueInsert("t", (), ("a", "b", "a"))
    table = as_rows(named, [{"a": 1, "b": "x"}, {"b": None, "a": 2}])
    assert table is not None and table.to_pylist() == [
        {"0": 1, "1": "x", "2": 1},
        {"0": 2, "1": None, "2": 2},
    ]
    assert as_rows(named, [{"a": 1}]) is None
    assert as_rows(named, [(1, 2, 3)]) is None
    assert as_rows(ONE, [(1, 2)]) is None
    assert as_rows(ONE, ["x"]) is None


async def test_many_parameter_sets_are_sent_as_rows_and_counted(
    connect: Open, servers: list[Server]
) -> None:
    cursor = connect(servers).cursor()
    await settle(cursor.executemany(SQL, iter(MANY), request_id="r", write_concern="all"))
    ((table, query, rows),) = servers[0].appended
    assert (table, query["columns"], query["request_id"]) == ("s.t", "*", "r")
    assert query["write_concern"] == "all"
    assert [tuple(row.values()) for row in rows.to_pylist()] == MANY
    assert (cursor.rowcount, cursor.request_id, cursor.ha["cluster"]) == (2500, "r", "a")
    assert (cursor.server, cursor.description) == (servers[0].url, None)
    await settle(cursor.executemany("INSERT INTO t (`a,b`, c) VALUES (?, ?)", MANY))
    assert servers[0].appended[1][1]["columns"] == '"a,b",c'
    assert not servers[0].seen


@pytest.mark.parametrize("why", ["HAPROC_ROWS_MISFIT", "HAPROC_REQUEST_ID_REUSED"])
async def test_rows_that_do_not_fit_are_sent_as_a_statement_under_the_same_id(
    connect: Open, servers: list[Server], why: str
) -> None:
    cursor = connect(servers).cursor()
    servers[0].rows_script.append(failing(400, "refused", why))
    await settle(cursor.executemany(SQL, MANY, request_id="r"))
    (body,) = servers[0].seen
    assert body["request_id"] == "r" and len(body["parameter_rows"]) == 2500 == cursor.rowcount


async def test_other_error_of_rows_is_raised(connect: Open, servers: list[Server]) -> None:
    cursor = connect(servers).cursor()
    servers[0].rows_script.append(failing(422, "application", "CHECK", "23001"))
    with pytest.raises(haclient.IntegrityError):
        await settle(cursor.executemany(SQL, MANY))
    assert not servers[0].seen


async def test_parameter_sets_that_make_no_rows_are_sent_as_a_statement(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    servers[0].script.append(answering(None, {"affected_rows": 1}))
    mixed = [*MANY[:-1], (1.5, "x")]
    for sql, sets in (
        (SQL, MANY[:1000]),
        (SQL, mixed),
        ("INSERT INTO t VALUES (?, upper(?))", MANY),
    ):
        await settle(connection.cursor().executemany(sql, sets))
    await settle(connection.cursor().executemany(SQL, MANY, operation_class="asynchronous"))
    await run(connection, "USE s")
    await settle(connection.cursor().executemany(SQL, MANY))
    assert len(servers[0].seen) == 7 and not servers[0].appended
