"""What becomes of each kind of statement: the text that is replicated, rows, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from haproc.classify.classifier import classify
from haproc.classify.model import Classified, RefusedError
from haproc.classify.names import Context
from haproc.classify.paths import Paths
from haproc.classify.rules import Rules, parse_rules
from haproc.pin.determinism import pin
from haproc.pin.functions import BARE, DETERMINISTIC, SYNTAX, Nature, nature
from haproc.pin.model import Moment, Pinned, Treatment
from haproc.pin.moment import zone_of

MOMENT = Moment(
    now=datetime(2026, 3, 1, 23, 30, 0, 123456, UTC),
    random=7,
    time_zone="Europe/Berlin",
    user="ann",
    catalog="spark_catalog",
    schema="sales",
)
"""In Berlin it is the next day already."""
NOW = "TIMESTAMP '2026-03-02 00:30:00.123456+01:00'"
NOW_PLAIN = "TIMESTAMP '2026-03-02 00:30:00.123456'"
TODAY = "DATE '2026-03-02'"


RULES = Rules(paths=Paths(("/data",)))


def statement(sql: str) -> Classified:
    return classify(sql, Context("spark_catalog", "sales", "ann"), RULES)


def pinned(sql: str) -> Pinned:
    return pin(statement(sql), MOMENT)


@pytest.mark.parametrize(
    ("expression", "literal"),
    [
        ("current_timestamp", NOW_PLAIN),
        ("CURRENT_TIMESTAMP()", NOW_PLAIN),
        ("current_timestamp ( )", NOW_PLAIN),
        ("now()", NOW_PLAIN),
        ("`now`()", NOW_PLAIN),
        ("system.builtin.now()", NOW_PLAIN),
        ("builtin.now()", NOW_PLAIN),
        ("current_date", TODAY),
        ("current_date()", TODAY),
        ("curdate()", TODAY),
        ("localtimestamp()", "TIMESTAMP_NTZ '2026-03-02 00:30:00.123456'"),
        ("current_time()", "TIME '00:30:00.123456'"),
        ("current_time(3)", "CAST(TIME '00:30:00.123456' AS TIME(3))"),
        ("unix_timestamp()", "1772407800L"),
        ("current_user", "'ann'"),
        ("current_user()", "'ann'"),
        ("user", "'ann'"),
        ("user()", "'ann'"),
        ("session_user()", "'ann'"),
        ("current_catalog()", "'spark_catalog'"),
        ("current_database()", "'sales'"),
        ("current_schema()", "'sales'"),
        ("current_timezone()", "'Europe/Berlin'"),
        ("CAST('now' AS TIMESTAMP)", NOW),
        ("TRY_CAST('now' AS TIMESTAMP)", NOW),
        ("cast('Today' as date)", TODAY),
        ("TIMESTAMP 'now'", NOW),
        ("TIMESTAMP_LTZ 'now'", NOW.replace("TIMESTAMP", "TIMESTAMP_LTZ")),
        ("TIMESTAMP_NTZ 'now'", "TIMESTAMP_NTZ '2026-03-02 00:30:00.123456'"),
        ("TIMESTAMP 'today'", "TIMESTAMP '2026-03-02 00:00:00+01:00'"),
        ("DATE 'today'", TODAY),
        ("DATE' Yesterday '", "DATE '2026-03-01'"),
        ("'tomorrow'::date", "DATE '2026-03-03'"),
        ("DATE 'to' 'day'", TODAY),
        ("DATE '\\u0074oday'", TODAY),
        ("to_date('today')", TODAY),
        ("to_timestamp('now')", NOW),
        ("date('tomorrow')", "DATE '2026-03-03'"),
        ("date_add(current_date, 1)", f"date_add({TODAY}, 1)"),
        ("year(now()) + 1", f"year({NOW_PLAIN}) + 1"),
        ("extract(YEAR FROM current_date)", f"extract(YEAR FROM {TODAY})"),
        ("array(current_date, current_date)", f"array({TODAY}, {TODAY})"),
    ],
)
def test_pin_clock_or_identity_in_values_becomes_a_literal(expression: str, literal: str) -> None:
    result = pinned(f"INSERT INTO t VALUES (1, {expression})")
    assert result.sql == f"INSERT INTO t VALUES (1, {literal})"
    assert result.treatment is Treatment.REPLICATE
    assert result.replacements


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("INSERT INTO t SELECT a, now() FROM s", f"INSERT INTO t SELECT a, {NOW} FROM s"),
        (
            "INSERT INTO t SELECT current_date, s.user FROM s WHERE d < current_date",
            f"INSERT INTO t SELECT {TODAY}, s.user FROM s WHERE d < {TODAY}",
        ),
        (
            "INSERT INTO t SELECT * FROM s WHERE d IS DISTINCT FROM current_date",
            f"INSERT INTO t SELECT * FROM s WHERE d IS DISTINCT FROM {TODAY}",
        ),
        ("INSERT INTO t SELECT now() AS user", f"INSERT INTO t SELECT {NOW} AS user"),
        (
            "INSERT OVERWRITE t PARTITION (d = current_date()) SELECT a FROM s",
            f"INSERT OVERWRITE t PARTITION (d = {TODAY}) SELECT a FROM s",
        ),
        (
            "WITH c AS (SELECT now() AS n) INSERT INTO t SELECT n FROM c",
            f"WITH c AS (SELECT {NOW} AS n) INSERT INTO t SELECT n FROM c",
        ),
        (
            "UPDATE t SET a = now(), user = 'x' WHERE d = current_date",
            f"UPDATE t SET a = {NOW}, user = 'x' WHERE d = {TODAY}",
        ),
        ("DELETE FROM t WHERE d < DATE 'today' - 30", f"DELETE FROM t WHERE d < {TODAY} - 30"),
        ("DELETE FROM t WHERE t.user = user()", "DELETE FROM t WHERE t.user = 'ann'"),
        (
            "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = now(), user = s.b "
            "WHEN NOT MATCHED THEN INSERT (a, user) VALUES (s.a, current_user())",
            f"MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = {NOW}, "
            "user = s.b WHEN NOT MATCHED THEN INSERT (a, user) VALUES (s.a, 'ann')",
        ),
        (
            "CREATE TABLE t USING delta AS SELECT a, current_timestamp AS n FROM s",
            f"CREATE TABLE t USING delta AS SELECT a, {NOW} AS n FROM s",
        ),
        (
            "FROM s INSERT INTO t SELECT now(), current_date",
            f"FROM s INSERT INTO t SELECT {NOW}, {TODAY}",
        ),
    ],
)  # fmt: skip
def test_pin_clock_elsewhere_becomes_a_literal(sql: str, expected: str) -> None:
    result = pinned(sql)
    assert (result.treatment, result.sql) == (Treatment.REPLICATE, expected)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1, 'now', \"rand()\", 'it''s now()')",
        "INSERT INTO t VALUES (1) /* now() rand() */ -- uuid()",
        "INSERT INTO t VALUES ('now', 1), ('today', upper('x'))",
        "INSERT INTO t (user, `current_date`) VALUES (upper('a'), lower('b'))",
        "INSERT INTO t SELECT /*+ COALESCE(1) */ s.current_date, s.`user` FROM s",
        "INSERT INTO t SELECT a, version, uuid, rand FROM s",
        "INSERT INTO t SELECT count(*), min(a), max(b) FROM s",
        "INSERT INTO t SELECT * FROM s LIMIT ALL",
        "INSERT INTO t SELECT rank() OVER (ORDER BY a), dense_rank() OVER (ORDER BY a) FROM s",
        "INSERT INTO t SELECT sort_array(collect_set(a)), array_sort(collect_list(b)) FROM s",
        "INSERT INTO t SELECT listagg(a, ',') WITHIN GROUP (ORDER BY a) FROM s",
        "INSERT INTO t SELECT transform(a, x -> x + 1) FROM s",
        "INSERT INTO t SELECT * FROM VALUES (1), (2) AS v (a)",
        "INSERT INTO t SELECT f.* FROM s AS f (a, b)",
        "INSERT INTO t WITH c (a, b) AS (SELECT 1, 2), d (x) AS (SELECT 3) SELECT * FROM c, d",
        "INSERT INTO t SELECT g.x FROM s LATERAL VIEW explode(a) g AS x",
        "INSERT INTO t TABLE s",
        "UPDATE t SET a = a + 1 WHERE b IN (SELECT b FROM s)",
        "DELETE FROM t WHERE a LIKE '%now()%'",
        "MERGE INTO t USING s ON t.a = s.a WHEN MATCHED THEN DELETE",
        "TRUNCATE TABLE t",
        "OPTIMIZE t",
        "VACUUM t",
        "CREATE TABLE t (a INT, b DECIMAL(10,2) DEFAULT 1.5, c STRING COMMENT 'now()') USING delta",
        "CREATE TABLE t (a DATE, y INT GENERATED ALWAYS AS (year(a))) USING delta",
        "CREATE TABLE t (a INT) USING parquet PARTITIONED BY (bucket(4, a))",
        "CREATE TABLE t USING delta AS SELECT a, upper(b) AS b FROM s",
        "ALTER TABLE t ADD COLUMNS (c INT, d VARCHAR(10))",
        "ALTER TABLE t ALTER COLUMN a SET DEFAULT 5",
        "DROP TABLE t",
        "CREATE VIEW v AS SELECT now(), rand(), * FROM s LIMIT 10",
        "CREATE OR REPLACE VIEW v AS SELECT current_date",
        "CREATE FUNCTION f(x INT) RETURNS INT RETURN x + 1",
        "CREATE SCHEMA x",
        "COMMENT ON TABLE t IS 'now()'",
    ],
)
def test_pin_statement_that_means_the_same_everywhere_is_untouched(sql: str) -> None:
    result = pinned(sql)
    assert result.reasons == ()
    assert result.treatment is Treatment.REPLICATE
    assert result.sql == statement(sql).sql
    assert result.replacements == ()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT rand() FROM s",
        "SELECT rand(1) FROM s",
        "SELECT random(), randn(), a FROM s",
        "SELECT uuid() FROM s",
        "SELECT `uuid`() FROM s",
        "SELECT system.builtin.uuid() FROM s",
        "SELECT randstr(5), uniform(1, 2) FROM s",
        "SELECT shuffle(a) FROM s",
        "SELECT monotonically_increasing_id() FROM s",
        "SELECT spark_partition_id() FROM s",
        "SELECT input_file_name() FROM s",
        "SELECT input_file_block_start(), input_file_block_length() FROM s",
        "SELECT aes_encrypt(a, 'k') FROM s",
        "SELECT version()",
        "SELECT current_path()",
        "SELECT * FROM s TABLESAMPLE (10 PERCENT)",
        "SELECT * FROM s TABLESAMPLE (10 PERCENT) REPEATABLE (1)",
        "SELECT * FROM s LIMIT 10",
        "SELECT a FROM s ORDER BY b LIMIT 10",
        "SELECT a, b FROM s ORDER BY a LIMIT 10",
        "SELECT a AS x, b AS a FROM s ORDER BY a LIMIT 10",
        "SELECT * FROM s ORDER BY a LIMIT 10",
        "SELECT a FROM s UNION SELECT a FROM u LIMIT 10",
        "SELECT * FROM s OFFSET 5",
        "SELECT * FROM (SELECT * FROM s LIMIT 1)",
        "SELECT first(a), last(a) FROM s",
        "SELECT any_value(a) FROM s",
        "SELECT first_value(a) OVER (ORDER BY b) FROM s",
        "SELECT nth_value(a, 2) OVER (ORDER BY b) FROM s",
        "SELECT collect_list(a) FROM s",
        "SELECT size(collect_set(a)) FROM s",
        "SELECT array_agg(a) FROM s",
        "SELECT array_sort(collect_list(a), (x, y) -> 0) FROM s",
        "SELECT listagg(a) FROM s",
        "SELECT string_agg(a, ',') FROM s",
        "SELECT listagg(a) WITHIN GROUP (ORDER BY b) FROM s",
        "SELECT max_by(a, b), min_by(a, b) FROM s",
        "SELECT mode(a) FROM s",
        "SELECT row_number() OVER (ORDER BY a) FROM s",
        "SELECT lag(a) OVER (ORDER BY b), lead(a) OVER (ORDER BY b) FROM s",
        "SELECT ntile(4) OVER (ORDER BY a) FROM s",
        "SELECT count(*) OVER (ORDER BY a ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM s",
        "SELECT sum(a) FROM s",
        "SELECT sum(a + 1), b FROM s GROUP BY b",
        "SELECT sum(1.5D) FROM s",
        "SELECT sum(CAST(a AS DOUBLE)) FROM s",
        "SELECT try_sum(a) FROM s",
        "SELECT avg(CAST(a AS BIGINT)) FROM s",
        "SELECT mean(a) FROM s",
        "SELECT stddev(a), variance(a) FROM s",
        "SELECT corr(a, b), covar_pop(a, b), regr_slope(a, b) FROM s",
        "SELECT skewness(a), kurtosis(a) FROM s",
        "SELECT approx_count_distinct(a) FROM s",
        "SELECT percentile_approx(a, 0.5), approx_percentile(a, 0.5) FROM s",
        "SELECT histogram_numeric(a, 5) FROM s",
        "SELECT count_min_sketch(a, 0.1D, 0.9D, 1) FROM s",
        "SELECT session.x FROM s",
        "SELECT system.session.x",
        "SELECT * FROM s VERSION AS OF 3",
        "SELECT * FROM s TIMESTAMP AS OF '2026-01-01'",
        "SELECT * FROM s FOR VERSION AS OF 3",
        "SELECT * FROM parquet.`/data/x`",
        "SELECT my_function(a) FROM s",
        "SELECT db.my_function(a) FROM s",
        "SELECT transform(a, x -> rand()) FROM s",
        "SELECT * FROM s WHERE d > 'yesterday'",
        "SELECT user FROM s",
        "SELECT `current_timestamp` FROM s",
        "SELECT current_date FROM s WHERE s.current_date > 5",
        "SELECT * FROM s ORDER BY rand()",
        "SELECT * FROM my_table_function(1)",
        "VALUES (1, rand(5))",
        "VALUES (x, 1)",
        "VALUES (transform(array(1, 2), x -> uuid()))",
        "VALUES (aes_encrypt('a', 'k'))",
        "VALUES ((SELECT max_by(a, b) FROM s))",
        "VALUES (1), (2) LIMIT 1",
        "VALUES (date_add('today', 1))",
    ],
)
@pytest.mark.parametrize(
    "head",
    [
        "INSERT INTO t (a, b) ",
        "INSERT OVERWRITE TABLE x.t PARTITION (p = 1) ",
        "CREATE OR REPLACE TABLE t USING delta TBLPROPERTIES ('a' = 'b') AS ",
    ],
)
def test_pin_query_that_may_differ_is_materialised(head: str, query: str) -> None:
    result = pinned(head + query)
    assert result.treatment is Treatment.MATERIALISE
    assert result.reasons
    assert result.source is not None
    assert (result.source.head, result.source.query) == (head, query)


@pytest.mark.parametrize(
    ("sql", "head", "query"),
    [
        ("INSERT INTO t BY NAME SELECT rand() a", "INSERT INTO t BY NAME ", "SELECT rand() a"),
        ("INSERT INTO t (SELECT uuid())", "INSERT INTO t ", "(SELECT uuid())"),
        ("INSERT INTO t (`a`) (SELECT rand())", "INSERT INTO t (`a`) ", "(SELECT rand())"),
        ("INSERT INTO a.b.t FROM s SELECT uuid()", "INSERT INTO a.b.t ", "FROM s SELECT uuid()"),
        (
            "WITH c AS (SELECT 1 AS a) INSERT INTO t SELECT a, uuid() FROM c",
            "INSERT INTO t ",
            "WITH c AS (SELECT 1 AS a)\nSELECT a, uuid() FROM c",
        ),
        (
            "WITH c AS (SELECT 1 AS a) INSERT INTO t WITH d AS (SELECT 2) SELECT a, uuid() FROM c",
            "INSERT INTO t ",
            "WITH c AS (SELECT 1 AS a)\n(WITH d AS (SELECT 2) SELECT a, uuid() FROM c\n)",
        ),
        (
            "INSERT INTO t WITH c AS (SELECT now() AS n) SELECT n, uuid() FROM c",
            "INSERT INTO t ",
            f"WITH c AS (SELECT {NOW} AS n) SELECT n, uuid() FROM c",
        ),
        (
            "INSERT INTO t REPLACE WHERE d = current_date() SELECT uuid() FROM s",
            f"INSERT INTO t REPLACE WHERE d = {TODAY} ",
            "SELECT uuid() FROM s",
        ),
        (
            "CREATE TABLE IF NOT EXISTS t PARTITIONED BY (days(d)) AS (SELECT uuid() AS a)",
            "CREATE TABLE IF NOT EXISTS t PARTITIONED BY (days(d)) AS ",
            "(SELECT uuid() AS a)",
        ),
    ],
)  # fmt: skip
def test_pin_materialised_statement_is_split_at_its_query(sql: str, head: str, query: str) -> None:
    source = pinned(sql).source
    assert source is not None
    assert (source.head, source.query) == (head, query)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE t SET a = rand()",
        "UPDATE t SET a = uuid() WHERE b = 1",
        "UPDATE t SET a = (SELECT sum(b) FROM s)",
        "UPDATE t SET a = my_function(b)",
        "UPDATE t SET a = 'now'",
        "UPDATE t SET a = 1 WHERE user = 'bob'",
        "DELETE FROM t WHERE rand() < 0.5",
        "DELETE FROM t WHERE a IN (SELECT a FROM s LIMIT 10)",
        "DELETE FROM t WHERE d < 'yesterday'",
        "MERGE INTO t USING (SELECT *, uuid() AS u FROM s) s ON t.a = s.a "
        "WHEN NOT MATCHED THEN INSERT *",
        "MERGE INTO t USING s ON t.a = s.a WHEN NOT MATCHED THEN INSERT (a) VALUES (uuid())",
        "CREATE TABLE t (a INT, b TIMESTAMP DEFAULT current_timestamp()) USING delta",
        "CREATE TABLE t (a INT, b DATE DEFAULT current_date) USING delta",
        "CREATE TABLE t (a STRING DEFAULT uuid(), b INT) USING delta",
        "CREATE TABLE t (a STRING DEFAULT my_function()) USING delta",
        "CREATE TABLE t (a DATE DEFAULT 'today') USING delta",
        "CREATE TABLE t (a BIGINT GENERATED ALWAYS AS IDENTITY) USING delta",
        "CREATE TABLE t (a DATE, b INT GENERATED ALWAYS AS (year(now()))) USING delta",
        "ALTER TABLE t ADD COLUMNS (c DOUBLE DEFAULT rand())",
        "ALTER TABLE t ALTER COLUMN c SET DEFAULT current_user()",
        "ALTER TABLE t ADD CONSTRAINT c CHECK (d < current_date())",
        "CREATE FUNCTION f() RETURNS DOUBLE RETURN rand()",
        "CREATE FUNCTION f() RETURNS TIMESTAMP RETURN now()",
        "CREATE FUNCTION f(x INT) RETURNS INT RETURN other_function(x)",
        "RESTORE TABLE t TO VERSION AS OF 3",
        "INSERT INTO t PARTITION (p = uuid()) SELECT a FROM s",
    ],
)
def test_pin_statement_that_differs_in_place_is_refused(sql: str) -> None:
    result = pinned(sql)
    assert result.treatment is Treatment.REFUSE
    assert result.reasons
    assert result.hint


@pytest.mark.parametrize("sql", ["INSERT INTO t VALUES ('${env:HOME}')", "UPDATE t SET a = ${x}"])
def test_pin_text_that_spark_would_substitute_is_refused(sql: str) -> None:
    with pytest.raises(RefusedError):
        statement(sql)
    unseen = replace(statement("DELETE FROM t"), sql=sql)
    assert pin(unseen, MOMENT).treatment is Treatment.REFUSE


@pytest.mark.parametrize(
    "query",
    [
        "SELECT reflect('java.util.UUID', 'randomUUID')",
        "SELECT java_method('java.util.UUID', 'randomUUID')",
        "SELECT try_reflect('java.util.UUID', 'randomUUID')",
        "SELECT TRANSFORM (a) USING 'cat' AS (b) FROM s",
    ],
)
def test_pin_foreign_code_is_materialised_where_a_rule_lets_it_pass(query: str) -> None:
    allowed = replace(statement("INSERT INTO t SELECT a FROM s"), sql=f"INSERT INTO t {query}")
    assert pin(allowed, MOMENT).treatment is Treatment.MATERIALISE


def test_pin_random_values_differ_by_occurrence_and_row() -> None:
    result = pinned("INSERT INTO t VALUES (uuid(), uuid(), rand()), (uuid(), uuid(), rand())")
    assert result.treatment is Treatment.REPLICATE
    assert len({r.literal for r in result.replacements}) == 6
    assert "(" not in result.sql.replace("VALUES (", "", 1).replace("), (", "", 1)


def test_pin_random_values_follow_the_seed() -> None:
    sql = statement("INSERT INTO t VALUES (uuid(), randn(), randstr(8), uniform(1, 1000))")
    other = Moment(MOMENT.now, 8, "UTC", "ann", "spark_catalog", "sales")
    assert pin(sql, MOMENT) == pin(sql, MOMENT)
    assert pin(sql, MOMENT).sql != pin(sql, other).sql


def test_pin_wall_time_that_happens_twice_keeps_its_offset() -> None:
    autumn = Moment(
        datetime(2026, 10, 25, 1, 30, tzinfo=UTC), 0, "Europe/Berlin", "ann", "spark_catalog", "s"
    )
    result = pin(statement("INSERT INTO t VALUES (now())"), autumn)
    assert result.sql == "INSERT INTO t VALUES (TIMESTAMP '2026-10-25 02:30:00+01:00')"


def test_pin_pinned_insert_has_a_shape_that_can_be_combined() -> None:
    result = pinned("INSERT INTO t VALUES (1, now(), uuid(), rand(), current_date, current_user())")
    assert statement(result.sql).insert is not None


@pytest.mark.parametrize(
    ("sql", "treatment"),
    [
        ("INSERT INTO t SELECT sum(CAST(a AS INT) * 2) FROM s GROUP BY b", Treatment.MATERIALISE),
        ("INSERT INTO t SELECT avg(CAST(a AS DECIMAL(9,2))) FROM s", Treatment.MATERIALISE),
        ("INSERT INTO t SELECT a, b FROM s ORDER BY b, a LIMIT 10", Treatment.MATERIALISE),
        ("UPDATE t SET a = (SELECT sum(b) FROM s)", Treatment.REFUSE),
    ],
)
def test_pin_what_types_may_settle_is_left_to_the_analysis(sql: str, treatment: Treatment) -> None:
    result = pinned(sql)
    assert (result.treatment, result.dispellable) == (treatment, True)


def test_pin_statements_that_are_not_replicated_are_untouched() -> None:
    for sql in ("SELECT now(), rand() FROM s LIMIT 5", "SHOW TABLES", "USE x"):
        assert pinned(sql) == Pinned(Treatment.REPLICATE, sql)


def test_functions_each_have_one_nature() -> None:
    assert not SYNTAX & DETERMINISTIC
    assert all(nature(name) is not Nature.UNKNOWN for name in BARE)
    assert nature("no_such_function") is Nature.UNKNOWN


@pytest.mark.parametrize(
    ("name", "offset_hours"),
    [("UTC", 0), ("Z", 0), ("+02:00", 2), ("-2", -2), ("UTC+1", 1), ("GMT-01:00", -1)],
)
def test_zone_of_any_spelling_is_understood(name: str, offset_hours: int) -> None:
    offset = MOMENT.now.astimezone(zone_of(name)).utcoffset()
    assert offset is not None
    assert offset.total_seconds() == offset_hours * 3600


def test_zone_of_unknown_name_is_refused() -> None:
    with pytest.raises(RefusedError, match="Nowhere"):
        zone_of("Nowhere/City")


def test_statement_that_a_rule_vouches_for_is_replicated_unless_it_asks_for_chance() -> None:
    def pinned(sql: str) -> Treatment:
        rules = parse_rules("rules: [{kind: unknown, matches: '(?i)^call', class: synchronous}]")
        return pin(classify(sql, Context(), rules), MOMENT).treatment

    assert pinned("CALL system.compact('t')") is Treatment.REPLICATE
    assert pinned("CALL system.compact(rand())") is Treatment.REFUSE


def test_pin_clone_is_refused_for_what_it_is() -> None:
    result = pinned("CREATE OR REPLACE TABLE t SHALLOW CLONE u VERSION AS OF 3")
    assert result.treatment is Treatment.REFUSE
    assert "clone" in result.reasons[0] and "SELECT" in result.hint
