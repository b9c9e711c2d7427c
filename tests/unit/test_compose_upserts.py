"""Upserts (MERGE of literals): which are read, which are refused, and the statement they become.

`tests.unit.test_compose` checks that results are the same, together with all other statements.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from haproc.engine.interface import Column
from haproc.engine.statement import SqlText
from haproc.replicate.compose.reading import change_of
from haproc.replicate.compose.terms import Given, Merged, Own
from tests.unit.test_compose import COLUMNS, change, last_stays_out, lines_of, one
from tests.windows import operation


def merge(source: str, clauses: str, on: str = "t.k = s.k", alias: str = " AS s") -> str:
    return f"MERGE INTO t USING ({source}){alias} ON {on} {clauses}"


UPDATE_ALL, INSERT_ALL = "WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *"
INSERT_KV = "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v)"
TO_V = (("v", (Given("v"),)),)
FROM_S = Merged(
    ("k",), ("k",), (("k", "int"), ("v", "int")), ((one("7"), one("1")), (one("8"), one("2"))), TO_V
)


@pytest.mark.parametrize(
    "sql",
    [
        merge("VALUES (7, 1), (8, 2) AS x(k, v)", "WHEN MATCHED THEN UPDATE SET v = s.v"),
        merge("VALUES (7, 1), (8, 2) s (k, V)", "WHEN MATCHED THEN UPDATE SET t.V = s.v", alias=""),
        merge(
            "SELECT * FROM VALUES (7, 1), (8, 2) AS x(k, v)", "WHEN MATCHED THEN UPDATE SET v = s.v"
        ),
        merge(
            "SELECT * FROM (VALUES (7, 1), (8, 2)) x (k, v)", "WHEN MATCHED THEN UPDATE SET v = s.v"
        ),
        merge(
            "SELECT col1 AS k, x.col2 AS v FROM (VALUES (7, 1), (8, 2)) AS x",
            "WHEN MATCHED THEN UPDATE SET v = s.v",
        ),
        merge(
            "SELECT `all` AS k, v FROM VALUES (7, 1), (8, 2) AS x(all, v)",
            "WHEN MATCHED THEN UPDATE SET v = s.v",
        ),
        merge(
            "SELECT 7 AS k, 1 AS `v` UNION ALL SELECT 8, 2", "WHEN MATCHED THEN UPDATE SET v = s.v"
        ),
        merge(
            "VALUES (7, 1), (8, 2) AS s(k, v)",
            "WHEN MATCHED THEN UPDATE SET v = s.v",
            "((s.k = t.k))",
        ),
        "merge into c.t as a using (values (7, 1), (8, 2) as s(k, v)) s on A.k == S.k"
        " when matched then update set a.v = S.`v`",
    ],
)
def test_upsert_is_read_in_every_form_of_its_source(sql: str) -> None:
    assert change(sql) == FROM_S


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            merge("SELECT 7 AS k, 'x' AS w", f"{UPDATE_ALL} {INSERT_ALL}"),
            Merged(
                ("k",),
                ("k",),
                (("k", "int"), ("w", "string")),
                ((one("7"), one("'x'", "s")),),
                (("k", (Given("k"),)), ("w", (Given("w"),))),
                (("k", (Given("k"),)), ("w", (Given("w"),))),
                whole=True,
            ),
        ),
        (
            merge(
                "VALUES (7, 'a', 1.50), (8, 'b', 22.25), (NULL, 'c', NULL) AS x(n, s, d)",
                "WHEN MATCHED THEN DELETE WHEN NOT MATCHED BY TARGET THEN INSERT (v, k, s)"
                " VALUES (-1, n, s.s)",
                "t.s = s.s AND s.n = t.k",
            ),
            Merged(
                ("k", "s"),
                ("n", "s"),
                (("n", "int"), ("s", "string"), ("d", "decimal(4,2)")),
                (
                    (one("7"), one("'a'", "s"), one("1.50", "d2")),
                    (one("8"), one("'b'", "s"), one("22.25", "d2")),
                    (one("NULL", "n"), one("'c'", "s"), one("NULL", "n")),
                ),
                None,
                (("v", (one("-1"),)), ("k", (Given("n"),)), ("s", (Given("s"),))),
            ),
        ),
        (
            merge(
                "SELECT 7 AS k, 1 AS n",
                "WHEN MATCHED THEN UPDATE SET v = t.v + s.n, w = w || 'x', s = NULL",
            ),
            Merged(
                ("k",),
                ("k",),
                (("k", "int"), ("n", "int")),
                ((one("7"), one("1")),),
                (
                    ("v", (Own("v"), "+", Given("n"))),
                    ("w", (Own("w"), "||", one("'x'", "s"))),
                    ("s", (one("NULL", "n"),)),
                ),
            ),
        ),
    ],
)
def test_upsert_is_read_clause_by_clause(sql: str, expected: object) -> None:
    assert change(sql) == expected


SOURCE = "VALUES (7, 1) AS x(k, v)"


@pytest.mark.parametrize(
    "sql",
    [
        # clauses that say more
        merge(SOURCE, "WHEN MATCHED AND s.v > 1 THEN DELETE"),
        merge(SOURCE, f"WHEN NOT MATCHED AND s.v > 1 THEN INSERT * {UPDATE_ALL}"),
        merge(SOURCE, "WHEN NOT MATCHED BY SOURCE THEN DELETE"),
        merge(SOURCE, f"{UPDATE_ALL} {UPDATE_ALL}"),
        merge(SOURCE, f"{INSERT_ALL} {INSERT_ALL}"),
        merge(SOURCE, ""),
        merge(SOURCE, UPDATE_ALL).replace("MERGE", "MERGE WITH SCHEMA EVOLUTION"),
        # values
        merge(SOURCE, "WHEN MATCHED THEN UPDATE SET v = v"),
        merge(SOURCE, "WHEN MATCHED THEN UPDATE SET v = s.x"),
        merge(SOURCE, "WHEN MATCHED THEN UPDATE SET v = rand()"),
        merge(SOURCE, "WHEN MATCHED THEN UPDATE SET v = s.v, v = 1"),
        merge(SOURCE, "WHEN MATCHED THEN UPDATE SET s.v = 1"),
        merge(SOURCE, "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, s.v + 1)"),
        merge(SOURCE, "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, t.v)"),
        merge(SOURCE, "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k, DEFAULT)"),
        merge(SOURCE, "WHEN NOT MATCHED THEN INSERT (k, k) VALUES (s.k, 1)"),
        merge(SOURCE, "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (s.k)"),
        # conditions
        merge(SOURCE, UPDATE_ALL, "t.k <=> s.k"),
        merge(SOURCE, UPDATE_ALL, "t.k = s.k OR t.v = s.v"),
        merge(SOURCE, UPDATE_ALL, "t.k = s.k AND t.k = s.v"),
        merge(SOURCE, UPDATE_ALL, "t.k = s.k AND t.v = 1"),
        merge(SOURCE, UPDATE_ALL, "t.k = t.v"),
        merge(SOURCE, UPDATE_ALL, "k = s.k"),
        merge(SOURCE, UPDATE_ALL, "s.k = TRUE"),
        # sources
        merge("VALUES (7, 1), (8, 2.5) AS x(k, v)", UPDATE_ALL),
        merge("VALUES (7, 1.0), (8, 2.25) AS x(k, v)", UPDATE_ALL),
        merge("VALUES (7, 1), (8, 3000000000) AS x(k, v)", UPDATE_ALL),
        merge("VALUES (7, 1), (8) AS x(k, v)", UPDATE_ALL),
        merge("VALUES (7, 1) AS x(k, k)", UPDATE_ALL),
        merge("VALUES (7, 1 + 1) AS x(k, v)", UPDATE_ALL),
        merge("SELECT 7 AS k, 1 AS v UNION SELECT 7, 1", UPDATE_ALL),
        merge("SELECT DISTINCT 7 AS k", UPDATE_ALL),
        *(
            merge(f"SELECT {item} FROM VALUES (1, 2) AS x({word}, k)", UPDATE_ALL)
            for word in ("all", "distinct", "not")
            for item in (f"{word} k", word, f"{word} AS k")
        ),
        merge("SELECT 7 k", UPDATE_ALL),
        merge("SELECT col1 k FROM VALUES (7)", UPDATE_ALL),
        merge("SELECT 7 AS k WHERE FALSE", UPDATE_ALL),
        merge("SELECT * FROM VALUES (7) WHERE (col1)", UPDATE_ALL),
        merge("SELECT * FROM VALUES (7), (8) AS x(k) LIMIT 1", UPDATE_ALL),
        merge("SELECT * FROM other", UPDATE_ALL),
        merge("SELECT k, v FROM VALUES (7, 1) AS x(k, w)", UPDATE_ALL),
        merge(SOURCE, UPDATE_ALL, alias=" AS s(k, v)"),
        merge(SOURCE, UPDATE_ALL, alias=" AS t"),
        "MERGE INTO t USING other AS s ON t.k = s.k WHEN MATCHED THEN DELETE",
        f"WITH s AS (SELECT 7 AS k) {merge('SELECT * FROM s', UPDATE_ALL)}",
    ],
)
def test_merge_of_another_form_is_no_change(sql: str) -> None:
    assert change_of(replace(operation("MERGE", "t"), write=SqlText(sql))) is None


@pytest.mark.parametrize(
    ("columns", "sqls"),
    [
        # upserts of one key twice, of another than they are held against, of part of a table
        (
            COLUMNS,
            [merge("VALUES (7, 1), (7, 2) AS x(k, v)", "WHEN MATCHED THEN UPDATE SET v = s.v")],
        ),
        (COLUMNS, [merge(SOURCE, "WHEN NOT MATCHED THEN INSERT (k, v) VALUES (8, s.v)")]),
        (COLUMNS, [merge(SOURCE, "WHEN NOT MATCHED THEN INSERT (v) VALUES (s.v)")]),
        (COLUMNS, [merge(SOURCE, INSERT_ALL)]),
        ([*COLUMNS[:1], COLUMNS[2]], [merge("VALUES (7, 1, 2) AS x(k, v, w)", INSERT_ALL)]),
        (COLUMNS, [merge(SOURCE, "WHEN MATCHED THEN UPDATE SET k = s.v")]),
        (COLUMNS, [merge(SOURCE, "WHEN MATCHED THEN UPDATE SET x = s.v")]),
        # a key that is another column's, or none of its type
        (COLUMNS, [merge(SOURCE, "WHEN MATCHED THEN DELETE", "t.x = s.k")]),
        (COLUMNS, [merge(SOURCE, "WHEN MATCHED THEN DELETE", "t.s = s.k")]),
        (COLUMNS, ["DELETE FROM t WHERE v = 1", merge(SOURCE, "WHEN MATCHED THEN DELETE")]),
        (
            COLUMNS,
            [
                merge(
                    "SELECT 3000000000 AS k",
                    "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (k) VALUES (s.k)",
                )
            ],
        ),
        # NULLs whose type an expression gives them
        (
            COLUMNS,
            [merge("SELECT 7 AS k, NULL AS n", "WHEN MATCHED THEN UPDATE SET v = t.v + s.n")],
        ),
        # a row that there is if the table had none
        (
            COLUMNS,
            [
                merge(SOURCE, f"WHEN MATCHED THEN DELETE {INSERT_KV}"),
                merge(SOURCE, f"WHEN MATCHED THEN UPDATE SET v = s.v {INSERT_KV}"),
            ],
        ),
    ],
)
def test_upsert_with_a_result_that_might_differ_is_not_combined(
    columns: list[Column], sqls: list[str]
) -> None:
    last_stays_out(columns, sqls)


def test_upsert_is_one_source_row_that_updates_or_inserts() -> None:
    head, *clauses = lines_of(merge(SOURCE, f"WHEN MATCHED THEN UPDATE SET v = s.v {INSERT_KV}"))
    assert head.count("SELECT") == 1 and "1 AS p, TRUE AS i" in head
    assert clauses == [
        "WHEN MATCHED AND haproc_s.p = 1 THEN UPDATE SET `v` = haproc_s.`c_v`",
        "WHEN NOT MATCHED AND haproc_s.i THEN INSERT (`k`, `v`) VALUES"
        " (haproc_s.`c_k`, haproc_s.`c_v`)",
    ]


def test_upsert_that_updates_and_inserts_different_columns_has_source_columns_for_both() -> None:
    _, *clauses = lines_of(
        merge(SOURCE, f"WHEN MATCHED THEN UPDATE SET v = 0, w = 'x' {INSERT_KV}"),
        "UPDATE t SET s = 'b' WHERE k = 8",
    )
    assert clauses == [
        "WHEN MATCHED AND haproc_s.p = 1 THEN UPDATE SET `v` = haproc_s.`u_v`,"
        " `w` = haproc_s.`u_w`",
        "WHEN MATCHED AND haproc_s.p = 2 THEN UPDATE SET `s` = haproc_s.`c_s`",
        "WHEN NOT MATCHED AND haproc_s.i THEN INSERT (`k`, `v`) VALUES"
        " (haproc_s.`c_k`, haproc_s.`c_v`)",
    ]


def test_insert_if_absent_updates_no_row() -> None:
    head, clause = lines_of(merge(SOURCE, INSERT_KV))
    assert head.startswith("MERGE") and "0 AS p, TRUE AS i" in head
    assert clause.startswith("WHEN NOT MATCHED")


def test_upsert_of_a_key_that_the_window_has_changes_that_row() -> None:
    upsert = merge(SOURCE, f"WHEN MATCHED THEN UPDATE SET v = t.v + s.v {INSERT_KV}")
    head, *clauses = lines_of("INSERT INTO t (k, v) VALUES (7, 5)", upsert)
    assert head.count(" UNION ALL ") == 1 and "1 AS p, FALSE AS i" in head
    head, *clauses = lines_of("DELETE FROM t WHERE k = 7", upsert, upsert)
    assert "1 AS p, FALSE AS i" in head and "0 AS p, TRUE AS i" in head
    assert [clause.partition(" THEN ")[2] for clause in clauses[:1]] == ["DELETE"]
    head, *clauses = lines_of(upsert, "DELETE FROM t WHERE k = 7")
    assert len(clauses) == 1 and "DELETE" in clauses[0]


def test_upsert_with_a_null_key_becomes_an_insert() -> None:
    (text,) = lines_of(merge("VALUES (NULL, 1), (NULL, 2) AS x(k, v)", INSERT_KV))
    assert text.startswith("INSERT INTO `t` (`k`, `v`) WITH ")


def test_decimals_of_different_upserts_keep_their_types() -> None:
    upserts = [
        merge(f"SELECT {k} AS k, {d} AS d", "WHEN MATCHED THEN UPDATE SET v = t.v + s.d")
        for k, d in enumerate(("1.50", "-22.25", "0.01", "100.00BD"))
    ]
    _, *clauses = lines_of(*upserts)
    types = [clause.rpartition(" AS DECIMAL(")[2].partition(")")[0] for clause in clauses]
    assert types == ["3,2", "4,2", "2,2", "5,2"]
