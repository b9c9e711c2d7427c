"""Tests of the anatomy of statements from recorded readings, compared with the statement table.

The readings are Spark's answers about tables with the columns that a statement needs: each was
read in one of the schemas w1, w2, w3, so that ``t`` stands for ``spark_catalog.w2.t``.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from haproc.classify.allowed import Paths
from haproc.classify.model import Kind, OperationClass, RefusedError
from haproc.classify.names import Context
from haproc.classify.tokens import tokenize
from haproc.reading.anatomy import Anatomy, anatomy
from haproc.reading.cut import Cut, cut
from haproc.reading.limits import ANALYZED, EFFECTS, PARSED, QUERIES, check_partition
from haproc.reading.names import Uses
from haproc.reading.tree import Node, Reading, read
from tests.readings.golden import recorded as spark_says
from tests.unit.statement_table import Expected, statements, unread

GOLDEN = Path(__file__).parents[1] / "golden" / "readings" / "anatomy.json.gz"
PATHS = Paths(("/data",))


@cache
def golden() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(gzip.decompress(GOLDEN.read_bytes()))
    return loaded


def reading(sql: str, where: str = "more") -> Reading:
    return read(json.dumps(golden()[where][sql]["reading"]), sql)


def anatomy_of(sql: str, where: str = "more") -> Anatomy:
    """Return the statement's anatomy; raise RefusedError also for one of unknown kind."""
    return accepted(reading(sql, where), golden()[where][sql]["schema"])


def accepted(reading_of_statement: Reading, schema: str) -> Anatomy:
    found = anatomy(reading_of_statement, Context(schema=schema))
    if found.refusal is not None:
        raise found.refusal
    return found


def refused(sql: str, where: str = "more") -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        anatomy_of(sql, where)
    return caught.value


def names(found: Iterable[str]) -> set[str]:
    return {name.removeprefix("spark_catalog.") for name in found}


def recorded() -> list[Expected]:
    """Return the lines of the table that Spark accepts with any of these tables, without files."""
    return [
        expected
        for expected in statements()
        if expected.sql in golden()["table"]
        and "unseen" not in golden()["table"][expected.sql]["reading"]
        and expected.error_class != "HAPROC_PATH"
        and "`/data" not in expected.sql
    ]


def unread_alone() -> list[Expected]:
    """Return the lines that a reading refuses; for files see integration/test_files.py."""
    return [expected for expected in unread() if expected.error_class != "HAPROC_PATH"]


ONLY_PARSED = {"EXPLAIN", "DESCRIBE QUERY SELECT", "DESCRIBE SELECT", "DESC WITH"}
"""An explained statement is not analyzed: it is not known which names are views."""
BETTER: dict[str, tuple[set[str], bool]] = {
    "FROM t insert SELECT insert.a": ({"w1.t"}, True),
    "SHOW COLUMNS FROM t FROM s": ({"s.t"}, True),
    "FROM as INSERT INTO t SELECT 1": ({"w1.as"}, True),
    "CREATE FUNCTION g() RETURNS INT RETURN (SELECT max(a) FROM t)": (set(), False),
}
"""Statements whose line follows the words; a function's body is read separately."""


@pytest.mark.parametrize("expected", unread_alone(), ids=lambda expected: expected.sql[:60])
def test_statement_that_its_text_allows_is_refused_by_its_reading(
    expected: Expected,
) -> None:
    reading_of_statement = spark_says(expected.sql)
    if expected.error_class == "-":
        assert reading_of_statement.error
        return
    with pytest.raises(RefusedError) as caught:
        accepted(reading_of_statement.reading(expected.sql), reading_of_statement.world)
    assert caught.value.error_class == expected.error_class


