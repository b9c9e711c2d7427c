"""Recognises queries and the statements that change rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from haproc.classify.model import Kind
from haproc.classify.names import plain, target
from haproc.classify.reader import Reader, Recognised, unknown
from haproc.classify.relations import Scope, identifier_clause
from haproc.classify.strings import adjacent, decoded
from haproc.classify.tokens import Token, TokenKind

_NAMES = (TokenKind.WORD, TokenKind.QUOTED_NAME)

# Functions that run arbitrary code by name: a query that calls one may have any effect.
_HIDING_FUNCTIONS = frozenset({"java_method", "reflect", "try_reflect"})

_HIVES_OWN = ("org.apache.hadoop.hive.", "org.apache.hadoop.mapred.")

_QUERY_BEGINS = ("SELECT", "FROM", "VALUES", "TABLE", "MAP", "REDUCE")
# What follows INSERT where it is the verb, whatever stands in front of it.
_AFTER_INSERT = frozenset({"INTO", "OVERWRITE", "REPLACE", "TABLE", "WITH"})


def hidden_effect(tokens: Sequence[Token], closing: Mapping[int, int]) -> str:
    """Say what in a statement could have effects that its words don't show; empty if nothing."""
    opening_of = {close: start for start, close in closing.items()}
    for index, token in enumerate(tokens[1:], 1):
        if token.kind is TokenKind.SYMBOL and token.text == "(":
            called = _called(tokens, opening_of, index)
            if called in _HIDING_FUNCTIONS:
                return f"{called}() runs arbitrary code"
        elif token.kind is TokenKind.STRING and tokens[index - 1].upper == "USING":
            return "TRANSFORM … USING runs a program"
        elif token.kind is TokenKind.STRING and _names_class(tokens, index):
            name = adjacent(tokens, index)[0]
            if not name.startswith(_HIVES_OWN):
                return f"{name} may be any class, whose code would run"
    return ""


def _names_class(tokens: Sequence[Token], index: int) -> bool:
    """Whether the string there names a Java class: of a SerDe, a file format, a storage handler."""
    word = tokens[index - 1].upper
    by_storage = word == "BY" and index > 1 and tokens[index - 2].upper == "STORED"
    return by_storage or word in ("SERDE", "INPUTFORMAT", "OUTPUTFORMAT")


def _called(tokens: Sequence[Token], opening_of: Mapping[int, int], opening: int) -> str:
    """Return the function called with these parentheses; RefusedError if it has to be computed."""
    before = tokens[opening - 1]
    if before.kind in _NAMES:
        return plain(before).lower()
    start = opening_of.get(opening - 1, 0)
    if not start or tokens[start - 1].upper != "IDENTIFIER":
        return ""
    return identifier_clause(tokens, {start: opening - 1}, start - 1)[-1].lower()


def recognise_query(reader: Reader) -> Recognised:
    """A statement that begins like a query: it may still turn out to insert."""
    tokens, opening = reader.tokens, 0
    while reader.is_symbol("(", opening):
        opening += 1
    if opening:
        if reader.word(opening) not in (*_QUERY_BEGINS, "WITH"):
            return unknown("parentheses open a statement that is not a query")
        return _plain_query(reader, Kind.SELECT)
    scope = reader.common_tables()
    verb = reader.word()
    if verb in _VERBS:
        return _VERBS[verb](reader, scope)
    if verb == "FROM" and (insert := _insert_in(reader)) is not None:
        reader.query(scope, insert)
        return recognise_insert(reader, scope)
    if verb not in _QUERY_BEGINS and not reader.is_symbol("("):
        return unknown(f"{tokens[0].upper} is not followed by a query")
    return _plain_query(reader, Kind.VALUES if verb == "VALUES" else Kind.SELECT, scope)


def _plain_query(reader: Reader, kind: Kind, scope: Scope = frozenset()) -> Recognised:
    """What is taken for a query. If Spark takes it for more, it does nothing."""
    reader.query(scope)
    return reader.recognised(kind)


def _insert_in(reader: Reader) -> int | None:
    """Return where, outside parentheses, the first INSERT begins; None if nowhere."""
    tokens = reader.tokens
    for index in reader.depth_zero()[:-1]:
        follows_dot = index > 0 and tokens[index - 1].is_symbol(".")
        is_verb = tokens[index].upper == "INSERT" and tokens[index + 1].upper in _AFTER_INSERT
        if is_verb and not follows_dot:
            return index
    return None


def recognise_insert(reader: Reader, scope: Scope = frozenset()) -> Recognised:
    """``INSERT INTO|OVERWRITE …``, with the position at INSERT."""
    kind = _insert_target(reader)
    if kind is None:
        return unknown("this INSERT writes files, or names no table")
    reader.query(scope)
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


def recognise_update(reader: Reader, scope: Scope = frozenset()) -> Recognised:
    """``UPDATE t SET … [WHERE …]``."""
    reader.take("UPDATE")
    if not reader.is_name():
        return unknown("UPDATE names no table")
    reader.write_table()
    reader.query(scope)
    return reader.recognised(Kind.UPDATE)


def recognise_delete(reader: Reader, scope: Scope = frozenset()) -> Recognised:
    """``DELETE FROM t [WHERE …]``."""
    if not reader.take("DELETE", "FROM") or not reader.is_name():
        return unknown("DELETE is not followed by FROM and a table")
    reader.write_table()
    reader.query(scope)
    return reader.recognised(Kind.DELETE)


def recognise_merge(reader: Reader, scope: Scope = frozenset()) -> Recognised:
    """``MERGE [WITH SCHEMA EVOLUTION] INTO t USING s ON … WHEN …``."""
    reader.take("MERGE")
    reader.take("WITH", "SCHEMA", "EVOLUTION")
    if not reader.take("INTO") or not reader.is_name():
        return unknown("MERGE is not followed by INTO and a table")
    reader.write_table()
    using = [index for index in reader.depth_zero() if reader.tokens[index].upper == "USING"]
    if not using:
        return unknown("MERGE has no USING")
    reader.at = using[0] + 1
    reader.relation(scope)
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
    if reader.take("FROM") and reader.is_string():
        reader.read_files()
        return reader.recognised(Kind.COPY)
    return unknown("COPY is not followed by FROM and a path")


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
