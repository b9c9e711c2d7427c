"""Recognises queries and the statements that change rows."""

from __future__ import annotations

from haproc.classify.model import Kind
from haproc.classify.names import target
from haproc.classify.reader import Reader, Recognised, unknown
from haproc.classify.strings import decoded

_QUERY_BEGINS = ("SELECT", "FROM", "VALUES", "TABLE", "MAP", "REDUCE")
# What follows INSERT where it is the verb, whatever stands in front of it.
_AFTER_INSERT = frozenset({"INTO", "OVERWRITE", "REPLACE", "TABLE", "WITH"})


def recognise_query(reader: Reader) -> Recognised:
    """A statement that begins like a query: it may still turn out to insert."""
    first, opening = reader.word(), 0
    while reader.is_symbol("(", opening):
        opening += 1
    if opening:
        if reader.word(opening) not in (*_QUERY_BEGINS, "WITH"):
            return unknown("parentheses open a statement that is not a query")
        return reader.recognised(Kind.SELECT)
    reader.common_tables()
    verb = reader.word()
    if verb in _VERBS:
        return _VERBS[verb](reader)
    if verb == "FROM" and (insert := _insert_in(reader)) is not None:
        reader.at = insert
        return recognise_insert(reader)
    if verb not in _QUERY_BEGINS and not reader.is_symbol("("):
        return unknown(f"{first} is not followed by a query")
    # If Spark takes it for more than a query, it does nothing.
    return reader.recognised(Kind.VALUES if verb == "VALUES" else Kind.SELECT)


def _insert_in(reader: Reader) -> int | None:
    """Return where, outside parentheses, the first INSERT begins; None if nowhere."""
    tokens = reader.tokens
    for index in reader.depth_zero()[:-1]:
        follows_dot = index > 0 and tokens[index - 1].is_symbol(".")
        is_verb = tokens[index].upper == "INSERT" and tokens[index + 1].upper in _AFTER_INSERT
        if is_verb and not follows_dot:
            return index
    return None


def recognise_insert(reader: Reader) -> Recognised:
    """``INSERT INTO|OVERWRITE …``, with the position at INSERT."""
    kind = _insert_target(reader)
    if kind is None:
        return unknown("this INSERT writes files, or names no table")
    return reader.recognised(kind)


def _insert_target(reader: Reader) -> Kind | None:
    """Step over an INSERT up to its query; None if its target is not a table."""
    reader.take("INSERT")
    reader.take("WITH", "SCHEMA", "EVOLUTION")
    verb = reader.take_one("INTO", "OVERWRITE")
    if verb == "OVERWRITE" and (reader.take("LOCAL", "DIRECTORY") or reader.take("DIRECTORY")):
        return None
    if reader.word() == "TABLE" and (reader.is_name(1)):
        reader.take("TABLE")
    if not verb or not reader.is_name():
        return None
    reader.write_table()
    kind = Kind.INSERT if verb == "INTO" else Kind.INSERT_OVERWRITE
    while True:
        if reader.take("REPLACE"):
            kind = Kind.INSERT_OVERWRITE
            break
        if reader.word() in ("PARTITION", "WITH") and reader.is_symbol("(", 1):
            reader.at += 1
            reader.skip_parentheses()
        elif not (
            reader.take("IF", "NOT", "EXISTS")
            or reader.take("BY", "NAME")
            or reader.take("WITH", "SCHEMA", "EVOLUTION")
            or (_is_column_list(reader) and reader.skip_parentheses())
        ):
            break
    return kind


def _is_column_list(reader: Reader) -> bool:
    """Whether the parentheses here name columns instead of holding the query."""
    return (
        reader.is_symbol("(")
        and (reader.word(1) not in (*_QUERY_BEGINS, "WITH") or reader.is_symbol(",", 2))
        and not reader.is_symbol("(", 1)
    )


def recognise_update(reader: Reader) -> Recognised:
    """``UPDATE t SET … [WHERE …]``."""
    reader.take("UPDATE")
    if not reader.is_name():
        return unknown("UPDATE names no table")
    reader.write_table()
    return reader.recognised(Kind.UPDATE)


def recognise_delete(reader: Reader) -> Recognised:
    """``DELETE FROM t [WHERE …]``."""
    if not reader.take("DELETE", "FROM") or not reader.is_name():
        return unknown("DELETE is not followed by FROM and a table")
    reader.write_table()
    return reader.recognised(Kind.DELETE)


def recognise_merge(reader: Reader) -> Recognised:
    """``MERGE [WITH SCHEMA EVOLUTION] INTO t USING s ON … WHEN …``."""
    reader.take("MERGE")
    reader.take("WITH", "SCHEMA", "EVOLUTION")
    if not reader.take("INTO") or not reader.is_name():
        return unknown("MERGE is not followed by INTO and a table")
    reader.write_table()
    return reader.recognised(Kind.MERGE)


def recognise_truncate(reader: Reader) -> Recognised:
    """``TRUNCATE TABLE t [PARTITION (…)]``."""
    if not reader.take("TRUNCATE", "TABLE") or not reader.is_name():
        return unknown("TRUNCATE is not followed by TABLE and a table")
    reader.write_table()
    return reader.recognised(Kind.TRUNCATE)


def recognise_copy(reader: Reader) -> Recognised:
    """``COPY INTO t FROM …``."""
    if not reader.take("COPY", "INTO") or not reader.is_name():
        return unknown("COPY is not followed by INTO and a table")
    reader.write_table()
    return reader.recognised(Kind.COPY)


def recognise_maintenance(reader: Reader) -> Recognised:
    """``OPTIMIZE``, ``REORG``, ``VACUUM``, ``ANALYZE``: a table's rows stay as they are."""
    verb = reader.word()
    reader.at += 1
    kind = {"VACUUM": Kind.VACUUM, "ANALYZE": Kind.ANALYZE}.get(verb, Kind.OPTIMIZE)
    if verb == "ANALYZE" and reader.take("TABLES"):
        return reader.recognised(kind, known=False)
    if reader.word() == "TABLE" and (reader.is_name(1)):
        reader.take("TABLE")
    elif verb in ("ANALYZE", "REORG"):
        return unknown(f"{verb} is not followed by TABLE and a table")
    if reader.is_string():  # VACUUM '/path'
        target((decoded(reader.tokens[reader.at].text), "/"), reader.context)
    if not reader.is_name():
        return unknown(f"{verb} names no table")
    reader.write_table()
    return reader.recognised(kind)


_VERBS = {
    "INSERT": recognise_insert,
    "UPDATE": recognise_update,
    "DELETE": recognise_delete,
    "MERGE": recognise_merge,
}