@pytest.mark.parametrize("expected", recorded(), ids=lambda expected: expected.sql[:60])
def test_anatomy_of_a_statement_in_the_table_equals_its_line(expected: Expected) -> None:
    sql = expected.sql
    if expected.error_class:
        assert refused(sql, "table").error_class == expected.error_class
        return
    found = anatomy_of(sql, "table")
    schema = golden()["table"][sql]["schema"]
    reads, writes = (
        {name.replace(".default.", f".{schema}.") for name in tables}
        for tables in (expected.reads, expected.writes)
    )
    assert (found.kind, found.operation_class) == (expected.kind, expected.operation_class)
    assert found.writes == writes
    if sql in BETTER:
        assert (names(found.reads), found.known) == BETTER[sql]
        return
    assert found.reads == reads
    only_parsed = any(sql.startswith(beginning) for beginning in ONLY_PARSED)
    assert found.known is (expected.tables_known and not only_parsed)


WRITES_AND_READS = {
    "SELECT a FROM spark_catalog.w2.t x JOIN W2.U y USING (a)": ("-", "w2.t w2.u"),
    "SELECT * FROM other.`dot.ted`.`a``b.c`": ("-", "other.`dot.ted`.`a``b.c`"),
    "INSERT INTO other.`dot.ted`.`a``b.c` SELECT a FROM u": ("other.`dot.ted`.`a``b.c`", "w2.u"),
    "UPDATE other.APP.jt SET a = 1 WHERE a = 2": ("other.app.jt", "-"),
    "DELETE FROM other.APP.jt WHERE a = 2": ("other.app.jt", "-"),
    "INSERT INTO other.APP.jt VALUES (1)": ("other.app.jt", "-"),
    "WITH t AS (SELECT 1 AS a, 2 AS b) SELECT * FROM t": ("-", "-"),
    "WITH t AS (SELECT 1 AS a, 2 AS b) INSERT INTO t SELECT * FROM t": ("w2.t", "-"),
    "WITH c AS (SELECT 1 AS a) UPDATE t SET a = 2": ("w2.t", "-"),
    "WITH c AS (SELECT * FROM u) "
    "SELECT * FROM (WITH c AS (SELECT * FROM v) SELECT * FROM c) x, c": (
        "-",
        "w2.u w2.v",
    ),
    "INSERT INTO t SELECT a, b FROM nested": ("w2.t", "w2.nested w2.t w2.vw"),
    "INSERT INTO t SELECT a, b FROM viewtf": ("w2.t", "w2.nested w2.t w2.viewtf w2.vw w2.w"),
    "INSERT INTO t SELECT a, (SELECT max(a) FROM s.u) FROM t": ("w2.t", "s.u w2.t"),
    "SELECT (SELECT max(a) FROM v) FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)": (
        "-",
        "w2.t w2.u w2.v",
    ),
    "DELETE FROM IDENTIFIER('w2.' || 't')": ("w2.t", "-"),
    "INSERT INTO IDENTIFIER('w2' || '.t') SELECT a, b FROM u": ("w2.t", "w2.u"),
    "SELECT * FROM IDENTIFIER('w2.' || 't')": ("-", "w2.t"),
    "SELECT * FROM table_changes('t', 0)": ("-", "w2.t"),
    "INSERT INTO pq VALUES (1, 2)": ("w2.pq", "-"),
    "INSERT OVERWRITE pq PARTITION (p = 1) SELECT a FROM u": ("w2.pq", "w2.u"),
    "CREATE OR REPLACE TABLE t SHALLOW CLONE u": ("w2.t", "w2.u"),
    "CREATE TABLE n LIKE vw": ("w2.n", "w2.vw"),
    "DROP TABLE IF EXISTS nothing_there": ("w2.nothing_there", "-"),
    "ALTER TABLE s.c RENAME TO r.x": ("r.x s.c", "-"),
    "ALTER VIEW vw RENAME TO vx": ("w2.vw w2.vx", "-"),
    "RESTORE TABLE t TO VERSION AS OF 0": ("w2.t", "-"),
    "RESTORE TABLE r1 TO VERSION AS OF 0": ("w2.r1", "-"),
    "TRUNCATE TABLE pq PARTITION (p = 1)": ("w2.pq", "-"),
    "ALTER TABLE pq PARTITION (p = 1) RENAME TO PARTITION (p = 2)": ("w2.pq", "-"),
}


