"""Recognises the statements that define things: tables, views, namespaces, functions, rights."""

from __future__ import annotations

from haproc.classify.model import Kind
from haproc.classify.names import FILE_SOURCES, refuse_global, target
from haproc.classify.reader import Reader, Recognised, name_at, unknown

_NAMESPACE = ("SCHEMA", "DATABASE", "NAMESPACE")
_QUERY_BEGINS = ("SELECT", "FROM", "VALUES", "TABLE", "MAP", "REDUCE", "WITH")


def recognise_create(reader: Reader) -> Recognised:
    """``CREATE [OR REPLACE] …`` and ``REPLACE TABLE``."""
    if not reader.take("CREATE", "OR", "REPLACE"):
        reader.at += 1
    everywhere = reader.take("GLOBAL")
    temporary = bool(reader.take_one("TEMPORARY", "TEMP"))
    reader.take("EXTERNAL")
    what = reader.word()
    reader.at += 1
    reader.take("IF", "NOT", "EXISTS")
    if everywhere:
        refuse_global(("global_temp", *reader.parts()[-1:]))
    if what == "TABLE":
        if temporary:
            return _temporary_view(reader)
        return _create_table(reader)
    if what == "VIEW":
        return _temporary_view(reader) if temporary else _create_view(reader)
    if what == "FUNCTION":
        if temporary:
            reader.own_name()
        return _create_function(reader, temporary)
    if what in _NAMESPACE and not temporary:
        return reader.recognised(Kind.CREATE_NAMESPACE, known=False)
    return unknown(f"CREATE {what} is not recognised")


def _create_function(reader: Reader, temporary: bool) -> Recognised:
    """A function in SQL; one in another language is code that runs inside Spark."""
    words = [reader.tokens[index].upper for index in reader.depth_zero()]
    language = words.index("LANGUAGE") + 1 if "LANGUAGE" in words[:-1] else None
    if "RETURN" not in words or (language and words[language] != "SQL"):
        return unknown("the function runs code that HAProc cannot look into")
    kind = Kind.TEMPORARY_VIEW if temporary else Kind.CREATE_FUNCTION
    return reader.recognised(kind, known=temporary)


def _create_table(reader: Reader) -> Recognised:
    if not reader.is_name():
        return unknown("CREATE TABLE names no table")
    reader.write_table(new=True)
    if reader.take("LIKE"):
        return reader.recognised(Kind.CREATE_TABLE)
    if reader.take("CLONE") or reader.take("SHALLOW", "CLONE") or reader.take("DEEP", "CLONE"):
        return reader.recognised(Kind.CREATE_TABLE_AS)
    query = _query_start(reader)
    source = _source(reader, query)
    if source:
        return unknown(f"HAProc doesn't know what a table of {source} reads or writes")
    return reader.recognised(Kind.CREATE_TABLE if query is None else Kind.CREATE_TABLE_AS)


def _query_start(reader: Reader) -> int | None:
    """Return where the query of a CREATE … [AS] query begins."""
    tokens = reader.tokens
    for index in reader.depth_zero():
        word = tokens[index].upper
        following = tokens[index + 1] if index + 1 < reader.end else None
        if following is None or (index and tokens[index - 1].is_symbol(".")):
            continue
        if word == "AS" and (following.upper in _QUERY_BEGINS or following.is_symbol("(")):
            return index + 1
        if word == "SELECT" or (word in ("VALUES", "FROM", "MAP", "REDUCE") and index > reader.at):
            return index
        if word == "WITH" and following.upper not in (
            "SERDEPROPERTIES",
            "DBPROPERTIES",
            "PROPERTIES",
            "METRICS",
            "SCHEMA",
        ):
            return index
    return None


def _source(reader: Reader, query: int | None) -> str:
    """Return the data source behind USING if it is none that keeps its data in files."""
    for index in reader.depth_zero():
        if query is not None and index >= query:
            break
        if reader.tokens[index].upper == "USING":
            parts, _ = name_at(reader.tokens, index + 1)
            name = ".".join(parts)
            return "" if name.lower() in FILE_SOURCES else name or "a computed name"
    return ""


def _create_view(reader: Reader) -> Recognised:
    if not reader.is_name():
        return unknown("CREATE VIEW names no view")
    reader.write_table(new=True)
    return _view_body(reader, Kind.CREATE_VIEW)


def _temporary_view(reader: Reader) -> Recognised:
    reader.own_name()
    return _view_body(reader, Kind.TEMPORARY_VIEW)


