"""Statements, and what becomes of each: as text, its rows, or a refusal for a reason."""

from __future__ import annotations

TABLES = [
    "CREATE TABLE t (a BIGINT, b STRING, c DOUBLE, d DATE, m DECIMAL(10,2), ts "
    "TIMESTAMP) USING delta",
    "CREATE TABLE u (a BIGINT, b STRING, i INT) USING delta",
    "CREATE TABLE p (a BIGINT, b STRING, i INT) USING parquet",
    "CREATE TABLE big (ID BIGINT, TS TIMESTAMP, V STRING) USING delta",
    "CREATE TABLE us (user STRING, current_date DATE, `a b` INT, `f(x)` INT) USING delta "
    "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "CREATE TABLE w (a INT, c CHAR(5), v VARCHAR(4), x STRUCT<y: ARRAY<CHAR(3)>>) USING delta",
    "CREATE TABLE wp (c CHAR(5), v VARCHAR(4)) USING parquet",
    "CREATE VIEW v AS SELECT a, count(*) n FROM t GROUP BY a",
    "CREATE FUNCTION f1(x INT) RETURNS INT RETURN x + 1",
    "CREATE FUNCTION f2(x INT, y STRING) RETURNS INT RETURN (SELECT max(i) FROM u WHERE "
    "b = y) + f1(x)",
    "CREATE FUNCTION fr(x INT) RETURNS STRING RETURN IDENTIFIER('uuid')()",
    "CREATE FUNCTION frr(x INT) RETURNS STRING RETURN fr(x)",
    "CREATE FUNCTION fts(x BIGINT) RETURNS TIMESTAMP RETURN timestamp_seconds(x)",
    "CREATE FUNCTION ft(x INT) RETURNS TABLE(y INT) RETURN SELECT x",
]
AS_TEXT = [
    "INSERT INTO u SELECT a, b, i FROM p",
    "INSERT INTO p SELECT a, b, i FROM u",
    "INSERT OVERWRITE u SELECT * FROM u",
    "INSERT OVERWRITE p SELECT * FROM u",
    "INSERT INTO u SELECT a, b, sum(a) FROM t GROUP BY a, b",
    "INSERT INTO u (a) SELECT sum(i) FROM u",
    "INSERT INTO u SELECT a, b, CAST(avg(m) AS INT) FROM t GROUP BY a, b",
    "INSERT INTO u SELECT a, b, CAST(sum(m * 1.5) AS INT) FROM t GROUP BY a, b",
    "INSERT INTO u SELECT a, 'today', 1 FROM t",
    "UPDATE w SET a = 2 WHERE c = 'x' AND x.y[0] = 'y'",
    "UPDATE w SET c = 'z', v = c WHERE a = 1",
    "DELETE FROM w WHERE c = 'x'",
    "MERGE INTO w USING w AS s ON w.a = s.a WHEN MATCHED THEN UPDATE SET v = s.v",
    "INSERT INTO w SELECT * FROM w",
    "INSERT INTO wp SELECT v, c FROM w",
    "INSERT INTO u SELECT a, b, 1 FROM t WHERE b = 'now'",
    "INSERT INTO u SELECT a, x, y FROM (SELECT a, upper(b) || 'x' AS x, year(d) AS y "
    "FROM t) ORDER BY a, x, y LIMIT 2",
    "INSERT INTO u SELECT a, b, i FROM u ORDER BY a, b, i LIMIT 2",
    "INSERT INTO u SELECT a, b, i FROM (SELECT *, row_number() OVER (PARTITION BY a "
    "ORDER BY b, i) rn FROM u) WHERE rn = 1",
    "INSERT INTO u SELECT a, b, i FROM (SELECT a, max(b) b, max(i) i, row_number() OVER "
    "(ORDER BY a) rn FROM u GROUP BY a) WHERE rn < 5",
    "INSERT INTO u SELECT a, b, count(*) OVER (PARTITION BY a ORDER BY b) FROM u",
    "INSERT INTO u SELECT a, array_join(sort_array(collect_list(b)), ','), "
    "count(DISTINCT i) FROM u GROUP BY a",
    "INSERT INTO u SELECT a, listagg(b, ',') WITHIN GROUP (ORDER BY b), 1 FROM u GROUP BY a",
    "INSERT INTO u SELECT a, f1(i) || f1(2), f1(f1(i)) FROM u WHERE f1(i) > 2",
    "INSERT INTO u SELECT a, b, f2(i, b) FROM u",
    "INSERT INTO u SELECT a, b, y FROM t, LATERAL ft(3)",
    "INSERT INTO IDENTIFIER('u') SELECT * FROM IDENTIFIER('p')",
    "INSERT INTO u WITH q AS (SELECT a FROM t) SELECT q.a, x.b, 1 FROM q JOIN t x USING "
    "(a) WHERE EXISTS (SELECT 1 FROM u WHERE u.a = q.a)",
    "INSERT INTO u SELECT a, b, 1 FROM t WHERE d = to_date('today') AND ts < now()",
    "WITH q AS (SELECT a, b FROM t) INSERT INTO u SELECT a, b RLIKE current_user(), 1 FROM q",
    "UPDATE t SET b = 'now', c = c + 1.5 WHERE b = 'today' AND a = 3",
    "UPDATE t SET b = 'call me (now)' WHERE b = 'f(x) #12L, sum(a'",
    "UPDATE us SET user = 'x' WHERE user = 'y'",
    "UPDATE us SET `a b` = `f(x)` + 1",
    "DELETE FROM t WHERE b RLIKE current_user() AND d = current_date",
    "DELETE FROM p WHERE a = 3",
    "MERGE INTO t USING (SELECT a, sum(i) s FROM u GROUP BY a) x ON t.a = x.a WHEN "
    "MATCHED AND x.s > 3 THEN UPDATE SET c = x.s WHEN NOT MATCHED THEN INSERT (a, b) "
    "VALUES (x.a, 'q')",
    "MERGE INTO t USING (SELECT a, b FROM (SELECT *, row_number() OVER (PARTITION BY a "
    "ORDER BY b, i) rn FROM u) WHERE rn = 1) x ON t.a = x.a WHEN MATCHED THEN UPDATE SET "
    "b = x.b",
    "WITH q AS (SELECT * FROM u) MERGE INTO t USING q x ON t.a = x.a WHEN NOT MATCHED "
    "THEN INSERT (a, b) VALUES (x.a, x.b)",
    "CREATE TABLE n USING delta AS SELECT a, sum(i) s FROM u GROUP BY a",
    "CREATE TABLE n AS SELECT 1 a",
    "CREATE TABLE n (x INT DEFAULT 3 + 1 NOT NULL COMMENT 'x', s STRUCT<a: INT, b: "
    "MAP<STRING, DECIMAL(10,2)>>, z INT GENERATED ALWAYS AS (x + 1)) USING delta "
    "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
    "CREATE VIEW n AS SELECT *, now() FROM t",
    "CREATE FUNCTION n(x INT, y STRING DEFAULT 'a') RETURNS TABLE (q INT) RETURN SELECT "
    "i FROM u WHERE b = y",
    "CREATE FUNCTION n(x INT, y STRING) RETURNS STRING RETURN y || f1(x)",
    "CREATE FUNCTION n(x STRING) RETURNS BIGINT RETURN (SELECT sum(i) FROM u WHERE b = x)",
    "INSERT INTO u (a, b) VALUES (abs(1), '12:30')",
    "UPDATE t SET b = nvl(b, '12:30') WHERE a BETWEEN 1 AND 3 AND b BETWEEN 'a' AND '12:30'",
    "DELETE FROM t WHERE ts BETWEEN '2026-01-01' AND '2026-02-01' AND ifnull(a, 0) = 1",
    "UPDATE t SET b = decode(a, 1, 'one', 2, '12:30') WHERE nullif(upper(b), 'X') = 'Y'",
    "DELETE FROM t WHERE b BETWEEN '2024-01-01' AND '2024-12-31' AND nvl(b, '') <> nullif(b, '-')",
    "UPDATE t SET b = nvl2(ts, b, 'none') WHERE year(ts) BETWEEN 2020 AND 2024",
    "MERGE INTO t USING (SELECT * FROM VALUES (1, 'a') AS q(a, b)) s ON t.a = s.a WHEN "
    "MATCHED THEN UPDATE SET b = nvl(s.b, t.b)",
    "MERGE INTO t USING u AS s ON t.a = s.a AND nvl(s.b, '') = t.b AND s.i BETWEEN t.a "
    "AND t.m WHEN MATCHED AND NOT equal_null(s.b, t.b) THEN UPDATE SET b = nvl2(t.ts, "
    "s.b, nullif(t.b, '')) WHEN NOT MATCHED THEN INSERT (a, b, ts) VALUES (s.a, nvl(s.b, "
    "'x'), TIMESTAMP '2024-01-01')",
    "MERGE INTO t USING (SELECT a, max(ts) ts FROM t GROUP BY a) s ON t.a = s.a AND s.ts "
    "BETWEEN t.ts AND nvl(t.ts, s.ts) WHEN MATCHED THEN DELETE",
    "MERGE INTO u USING (SELECT * FROM VALUES (abs(1), 'a(b', concat('x', 'y')) AS q(a, "
    "b, c)) s ON u.a = s.a WHEN MATCHED THEN UPDATE SET b = s.b || s.c",
    "UPDATE t SET ts = nvl2(b, ts, TIMESTAMP '2024-01-01 00:00:00'), b = decode(b, 'A', "
    "'B', 'C'), a = decode(ts, TIMESTAMP '2024-01-01 00:00:00', 1, 2)",
    "UPDATE t SET ts = decode(b, 'A', ts, 'B', TIMESTAMP '2024-01-01 00:00:00', ts)",
    "CREATE FUNCTION n(x STRING, y STRING) RETURNS STRING RETURN nvl(x, nullif(y, '12:30'))",
    "CREATE TABLE n (a STRING, b STRING, c STRING GENERATED ALWAYS AS (nvl(a, b))) USING delta",
    "INSERT INTO u VALUES (1, concat('10', ':00'), abs(1)), (2, upper('x'), 3), (3, DEFAULT, NULL)",
    "INSERT INTO u SELECT a, b, i FROM VALUES (1, 'T' || '10', 2) AS q(a, b, i)",
    "INSERT INTO t (a, ts, b) VALUES (1, '2024-01-01 10:00:00', upper('x'))",
    "INSERT INTO t (ts, m, d) VALUES ('2024-01-01 10:00:00', CAST(1.5 AS DECIMAL(10,2)), "
    "date_sub(DATE '2024-01-02', 1))",
    "UPDATE t SET b = ')', ts = CAST(d AS TIMESTAMP) WHERE b = ':(' OR b IN ('a, b', 'x as y')",
    "UPDATE t SET a = (SELECT max(a) FROM u), b = (SELECT max(q.b) FROM u q WHERE q.a = 1)",
    "UPDATE t SET a = coalesce((SELECT max(a) FROM u), (SELECT max(a) FROM p)), b = "
    "if((SELECT count(*) FROM u) > 3, (SELECT max(b) FROM u), 'x')",
    "UPDATE t SET a = ((SELECT max(a) FROM u) - (SELECT min(a) FROM u)) div 2",
    "UPDATE t SET a = ((SELECT max(a) FROM u) UNION (SELECT max(a) FROM u))",
    "WITH q AS (SELECT max(a) m FROM u) UPDATE t SET a = (SELECT m FROM q)",
    "WITH q AS (SELECT a, b FROM u) UPDATE t SET a = 5 WHERE b = 'x'",
    "INSERT INTO t REPLACE WHERE d >= DATE '2026-01-01' AND a > 3 SELECT * FROM t WHERE "
    "a > 3 AND d >= DATE '2026-01-01'",
    "INSERT INTO u SELECT id, 'x', 1 FROM (range(3)) CROSS JOIN (SELECT 1)",
    "MERGE INTO u USING (SELECT a AS k, sum(year(d) + datediff(d, DATE '2020-01-01')) AS "
    "v, sum(floor(m)) AS w, sum(nvl2(b, 1, 0) + decode(b, 'a', 1, 2) + (a & 1)) AS x "
    "FROM t GROUP BY a) s ON u.a = s.k WHEN MATCHED THEN UPDATE SET i = s.v",
    "UPDATE t AS x SET a = (SELECT count(*) FROM u WHERE u.a IN (SELECT a FROM p)) WHERE x.a = 1",
    "MERGE INTO t USING (SELECT id AS k, max(ts) AS ts FROM big GROUP BY id) s ON t.a = "
    "s.k WHEN MATCHED THEN UPDATE SET ts = s.ts",
    "UPDATE t SET ts = ts - INTERVAL 1 DAY, b = CAST(a - 1 AS STRING) WHERE year(d) = 3",
    "CREATE TABLE n (x STRING DEFAULT '10:00', ts TIMESTAMP DEFAULT TIMESTAMP "
    "'2026-01-01 10:00') USING delta",
    "INSERT INTO t (a, ts) VALUES (abs(1), '2024-01-01 12:30:00')",
    "INSERT INTO t (ts) SELECT coalesce(max(d), '2024-01-01') FROM t",
    "INSERT INTO t (ts) SELECT to_timestamp(b, 'HH:mm') FROM u",
    "INSERT INTO t (ts) SELECT from_json(b, 'x TIMESTAMP', map('timestampFormat', "
    "'yyyy')).x FROM u",
    "UPDATE t SET b = '12:30', ts = CAST(d AS TIMESTAMP) + INTERVAL 3 HOURS WHERE ts > d",
    "DELETE FROM t WHERE d < current_date() - INTERVAL 30 DAYS",
    "INSERT INTO u SELECT a, CAST(make_interval(1, 2) * a AS STRING), 1 FROM t",
    "INSERT INTO u FROM t |> WHERE a > 1 |> SELECT a, b, 1",
    "INSERT INTO t (a, m) SELECT a, sum(if(b = 'x', m, 0)) FROM t GROUP BY a",
    "CREATE FUNCTION n(s STRING) RETURNS STRING RETURN nullif(regexp_replace(s, '[^a(]', ''), '')",
    "CREATE TABLE n (b STRING, c STRING GENERATED ALWAYS AS (nvl(replace(b, '(', ' - '), "
    "')'))) USING delta",
    "CREATE FUNCTION n(x DATE) RETURNS TIMESTAMP DETERMINISTIC COMMENT 'x' RETURN x",
    "ALTER TABLE t ADD COLUMN q INT",
    "ALTER TABLE t ADD CONSTRAINT positive CHECK (a > 0)",
    "OPTIMIZE t WHERE a > 3 ZORDER BY (b)",
    "VACUUM t RETAIN 200 HOURS DRY RUN",
    "TRUNCATE TABLE t",
    "DROP TABLE t",
    "DROP VIEW v",
    "ANALYZE TABLE t COMPUTE STATISTICS",
    "COMMENT ON TABLE t IS 'sum(x) uuid()'",
    "CREATE SCHEMA nn",
    "INSERT INTO t (ts) VALUES (nvl(TIMESTAMP '2024-01-01 00:00:00', '10:00'))",
    "INSERT INTO u SELECT a, 'today', 1 FROM t WHERE d > 'today'",
    "INSERT INTO u SELECT a, b, 1 FROM t WHERE d = DATE 'today Japan'",
    "INSERT INTO t (ts) SELECT CAST('12:30:00' AS TIMESTAMP) FROM u",
    "INSERT INTO t (ts) SELECT TIMESTAMP 'T12:30' FROM u",
    "INSERT INTO u SELECT a, 'x', n FROM v",
    "WITH q AS (SELECT a FROM t) FROM q INSERT INTO u SELECT a, current_date = '2024-01-01', 1",
    "CREATE TABLE n AS SELECT a, current_date = d AS y FROM t",
    "MERGE INTO t USING v ON t.a = v.a WHEN MATCHED THEN DELETE",
    "UPDATE t SET d = 'today'",
    "UPDATE t SET d = '\\u0001today'",
    "UPDATE t SET ts = '12:30'",
    "UPDATE t SET ts = ifnull(ts, '12:30')",
    "UPDATE t SET b = 'x' WHERE ts BETWEEN '09:00' AND '10:00'",
    "DELETE FROM t WHERE nullif(ts, '12:30') IS NULL",
    "UPDATE t SET a = decode(ts, '12:30', 1, 2)",
    "UPDATE t SET a = (SELECT max(n) FROM v)",
    "UPDATE t SET b = 'x' WHERE user = 'ann'",
]
ROWS = {
    "INSERT INTO t (c) SELECT x FROM (SELECT c * 1 AS x FROM t) ORDER BY x LIMIT 1": "LIMIT",
    "INSERT INTO t (c) SELECT x FROM (SELECT try_divide(0, i) AS x FROM u) ORDER BY x "
    "LIMIT 1": "LIMIT",
    "INSERT INTO u SELECT id, 'x', 1 FROM IDENTIFIER('range')(3)": "by its name",
    "INSERT INTO u SELECT a, b, 1 FROM (SELECT a, b, -c AS x FROM t) ORDER BY a, b, x "
    "LIMIT 2": "LIMIT",
    "INSERT INTO u SELECT a, _metadata.file_name, 1 FROM t": "_metadata",
    "INSERT INTO u SELECT a, IDENTIFIER('uuid')(), 1 FROM t": "uuid",
    "INSERT INTO u SELECT a, b, try_sum(i) FROM u GROUP BY a, b": "overflow",
    "INSERT INTO u SELECT a, listagg(b, ',') WITHIN GROUP (ORDER BY i) || listagg(b, "
    "';') WITHIN GROUP (ORDER BY b), 1 FROM u GROUP BY a": "listagg",
    "INSERT INTO u SELECT a, array_join(array_sort(collect_list(b), (l, r) -> length(l) "
    "- length(r)), ','), 1 FROM u GROUP BY a": "collect_list",
    "INSERT INTO t (ts) SELECT nvl(q.x, u.b) FROM u, (VALUES (DATE '2024-01-01' + "
    "INTERVAL 1 HOUR)) AS q(x)": "time of day",
    "INSERT INTO t (ts) SELECT nvl(fts(a), b) FROM u": "time of day",
    "INSERT INTO t (ts) SELECT nvl(ts, v) FROM big WHERE TS IS NOT NULL": "time of day",
    "INSERT INTO t (ts) SELECT from_json(b, 'x TIMESTAMP', map('timestampFormat', "
    "'yyyy', 'enableDateTimeParsingFallback', 'true')).x FROM u": "time of day",
    "INSERT INTO u (b) SELECT b FROM u ORDER BY b LIKE 'x%' LIMIT 1": "LIMIT",
    "INSERT INTO t (m) SELECT try_avg(m) FROM t": "overflow",
    "INSERT INTO u SELECT a, IDENTIFIER('sum')(c), 1 FROM t GROUP BY a": "sum",
    "INSERT INTO u SELECT a, b, CAST(sum(c) AS INT) FROM t GROUP BY a, b": "floating point",
    "INSERT INTO u SELECT a, b, count(*) OVER (ORDER BY a ROWS 1+1 PRECEDING) FROM t": "ties",
    "INSERT INTO u SELECT a, b, i FROM (SELECT *, row_number() OVER (PARTITION BY a "
    "ORDER BY b) rn FROM u) WHERE rn = 1": "ties",
    "INSERT INTO u SELECT a, first((i + 1)), 1 FROM u GROUP BY a": "first",
    "INSERT INTO u SELECT a, b, i FROM u ORDER BY a, b LIMIT 2": "LIMIT",
    "INSERT INTO u (a, b) SELECT a, max(b COLLATE UTF8_LCASE) FROM u GROUP BY a": "collation",
    "INSERT INTO u SELECT a, b, 1 FROM t WHERE d = CAST('to' || 'day' AS DATE)": "moment",
    "INSERT INTO t (ts) SELECT CAST(reverse('yadot') AS TIMESTAMP) FROM u": "moment",
    "INSERT INTO t (ts) SELECT CAST(CAST(X'746f646179' AS STRING) AS TIMESTAMP) FROM u": "moment",
    "INSERT INTO t (ts) SELECT CAST(b AS TIMESTAMP) FROM u": "time of day",
    "INSERT INTO t (ts) SELECT to_timestamp(b) FROM u": "time of day",
    "INSERT INTO t (ts) SELECT CAST(array('12:30') AS ARRAY<TIMESTAMP>)[0]": "time of day",
    "INSERT INTO t (ts) SELECT from_json(b, 'x TIMESTAMP').x FROM u": "time of day",
    "INSERT INTO u SELECT a, frr(i), 1 FROM u": "uuid",
    "CREATE TABLE n USING delta AS SELECT * FROM t VERSION AS OF 0": "VERSION AS OF",
    "MERGE INTO t USING (SELECT a, sum(decode(a, 1, a, 2, m)) AS v FROM t GROUP BY a) s "
    "ON t.a = s.a WHEN MATCHED THEN UPDATE SET c = s.v": "floating point",
    "MERGE INTO t USING (SELECT a, sum(c) s FROM t GROUP BY a) x ON t.a = x.a WHEN "
    "MATCHED THEN UPDATE SET c = x.s": "floating point",
    "MERGE INTO t USING (SELECT a, IDENTIFIER('frr')(i) b FROM u) x ON t.a = x.a WHEN "
    "MATCHED THEN UPDATE SET b = x.b": "uuid",
    "INSERT INTO u SELECT id, 'x', 1 FROM (range(datediff(CAST(concat('10', ':00') AS "
    "TIMESTAMP), DATE '2026-01-01')))": "moment",
    "INSERT INTO u VALUES (1, IDENTIFIER('current_user')(), 1)": "current_user",
    "INSERT INTO u SELECT id, 'x', 1 FROM range(datediff(CAST(concat('10',':00') AS "
    "TIMESTAMP), DATE '2026-01-01'))": "moment",
    "INSERT INTO t (ts) VALUES (CAST(concat('10', ':00') AS TIMESTAMP))": "moment",
    "INSERT INTO t (a, ts) VALUES struct(2, CAST(concat('10', ':00') AS TIMESTAMP))": "time of day",
    "MERGE INTO t USING (SELECT * FROM VALUES (1, CAST(concat('1', ':0') AS TIMESTAMP)) "
    "q(a, ts)) s ON t.a = s.a WHEN MATCHED THEN UPDATE SET ts = s.ts": "moment",
}
REFUSED = {
    "UPDATE t SET a = (SELECT count(*) FROM (range(datediff(CAST(concat('10', ':00') AS "
    "TIMESTAMP), DATE '2026-01-01'))))": "moment",
    "INSERT INTO t REPLACE WHERE d >= CAST('to' || 'day' AS DATE) SELECT * FROM t": "moment",
    "INSERT INTO t REPLACE WHERE ts >= CAST(concat('10', ':00') AS TIMESTAMP) SELECT * "
    "FROM t": "moment",
    "WITH u AS (SELECT c AS a FROM t) UPDATE t SET c = (SELECT sum(a) FROM u) WHERE b = "
    "'k'": "floating point",
    "WITH u AS (SELECT b a FROM t) UPDATE t SET ts = (SELECT CAST(max(a) AS TIMESTAMP) "
    "FROM u)": "time of day",
    "WITH t AS (SELECT 1 AS a) UPDATE t SET a = (SELECT max(a) FROM u)": "analyzed as no table",
    "UPDATE t SET a = ((SELECT a FROM u) UNION ALL (SELECT a FROM u) LIMIT 1)": "LIMIT",
    "UPDATE t SET a = ((SELECT a FROM u) |> LIMIT 1)": "LIMIT",
    "UPDATE t SET a = ((SELECT a FROM u) DISTRIBUTE BY a LIMIT 1)": "LIMIT",
    "UPDATE t SET c = ((SELECT c FROM t) |> AGGREGATE sum(c) AS s)": "floating point",
    "FROM t INSERT INTO u SELECT a, b, 1 INSERT INTO p SELECT a, b, 2": "several INSERTs",
    "UPDATE t SET ts = nvl(ts, b)": "time of day",
    "UPDATE t SET b = 'x' WHERE TIMESTAMP '2026-01-01 12:00:00' BETWEEN b AND b": "time of day",
    "DELETE FROM t WHERE equal_null(ts, b)": "time of day",
    "UPDATE t SET ts = nvl2(a, b, ts)": "time of day",
    "UPDATE t SET b = b - INTERVAL 1 DAY": "time of day",
    "UPDATE t SET a = 1 WHERE extract(HOUR FROM b) = 3": "time of day",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (ts BETWEEN '00:00' AND '23:59')": "time of day",
    "ALTER TABLE t ALTER COLUMN ts SET DEFAULT '10:00'": "moment",
    "CREATE TABLE n (x INT, ts TIMESTAMP DEFAULT '10:00') USING delta": "moment",
    "UPDATE t SET ts = b": "time of day",
    "INSERT INTO t (ts) VALUES ('12:30')": "time of day",
    "INSERT INTO t (a, ts) VALUES (1, concat('10', ':00'))": "time of day",
    "INSERT INTO t (ts) VALUES ('T' || '10')": "time of day",
    "INSERT INTO t (ts) VALUES concat('10', ':00')": "time of day",
    "INSERT INTO t (ts) VALUES ('10') || ':00'": "time of day",
    "UPDATE t SET ts = CAST(trim(')' FROM b) AS TIMESTAMP)": "time of day",
    "UPDATE t SET ts = nvl(trim('))' FROM b), ts)": "time of day",
    "CREATE TABLE n (b STRING, x TIMESTAMP GENERATED ALWAYS AS (CAST(replace(b, ')', '') "
    "AS TIMESTAMP))) USING delta": "time of day",
    "UPDATE t SET c = (SELECT sum(c) FROM t)": "floating point",
    "UPDATE t SET b = (SELECT first(b) FROM u)": "first",
    "UPDATE t SET b = (SELECT b FROM u LIMIT 1)": "LIMIT",
    "UPDATE t SET ts = (SELECT max(CAST(b AS TIMESTAMP)) FROM u)": "time of day",
    "UPDATE big SET ts = nvl(ts, v)": "time of day",
    "MERGE INTO t USING (SELECT * FROM VALUES (1, concat('10', ':00')) AS q(a, b)) s ON "
    "t.a = s.a WHEN MATCHED THEN UPDATE SET ts = s.b": "time of day",
    "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET ts = nvl(t.ts, u.b)": (
        "time of day"
    ),
    "CREATE FUNCTION n(x INT) RETURNS TIMESTAMP RETURN (SELECT max(q) FROM VALUES "
    "(CAST(concat('10', ':00') AS TIMESTAMP)) AS v(q))": "moment",
    "INSERT INTO t (ts) SELECT b FROM u": "time of day",
    "MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET ts = u.b": "time of day",
    "CREATE TABLE n (b STRING, x TIMESTAMP GENERATED ALWAYS AS (CAST(b AS TIMESTAMP))) "
    "USING delta": "time of day",
    "DELETE FROM t WHERE b RLIKE IDENTIFIER('current_user')()": "current_user",
    "CREATE TABLE n (a STRING DEFAULT IDENTIFIER('current_user')()) USING delta": "current_user",
    "CREATE FUNCTION n(x INT) RETURNS STRING RETURN IDENTIFIER('uuid')()": "identifier()",
    "CREATE FUNCTION n(x INT) RETURNS STRING RETURN frr(x)": "uuid",
    "CREATE FUNCTION n(x INT) RETURNS DATE RETURN 'today'": "moment",
    "CREATE FUNCTION n(x STRING) RETURNS TIMESTAMP RETURN x": "time of day",
    "CREATE FUNCTION n(x STRING) RETURNS TABLE (p INT, q TIMESTAMP) RETURN SELECT 1, x": (
        "time of day"
    ),
    "CREATE FUNCTION n(x STRING) RETURNS DOUBLE RETURN (SELECT sum(c) FROM t WHERE b = x)": (
        "floating point"
    ),
    "CREATE VIEW n AS SELECT IDENTIFIER('reflect')('java.lang.System', 'nanoTime')": "reflect",
    "INSERT INTO u SELECT 1, IDENTIFIER('reflect')('java.lang.System', 'nanoTime'), 1": "reflect",
}