@pytest.mark.parametrize("sql", WRITES_AND_READS)
def test_anatomy_names_tables_as_spark_resolved_them(sql: str) -> None:
    writes, reads = (set(text.split()) - {"-"} for text in WRITES_AND_READS[sql])
    found = anatomy_of(sql)
    assert (names(found.writes), names(found.reads)) == (writes, reads)
    assert found.known


OF_SESSION = {
    "SELECT * FROM tv": ["the temporary view tv"],
    "SELECT * FROM shadow": ["the temporary view shadow"],
    "SELECT * FROM w2.shadow": [],
    "INSERT INTO t SELECT * FROM shadow": ["the temporary view shadow"],
    "INSERT INTO t SELECT tf(a), va FROM u": ["the session's function tf", "the variable va"],
    "INSERT INTO t SELECT f(a), 1 FROM vw": [],
    "MERGE INTO t USING tv s ON t.a = s.a WHEN MATCHED THEN DELETE": ["the temporary view tv"],
    "UPDATE t AS x SET x.a = va WHERE x.b > 1": ["the variable va"],
    "DELETE FROM t AS x WHERE x.b > va": ["the variable va"],
    "SELECT * FROM global_temp.gv": ["the temporary view global_temp.gv"],
    "MERGE INTO t USING D ON t.a = D.id WHEN MATCHED THEN DELETE": ["the DataFrame d"],
    "INSERT INTO t SELECT s.id, s.id FROM `d` s": ["the DataFrame d"],
    "DESCRIBE tv": ["the temporary view tv"],
    "SHOW COLUMNS IN tv": ["the temporary view tv"],
}


@pytest.mark.parametrize("sql", OF_SESSION)
def test_anatomy_lists_the_objects_of_the_session(sql: str) -> None:
    assert list(anatomy_of(sql).of_session) == OF_SESSION[sql]


@pytest.mark.parametrize(
    "sql", ["DROP VIEW tv", "DROP TABLE tv", "ALTER VIEW tv AS SELECT a FROM u"]
)
def test_anatomy_of_a_change_to_a_temporary_view_belongs_to_the_session_only(sql: str) -> None:
    found = anatomy_of(sql)
    assert (found.kind, found.operation_class) == (Kind.TEMPORARY_VIEW, OperationClass.SESSION)
    assert not found.writes
    assert "the temporary view tv" in found.of_session


def test_anatomy_rests_on_functions_also_inside_views() -> None:
    found = anatomy_of("INSERT INTO t SELECT a, b FROM viewtf")
    assert names(found.rests_on - found.reads - found.writes) == {"w2.viewf"}
    found = anatomy_of("SELECT * FROM w2.sqt(1)")
    assert (names(found.reads), names(found.rests_on)) == ({"w2.t"}, {"w2.t", "w2.sqt"})