def _view_body(reader: Reader, kind: Kind) -> Recognised:
    source = _source(reader, _query_start(reader))
    if source:
        return unknown(f"HAProc doesn't know what a view of {source} reads")
    return reader.recognised(kind)


def recognise_alter(reader: Reader) -> Recognised:
    """``ALTER TABLE|VIEW|SCHEMA …``."""
    reader.take("ALTER")
    what = reader.word()
    reader.at += 1
    if what in _NAMESPACE:
        return reader.recognised(Kind.ALTER_NAMESPACE, known=False)
    if what not in ("TABLE", "VIEW"):
        return unknown(f"ALTER {what} is not recognised")
    kind = Kind.ALTER_TABLE if what == "TABLE" else Kind.ALTER_VIEW
    if not reader.is_name():
        return unknown(f"ALTER {what} names nothing")
    start = reader.at
    reader.write_table()
    if reader.take("RENAME", "TO"):
        renamed = reader.parts()
        reader.at, behind = start, reader.at
        source = reader.parts()
        reader.at = behind
        # An unqualified new name stays in the old one's schema, wherever the session is.
        name = (*source[:-1], *renamed) if len(renamed) == 1 else renamed
        reader.writes.add(target(name, reader.context))
    return reader.recognised(kind)


def recognise_drop(reader: Reader) -> Recognised:
    """``DROP …``."""
    reader.take("DROP")
    temporary = bool(reader.take_one("TEMPORARY", "TEMP"))
    what = reader.word()
    reader.at += 1
    reader.take("IF", "EXISTS")
    if temporary and what in ("VIEW", "FUNCTION", "VARIABLE", "VAR", "TABLE"):
        reader.own_name()
        return reader.recognised(Kind.TEMPORARY_VIEW)
    if what in ("TABLE", "VIEW") and reader.is_name():
        reader.write_table()
        return reader.recognised(Kind.DROP_TABLE if what == "TABLE" else Kind.DROP_VIEW)
    if what == "FUNCTION":
        return reader.recognised(Kind.DROP_FUNCTION, known=False)
    if what in _NAMESPACE:
        return reader.recognised(Kind.DROP_NAMESPACE, known=False)
    return unknown(f"DROP {what} is not recognised")


def recognise_comment(reader: Reader) -> Recognised:
    """``COMMENT ON TABLE|SCHEMA … IS …``."""
    if not reader.take("COMMENT", "ON"):
        return unknown("COMMENT is not followed by ON")
    what = reader.word()
    reader.at += 1
    if what in ("TABLE", "VIEW"):
        reader.write_table()
        return reader.recognised(Kind.COMMENT)
    if what in (*_NAMESPACE, "COLUMN"):
        return reader.recognised(Kind.COMMENT, known=False)
    return unknown(f"COMMENT ON {what} is not recognised")


def recognise_grant(reader: Reader) -> Recognised:
    """``GRANT``, ``REVOKE``, ``DENY``: what they cover is told by the catalog, not the text."""
    return reader.recognised(Kind.GRANT, known=False)


def recognise_restore(reader: Reader) -> Recognised:
    """``RESTORE [TABLE] t TO VERSION|TIMESTAMP AS OF …``."""
    reader.take("RESTORE")
    if reader.word() == "TABLE" and (reader.is_name(1)):
        reader.take("TABLE")
    if not reader.is_name():
        return unknown("RESTORE names no table")
    reader.write_table()
    return reader.recognised(Kind.RESTORE)


def recognise_administration(reader: Reader) -> Recognised:
    """``MSCK REPAIR TABLE``, ``REFRESH``, ``CONVERT TO DELTA``, ``GENERATE … FOR TABLE``."""
    for words in (
        ("MSCK", "REPAIR", "TABLE"),
        ("REPAIR", "TABLE"),
        ("REFRESH", "TABLE"),
        ("CONVERT", "TO", "DELTA"),
    ):
        if reader.take(*words):
            if not reader.is_name():
                return unknown(f"{' '.join(words)} names no table")
            reader.write_table()
            return reader.recognised(Kind.OTHER_DDL)
    verb = reader.word()
    reader.at += 1
    if verb == "REFRESH" and (reader.is_string() or reader.take("FUNCTION")):
        return reader.recognised(Kind.OTHER_DDL, known=False)
    if verb == "GENERATE" and reader.is_name():
        reader.at += 1
        if reader.take("FOR", "TABLE") and reader.is_name():
            reader.write_table()
            return reader.recognised(Kind.OTHER_DDL)
    return unknown(f"this form of {verb} is not recognised")
