"""Recognises a statement from its leading tokens: a whitelist, everything else is unknown.

The first word chooses a recogniser; each reads on only as far as it needs to tell the kind and the
tables. Statements that only look at things are recognised here, the others in `dml`, `ddl` and
`settings`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from haproc.classify import ddl, dml, settings
from haproc.classify.model import Kind, RefusedError
from haproc.classify.paths import paths_in
from haproc.classify.reader import Reader, Recognised, unknown
from haproc.failure import ErrorClass

_NO_TABLE_DESCRIBED = frozenset(
    ["CATALOG", "CONNECTION", "DATABASE", "FUNCTION", "NAMESPACE", "PROCEDURE", "SCHEMA", "VOLUME"]
)


def recognise(reader: Reader) -> Recognised:
    """Return what the statement is; never raises for SQL that is merely wrong."""
    first = reader.word()
    if reader.is_symbol("("):
        recogniser: Callable[[Reader], Recognised] | None = dml.recognise_query
    else:
        recogniser = RECOGNISERS.get(first)
    if recogniser is None:
        return _misspelt(reader.tokens[0].text)
    found = recogniser(reader)
    if found.kind in (Kind.SET, Kind.RESET):  # what they hold is text, not SQL
        return found
    hidden = dml.hidden_effect(reader.tokens, reader.closing)
    paths = found.paths | frozenset(paths_in(reader.tokens, reader.closing))
    return replace(unknown(hidden) if hidden else found, paths=paths)


def _misspelt(text: str) -> Recognised:
    """A statement that begins with no word that begins one."""
    message = f"{text[:40]} begins no statement that HAProc knows"
    near = get_close_matches(text[:40].upper(), RECOGNISERS, n=1, cutoff=0.75)
    return unknown(message, f"did you mean {near[0]}?") if near else unknown(message)


def _show(reader: Reader) -> Recognised:
    """``SHOW …``: about one table, or about what there is (then any DDL may change its answer)."""
    reader.take("SHOW")
    about_table = (
        reader.take("CREATE", "TABLE")
        or reader.take("TBLPROPERTIES")
        or reader.take("PARTITIONS")
        or reader.take("COLUMNS", "FROM")
        or reader.take("COLUMNS", "IN")
    )
    if not about_table:
        return reader.recognised(Kind.SHOW, known=False)
    start = reader.at
    parts = reader.parts()
    if reader.take_one("FROM", "IN"):  # SHOW COLUMNS IN table IN schema
        return reader.recognised(Kind.SHOW, known=False)
    reader.at = start
    reader.read_table()
    return reader.recognised(Kind.SHOW, known=bool(parts))


def _describe(reader: Reader) -> Recognised:
    """``DESCRIBE …``: a table, its history, a query, or something else."""
    reader.at += 1
    follows = reader.end - reader.at > 1 and not reader.is_symbol(".", 1)
    if reader.word() in _NO_TABLE_DESCRIBED and follows:
        return reader.recognised(Kind.DESCRIBE, known=False)
    if reader.word() == "QUERY" and follows:
        reader.at += 1
        return _described_query(reader)
    if reader.word() in ("SELECT", "WITH", "VALUES", "FROM") and follows:
        return _described_query(reader)
    if reader.is_symbol("("):
        return _described_query(reader)
    for option in ("TABLE", "HISTORY", "DETAIL", "EXTENDED", "FORMATTED"):
        if reader.word() == option and reader.end - reader.at > 1 and not reader.is_symbol(".", 1):
            reader.at += 1
    if reader.is_string():
        reader.read_files()
        return reader.recognised(Kind.DESCRIBE)
    reader.read_table()
    return reader.recognised(Kind.DESCRIBE)


def _described_query(reader: Reader) -> Recognised:
    reader.query()
    return reader.recognised(Kind.DESCRIBE)


def _explain(reader: Reader) -> Recognised:
    """``EXPLAIN <statement>``: has no effect, whatever the statement; it depends on its tables."""
    while reader.take("EXPLAIN"):
        if reader.word(1) or reader.is_symbol("(", 1):
            reader.take_one("LOGICAL", "FORMATTED", "EXTENDED", "CODEGEN", "COST")
    if reader.at >= reader.end:
        return unknown("EXPLAIN explains nothing")
    if reader.word() in ("EXECUTE", "BEGIN"):
        # Spark runs the statement inside EXECUTE IMMEDIATE while it analyses it.
        return _execute(reader)
    rest = Reader(reader.sql, reader.tokens[reader.at :], reader.context)
    explained = recognise(rest)
    return Recognised(
        Kind.EXPLAIN,
        reads=explained.reads | explained.writes,
        tables_known=explained.tables_known,
        paths=explained.paths,
    )


def _list(reader: Reader) -> Recognised:
    """``LIST JAR|FILE|ARCHIVE``."""
    if reader.word(1) in ("JAR", "JARS", "FILE", "FILES", "ARCHIVE", "ARCHIVES"):
        return reader.recognised(Kind.SHOW, known=False)
    return unknown("this form of LIST is not recognised")


def _execute(reader: Reader) -> Recognised:
    raise RefusedError(
        ErrorClass.HIDDEN_STATEMENT,
        f"{reader.word()} hides the statements that it runs",
        "send each statement by itself",
    )


def _add(reader: Reader) -> Recognised:
    return unknown(
        "ADD gives files to one cluster only", "install libraries on every cluster the same way"
    )


def _call(reader: Reader) -> Recognised:
    return unknown("what a procedure does can't be told from a CALL")


def _load(reader: Reader) -> Recognised:
    return unknown(
        "LOAD DATA moves files of one cluster away from the others",
        "read them with INSERT INTO … SELECT, or send the rows",
    )


RECOGNISERS: dict[str, Callable[[Reader], Recognised]] = {
    **dict.fromkeys(
        ("SELECT", "VALUES", "WITH", "FROM", "TABLE", "MAP", "REDUCE"), dml.recognise_query
    ),
    "SHOW": _show,
    "DESCRIBE": _describe,
    "DESC": _describe,
    "EXPLAIN": _explain,
    "LIST": _list,
    "INSERT": dml.recognise_insert,
    "UPDATE": dml.recognise_update,
    "DELETE": dml.recognise_delete,
    "MERGE": dml.recognise_merge,
    "TRUNCATE": dml.recognise_truncate,
    "COPY": dml.recognise_copy,
    **dict.fromkeys(("OPTIMIZE", "REORG", "VACUUM", "ANALYZE"), dml.recognise_maintenance),
    "CREATE": ddl.recognise_create,
    "REPLACE": ddl.recognise_create,
    "ALTER": ddl.recognise_alter,
    "DROP": ddl.recognise_drop,
    "COMMENT": ddl.recognise_comment,
    **dict.fromkeys(("GRANT", "REVOKE", "DENY"), ddl.recognise_grant),
    "RESTORE": ddl.recognise_restore,
    **dict.fromkeys(
        ("MSCK", "REPAIR", "REFRESH", "CONVERT", "GENERATE"), ddl.recognise_administration
    ),
    "SET": settings.recognise_set,
    "RESET": settings.recognise_reset,
    "USE": settings.recognise_use,
    "DECLARE": settings.recognise_declare,
    **dict.fromkeys(("CACHE", "UNCACHE", "CLEAR"), settings.recognise_cache),
    "ADD": _add,
    "CALL": _call,
    "LOAD": _load,
    "EXECUTE": _execute,
    "BEGIN": _execute,
}
