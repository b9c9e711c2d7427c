"""Recognises a statement from its leading tokens: a whitelist, everything else is unknown.

The first word chooses a recogniser; each reads on only as far as it needs to tell the kind, and the
table that is written: what a statement reads, Spark tells. Statements that only look at things are
recognised here, the others in `dml`, `ddl` and `settings`.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from haproc.classify import ddl, dml, settings
from haproc.classify.model import Kind, RefusedError
from haproc.classify.reader import Reader, Recognised, unknown
from haproc.failure import ErrorClass


def recognise(reader: Reader) -> Recognised:
    """Return what the statement is; never raises for SQL that is merely wrong."""
    first = reader.word()
    if reader.is_symbol("("):
        recogniser: Callable[[Reader], Recognised] | None = dml.recognise_query
    else:
        recogniser = RECOGNISERS.get(first)
    return _misspelt(reader.tokens[0].text) if recogniser is None else recogniser(reader)


def _misspelt(text: str) -> Recognised:
    """A statement that begins with no word that begins one."""
    message = f"{text[:40]} begins no statement that HAProc knows"
    near = get_close_matches(text[:40].upper(), RECOGNISERS, n=1, cutoff=0.75)
    return unknown(message, f"did you mean {near[0]}?") if near else unknown(message)


def _tells(kind: Kind) -> Callable[[Reader], Recognised]:
    """``SHOW …``, ``DESCRIBE …``: what they tell of, Spark finds out."""
    return lambda reader: reader.recognised(kind)


def _explain(reader: Reader) -> Recognised:
    """``EXPLAIN <statement>``: has no effect, whatever the statement."""
    while reader.take("EXPLAIN"):
        if reader.word(1) or reader.is_symbol("(", 1):
            reader.take_one("LOGICAL", "FORMATTED", "EXTENDED", "CODEGEN", "COST")
    if reader.at >= reader.end:
        return unknown("EXPLAIN explains nothing")
    if reader.word() in ("EXECUTE", "BEGIN"):
        # Spark runs the statement inside EXECUTE IMMEDIATE while it analyses it.
        return _execute(reader)
    return reader.recognised(Kind.EXPLAIN)


def _list(reader: Reader) -> Recognised:
    """``LIST JAR|FILE|ARCHIVE``."""
    if reader.word(1) in ("JAR", "JARS", "FILE", "FILES", "ARCHIVE", "ARCHIVES"):
        return reader.recognised(Kind.SHOW)
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
    "SHOW": _tells(Kind.SHOW),
    **dict.fromkeys(("DESCRIBE", "DESC"), _tells(Kind.DESCRIBE)),
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