REFUSED = {
    "FROM u INSERT INTO t SELECT a, b INSERT INTO t SELECT b, a": "HAPROC_MULTIPLE_STATEMENTS",
    "WITH t AS (SELECT 1 AS a) DELETE FROM t WHERE a = 1": "HAPROC_ANALYSIS_DIFFERS",
    "INSERT INTO pd PARTITION (d = DATE 'today') VALUES (1)": "HAPROC_NONDETERMINISTIC",
    "CREATE TEMPORARY VIEW IDENTIFIER('v') AS SELECT * FROM t": "HAPROC_TABLE_NAME",
    "SELECT IDENTIFIER(lower('REFLECT'))('java.lang.System', 'lineSeparator')": (
        "HAPROC_TABLE_NAME"
    ),
    "SELECT IDENTIFIER('ref' || 'lect')('java.lang.System', 'lineSeparator')": (
        "HAPROC_UNCLASSIFIED"
    ),
    "SELECT try_reflect('java.lang.System', 'lineSeparator')": "HAPROC_UNCLASSIFIED",
    "EXPLAIN SELECT reflect('java.lang.System', 'lineSeparator')": "HAPROC_UNCLASSIFIED",
    "SET PATH = system.builtin": "HAPROC_UNCLASSIFIED",
    "CREATE TABLE n LIKE t STORED AS INPUTFORMAT 'com.x.Y' OUTPUTFORMAT 'com.x.Z'": (
        "HAPROC_UNCLASSIFIED"
    ),
    "CREATE TEMPORARY FUNCTION n(x INT) RETURNS STRING RETURN "
    "IDENTIFIER('reflect')('java.lang.System', 'nanoTime')": "HAPROC_UNCLASSIFIED",
    "CREATE FUNCTION n(x INT) RETURNS STRING RETURN `reflect`('java.lang.System', 'nanoTime')": (
        "HAPROC_UNCLASSIFIED"
    ),
    "SELECT TRANSFORM (a) USING 'cat' AS (b) FROM t": "HAPROC_UNCLASSIFIED",
    "CACHE TABLE global_temp.gv": "HAPROC_GLOBAL_TEMPORARY",
    "UNCACHE TABLE global_temp.gv": "HAPROC_GLOBAL_TEMPORARY",
    "DROP VIEW global_temp.gv": "HAPROC_GLOBAL_TEMPORARY",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_anatomy_of_a_forbidden_statement_is_refused(sql: str) -> None:
    error = refused(sql)
    assert error.error_class == REFUSED[sql]
    assert error.message and error.hint


def test_anatomy_of_a_root_in_no_list_is_unknown_and_names_its_class() -> None:
    found = anatomy(reading("SET PATH = system.builtin"), Context(schema="w2"))
    assert (found.kind, found.operation_class, found.known) == (Kind.UNKNOWN, None, False)
    assert found.refusal is not None and "SetPathCommand" in found.refusal.message


def test_anatomy_with_another_context_than_the_sessions_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"w1\.t was analyzed as spark_catalog\.w2\.t"):
        anatomy(reading("INSERT INTO t SELECT a, b FROM nested"), Context(schema="w1"))


