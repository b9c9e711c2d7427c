"""Recognises queries and the statements that change rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import plain, target
from haproc.classify.reader import Reader, Recognised, unknown
from haproc.classify.relations import Scope, identifier_clause
from haproc.classify.strings import adjacent, decoded
from haproc.classify.tokens import Token, TokenKind
from haproc.failure import ErrorClass

_NAMES = (TokenKind.WORD, TokenKind.QUOTED_NAME)

# Functions that run arbitrary code by name: a query that calls one may have any effect.
_HIDING_FUNCTIONS = frozenset({"java_method", "reflect", "try_reflect"})

_HIVES_OWN = ("org.apache.hadoop.hive.", "org.apache.hadoop.mapred.")

_QUERY_BEGINS = ("SELECT", "FROM", "VALUES", "TABLE", "MAP", "REDUCE")
_WRITING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE"})
# What follows INSERT where it is the verb, whatever stands in front of it.
_AFTER_INSERT = frozenset({"INTO", "OVERWRITE", "REPLACE", "TABLE", "WITH"})
# Behind these begins a name or a value; only a whole relation can stand in front of a verb.
_NAME_FOLLOWS = """ALL AND AS BETWEEN BY CASE DISTINCT ELSE FROM HAVING IN JOIN LIKE NOT ON OR
    SELECT THEN WHEN WHERE"""
_BEFORE_A_NAME = frozenset(_NAME_FOLLOWS.split())
# Words that may follow a name: a clause, an operator, an alias's AS.
_FOLLOWS_NAME = """AND ANTI AS ASC BETWEEN CLUSTER COLLATE CROSS DESC DISTRIBUTE DIV ELSE END EXCEPT
    FROM FULL GROUP HAVING ILIKE IN INNER INTERSECT IS JOIN LATERAL LEFT LIKE LIMIT MAP MINUS
    NATURAL NOT NULLS OFFSET ON OR ORDER PIVOT QUALIFY REDUCE REGEXP RIGHT RLIKE SELECT SEMI SORT
    TABLESAMPLE THEN UNION UNPIVOT USING WHEN WHERE WINDOW"""
_AFTER_A_NAME = frozenset(_FOLLOWS_NAME.split())


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
    if verb == "FROM" and _inserts(reader):
        return _from_insert(reader, scope)
    if verb not in _QUERY_BEGINS and not reader.is_symbol("("):
        return unknown(f"{tokens[0].upper} is not followed by a query")
    return _plain_query(reader, Kind.VALUES if verb == "VALUES" else Kind.SELECT, scope)


def _plain_query(reader: Reader, kind: Kind, scope: Scope = frozenset()) -> Recognised:
    """A query: a writing verb in it has to be a name for certain, and Spark has to confirm it."""
    tokens, confirm = reader.tokens, False
    for index, token in enumerate(tokens):
        word = token.upper
        if word in _WRITING:
            if _may_be_verb(tokens, index):
                return unknown(f"{word} stands inside a query, where it could be a verb")
            confirm = True
        elif word == "IDENTIFIER" and index + 1 < len(tokens):
            confirm = confirm or tokens[index + 1].is_symbol("(")
    reader.query(scope)
    return replace(reader.recognised(kind), confirm=confirm)


def _may_be_verb(tokens: Sequence[Token], index: int) -> bool:
    """Whether the word at ``index`` may begin a clause that writes; False: it is a name."""
    if index + 1 == len(tokens) or (index and tokens[index - 1].is_symbol(".")):
        return False
    following = tokens[index + 1]
    if tokens[index].upper == "INSERT" and following.upper in _AFTER_INSERT:
        return True
    if following.kind is TokenKind.SYMBOL or following.upper in _AFTER_A_NAME:
        return False
    before = tokens[index - 1] if index else None
    return before is not None and (
        before.text in (")", "]")
        or (before.kind is not TokenKind.SYMBOL and before.upper not in _BEFORE_A_NAME)
    )


def _inserts(reader: Reader) -> list[int]:
    """Return where, outside parentheses, an INSERT begins."""
    tokens = reader.tokens
    return [
        index
        for index in reader.depth_zero()
        if tokens[index].upper == "INSERT" and _may_be_verb(tokens, index)
    ]


def recognise_insert(reader: Reader, scope: Scope = frozenset()) -> Recognised:
    """``INSERT INTO|OVERWRITE …``, with the position at INSERT."""
    kind = _insert_target(reader)
    if kind is None:
        return unknown("this INSERT writes files, or names no table")
    if _inserts(reader):
        raise _several_inserts()
    reader.query(scope)
    return reader.recognised(kind)


def _from_insert(reader: Reader, scope: Scope) -> Recognised:
    """``FROM t INSERT … SELECT …``."""
    start, *further = _inserts(reader)
    if further:
        raise _several_inserts()
    reader.query(scope, start)
    return recognise_insert(reader, scope)


def _several_inserts() -> RefusedError:
    return RefusedError(
        ErrorClass.MULTIPLE_STATEMENTS,
        "the statement holds several INSERTs, and Spark commits each by itself: one that was "
        "interrupted between them could not be told from a whole one",
        "send them one by one, each as a request of its own: INSERT INTO … SELECT … FROM …",
    )


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
