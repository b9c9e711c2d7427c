"""Statements with their treatment: as text, as rows, or a refusal with its reason."""

from __future__ import annotations

from tests.readings import corpus

AS_TEXT = corpus.section("witness", "Applied as their text:")
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