CUTS = {
    "INSERT INTO t SELECT a, b FROM u WHERE a > 1": (
        "INSERT INTO t |SELECT a, b FROM u WHERE a > 1|"
    ),
    "INSERT INTO t (SELECT a, b FROM u)": "INSERT INTO t |(SELECT a, b FROM u)|",
    "INSERT INTO t BY NAME SELECT a, b FROM u;": "INSERT INTO t BY NAME |SELECT a, b FROM u|;",
    "INSERT INTO t /* 😀 */ -- d\n SELECT a, b /* 😀 */ FROM u -- end": (
        "INSERT INTO t /* 😀 */ -- d\n |SELECT a, b /* 😀 */ FROM u| -- end"
    ),
    "INSERT INTO t REPLACE WHERE a = 1 SELECT * FROM u": (
        "INSERT INTO t REPLACE WHERE a = 1 |SELECT * FROM u|"
    ),
    "INSERT INTO w3.t PARTITION (p = 1) (a, b) SELECT a, b FROM u": (
        "INSERT INTO w3.t PARTITION (p = 1) (a, b) |SELECT a, b FROM u|"
    ),
    "FROM u INSERT INTO t SELECT a, b": "INSERT INTO t |FROM u\nSELECT a, b|",
    "WITH c AS (SELECT * FROM u) FROM c INSERT INTO t SELECT a, b": (
        "INSERT INTO t |WITH c AS (SELECT * FROM u) FROM c\nSELECT a, b|"
    ),
    "WITH c AS (SELECT * FROM u) INSERT INTO t (a, b) "
    "WITH d AS (SELECT * FROM c) SELECT * FROM d": (
        "INSERT INTO t (a, b) |WITH c AS (SELECT * FROM u)\n"
        "(WITH d AS (SELECT * FROM c) SELECT * FROM d\n)|"
    ),
    "CREATE TABLE n AS (SELECT a FROM u) UNION ALL (SELECT b FROM v)": (
        "CREATE TABLE n AS |(SELECT a FROM u) UNION ALL (SELECT b FROM v)|"
    ),
    "CREATE OR REPLACE TABLE n COMMENT 'AS SELECT' AS /* x */ WITH c AS (SELECT * FROM u) "
    "SELECT * FROM c": (
        "CREATE OR REPLACE TABLE n COMMENT 'AS SELECT' AS /* x */ "
        "|WITH c AS (SELECT * FROM u) SELECT * FROM c|"
    ),
    "CREATE TABLE n USING delta PARTITIONED BY (a) AS FROM u SELECT a": (
        "CREATE TABLE n USING delta PARTITIONED BY (a) AS |FROM u SELECT a|"
    ),
    "CREATE TABLE n SELECT * FROM u ORDER BY a LIMIT 3": (
        "CREATE TABLE n |SELECT * FROM u ORDER BY a LIMIT 3|"
    ),
    "MERGE INTO t USING w2.u ON t.a = u.a WHEN MATCHED THEN DELETE": (
        "MERGE INTO t USING |SELECT * FROM w2.u| ON t.a = u.a WHEN MATCHED THEN DELETE|u"
    ),
    "MERGE INTO t USING D ON t.a = D.id WHEN MATCHED THEN DELETE": (
        "MERGE INTO t USING |SELECT * FROM D| ON t.a = D.id WHEN MATCHED THEN DELETE|D"
    ),
    "MERGE INTO t USING IDENTIFIER('u') s ON t.a = s.a WHEN MATCHED THEN DELETE": (
        "MERGE INTO t USING |SELECT * FROM IDENTIFIER('u')| s ON t.a = s.a WHEN MATCHED THEN DELETE"
    ),
    "MERGE INTO t AS using1 USING /* c */ ( /* d */ SELECT * FROM u -- x\n) AS /* e */ s "
    "ON using1.a = s.a WHEN MATCHED THEN DELETE": (
        "MERGE INTO t AS using1 USING /* c */ |( /* d */ SELECT * FROM u -- x\n)| AS /* e */ s "
        "ON using1.a = s.a WHEN MATCHED THEN DELETE"
    ),
    "WITH t AS (SELECT * FROM u) MERGE INTO w2.t USING t AS s ON w2.t.a = s.a "
    "WHEN MATCHED THEN DELETE": (
        "MERGE INTO w2.t USING |WITH t AS (SELECT * FROM u)\nSELECT * FROM t| AS s "
        "ON w2.t.a = s.a WHEN MATCHED THEN DELETE"
    ),
}


def cut_of(sql: str, where: str = "more") -> Cut | None:
    return cut(reading(sql, where), anatomy_of(sql, where).kind)


@pytest.mark.parametrize("sql", CUTS)
def test_cut_returns_head_query_and_tail(sql: str) -> None:
    found = cut_of(sql)
    head, query, tail, *alias = CUTS[sql].replace("||", "\0").split("|")
    assert found is not None
    assert (found.head, found.query, found.tail) == (head, query, tail.replace("\0", "||"))
    assert found.alias == "".join(alias)
    assert anatomy_of(sql).source is not None


def test_cut_of_values_with_default_is_none() -> None:
    assert cut_of("INSERT INTO days VALUES (1, DEFAULT)") is None


@pytest.mark.parametrize("expected", recorded(), ids=lambda expected: expected.sql[:60])
def test_cut_of_a_statement_in_the_table_omits_no_token(expected: Expected) -> None:
    kinds = ("insert", "insert_overwrite", "create_table_as", "merge")
    if expected.kind not in kinds:
        return
    if "CLONE" in expected.sql:
        return
    found = cut_of(expected.sql, "table")
    assert found is not None
    rest, query, whole = (
        Counter(token.text for token in tokenize(text))
        for text in (found.head + found.tail, found.query, expected.sql)
    )
    assert rest + query >= whole
    assert (rest + query - whole).keys() <= {"SELECT", "*", "FROM", "(", ")"}


