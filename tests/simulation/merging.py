"""MERGE for SQLite, which has none: for the statements of `haproc.replicate.compose` and clients.

It is parsed only by its own words here, so that the product's parser of upserts is not compared
with itself.
"""

from __future__ import annotations

import re
import sqlite3

_COMPOSED = re.compile(r"(?:MERGE|INSERT) INTO `")
_MERGE = re.compile(
    r"MERGE INTO (?P<table>\w+) AS (?P<t>\w+) USING \((?P<source>.*)\) AS (?P<s>\w+) ON (?P<on>.*)",
)
_CLAUSES = re.compile(r"\s+(?=WHEN (?:NOT )?MATCHED)")
_CLAUSE = re.compile(
    r"WHEN (?P<un>NOT )?MATCHED(?: BY TARGET)?(?: AND (?P<condition>\S+(?: = \d+)?))? THEN"
    r" (?P<what>.*)"
)
_INSERT = re.compile(r"INSERT (?P<names>\(.*\)) VALUES \((?P<values>.*)\)")
_INLINE = re.compile(r"(?:SELECT \* FROM )?VALUES (?P<rows>.*) AS \w+(?P<names>\(.*\))")


def sqlite_text(sql: str) -> str:
    """Return a composed statement with SQLite's names and types; others unchanged."""
    if not _COMPOSED.match(sql):
        return sql
    return sql.replace("`", "").replace(" AS STRING)", " AS TEXT)")


def executed(disk: sqlite3.Connection, sql: str) -> int:
    """Run a statement; return the number of rows that it changed."""
    return merged(disk, sql) if sql.startswith("MERGE") else disk.execute(sql).rowcount


def merged(disk: sqlite3.Connection, sql: str) -> int:
    """Run a MERGE as one transaction; return the number of rows that it changed."""
    head, *clauses = _CLAUSES.split(sql)
    merge = _MERGE.fullmatch(head)
    assert merge is not None, sql
    inline = _INLINE.fullmatch(merge["source"])
    source = merge["source"]
    if inline is not None:
        source = f"WITH given {inline['names']} AS (VALUES {inline['rows']}) SELECT * FROM given"
    rows = 0
    disk.execute("BEGIN")
    try:
        disk.execute(
            f"CREATE TEMP TABLE source AS SELECT row_number() OVER () AS row_at, * FROM ({source})"
        )
        disk.execute(
            f"CREATE TEMP TABLE pairs AS SELECT {merge['t']}.rowid AS t, {merge['s']}.row_at AS s"
            f" FROM {merge['table']} AS {merge['t']} JOIN temp.source AS {merge['s']}"
            f" ON {merge['on']}"
        )
        twice = "SELECT 1 FROM temp.pairs GROUP BY t HAVING count(*) > 1"
        if any(" UPDATE " in each for each in clauses) and disk.execute(twice).fetchone():
            raise sqlite3.IntegrityError("a row is matched twice")
        for clause in clauses:
            rows += _run(disk, merge, clause)
    except sqlite3.Error:
        disk.execute("ROLLBACK")
        raise
    disk.execute("DROP TABLE temp.source")
    disk.execute("DROP TABLE temp.pairs")
    disk.execute("COMMIT")
    return rows


def _run(disk: sqlite3.Connection, merge: re.Match[str], text: str) -> int:
    """Run one clause; no other clause touches its rows."""
    clause = _CLAUSE.fullmatch(text)
    assert clause is not None, text
    table, t, s, what = merge["table"], merge["t"], merge["s"], clause["what"]
    condition = clause["condition"] or "TRUE"
    columns = [row[1] for row in disk.execute(f"PRAGMA table_info({table})")]
    if clause["un"]:
        values = ", ".join(f"{s}.{name}" for name in columns)
        if what == "INSERT *":
            what = f"INSERT ({', '.join(columns)}) VALUES ({values})"
        insert = _INSERT.fullmatch(what)
        assert insert is not None, text
        return disk.execute(
            f"INSERT INTO {table} {insert['names']} SELECT {insert['values']} FROM temp.source AS"
            f" {s} WHERE row_at NOT IN (SELECT s FROM temp.pairs) AND {condition}"
        ).rowcount
    if what == "DELETE":
        found = f"SELECT t FROM temp.pairs AS p JOIN temp.source AS {s} ON {s}.row_at = p.s"
        return disk.execute(
            f"DELETE FROM {table} WHERE rowid IN ({found} WHERE {condition})"
        ).rowcount
    sets = what.removeprefix("UPDATE SET ")
    if sets == "*":
        sets = ", ".join(f"{name} = {s}.{name}" for name in columns)
    sets = re.sub(rf"(^|, ){t}\.(\w+) =", r"\1\2 =", sets)
    return disk.execute(
        f"UPDATE {table} AS {t} SET {sets} FROM temp.source AS {s}, temp.pairs AS p"
        f" WHERE p.t = {t}.rowid AND p.s = {s}.row_at AND {condition}"
    ).rowcount