def test_fixed_of_an_insert_contains_the_expressions_that_the_analyzer_added() -> None:
    found = anatomy_of("INSERT INTO days VALUES (1, DEFAULT)")
    assert found.source is not None and found.source.cls == "LocalRelation"
    assert [node.cls for node in found.fixed] == ["Alias", "Alias"]


def test_fixed_of_a_merge_contains_condition_and_values() -> None:
    sql = next(sql for sql in golden()["more"] if "MATCHED AND u.b > va" in sql)
    found = anatomy_of(sql)
    assert [node.cls for node in found.fixed][:2] == ["EqualTo", "GreaterThan"]
    assert {node.cls for node in found.parsed_fixed} == {"EqualTo", "UpdateAction", "InsertAction"}
    called = {node.cls for each in found.parsed_fixed for node in each.walk()}
    assert "UnresolvedFunction" in called  # the analyzer made a literal of current_date()


def test_texts_contain_the_expressions_of_definitions() -> None:
    assert anatomy_of("ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0)").texts == ("a > 0",)
    assert anatomy_of("CREATE TABLE n (a INT, CHECK (a > 0)) USING delta").texts == ("a > 0",)
    sql = "CREATE TABLE n (a INT DEFAULT 3, b INT GENERATED ALWAYS AS (a + 1)) USING delta"
    assert anatomy_of(sql).texts == ("a + 1",)
    assert [node.value for node in anatomy_of(sql).fixed] == ["3"]


def frame(name: str) -> Uses:
    analyzed = read(json.dumps(golden()["frames"][name])).analyzed
    assert analyzed is not None
    uses = Uses()
    uses.take_analyzed([analyzed])
    return uses


def test_uses_of_dataframes_are_their_tables_and_session_functions() -> None:
    assert names(frame("table").reads) == {"w2.t", "w2.vw"}
    assert not frame("local").reads
    assert [*frame("udf").session] == ["the session's function <lambda>"]
    assert [*frame("grp").session] == ["the session's function <lambda>"]
    loaded = frame("load")
    assert not loaded.known
    assert names(frame("join").reads) == {"w2.t", "w2.u"}


def test_files_that_are_read_make_the_tables_unknown() -> None:
    sql = next(sql for sql in golden()["more"] if "JOIN u USING" in sql and "delta.`" in sql)
    found = anatomy(reading(sql), Context(schema="w2"))
    assert names(found.reads) == {"w2.u"}
    assert not found.known


def test_table_of_statements_is_recorded_for_the_most_part() -> None:
    assert len(recorded()) >= 350


def test_kinds_all_have_classes_and_no_query_class_is_an_effect() -> None:
    without = {Kind.ROWS, Kind.UNKNOWN, Kind.SELECT, Kind.VALUES}
    assert set(ANALYZED) == set(Kind) - without
    assert set(PARSED.values()) | without == set(Kind)
    assert not QUERIES & EFFECTS


@pytest.mark.parametrize("literal", ["DATE 'today'", "TIMESTAMP 'now'", "TIMESTAMP_NTZ 'today'"])
@pytest.mark.parametrize("node", ["InsertIntoStatement", "UnresolvedPartitionSpec"])
def test_partition_whose_literal_is_read_by_the_clock_is_refused(literal: str, node: str) -> None:
    fields = {"partitionSpec": {"d": "2026-11-29"}} if node == "InsertIntoStatement" else {}
    parsed = Node(node, fields)
    check_partition("INSERT INTO t PARTITION (d = DATE '2026-11-29') VALUES (1)", parsed)
    with pytest.raises(RefusedError, match=f"{literal} is another value on every cluster"):
        check_partition(f"INSERT INTO t PARTITION (d = {literal}) VALUES (1)", parsed)
