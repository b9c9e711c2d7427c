"""Recognises queries and the statements that change rows."""

from __future__ import annotations

from haproc.classify.model import Kind
from haproc.classify.reader import Reader, Recognised, unknown
from haproc.classify.relations import Scope
from haproc.classify.tokens import Token, TokenKind

# Functions that run arbitrary code by name: a query that calls one may have any effect.
_HIDING_FUNCTIONS = frozenset({"java_method", "reflect", "try_reflect"})

_QUERY_BEGINS = ("SELECT", "FROM", "VALUES", "TABLE", "MAP", "REDUCE")


def hidden_effect(tokens: list[Token]) -> str:
    """Say what in a statement could have effects that its words don't show; empty if nothing."""
    for index, token in enumerate(tokens[1:], 1):
        if token.kind is TokenKind.SYMBOL and token.text == "(":
            name = tokens[index - 1]
            called = name.text.strip("`").lower()
            if called in _HIDING_FUNCTIONS and name.kind in (TokenKind.WORD, TokenKind.QUOTED_NAME):
                return f"{called}() runs arbitrary code"
        elif token.kind is TokenKind.STRING and tokens[index - 1].upper == "USING":
            return "TRANSFORM … USING runs a program"
    return ""


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
    if verb in ("INSERT", "UPDATE", "DELETE", "MERGE"):
        return _VERBS[verb](reader, scope)
    if verb == "FROM" and _inserts(reader):
        return _from_insert(reader, scope)
    if verb not in _QUERY_BEGINS and not reader.is_symbol("("):
        return unknown(f"{tokens[0].upper} is not followed by a query")
    return _plain_query(reader, Kind.VALUES if verb == "VALUES" else Kind.SELECT, scope)


def _plain_query(reader: Reader, kind: Kind, scope: Scope = frozenset()) -> Recognised:
    for index, token in enumerate(reader.tokens[:-1]):
        if token.upper == "INSERT" and reader.tokens[index + 1].upper in ("INTO", "OVERWRITE"):
            return unknown("an INSERT stands inside a query")
    reader.query(scope)
    return reader.recognised(kind)


def _inserts(reader: Reader) -> list[int]:
    """Return where, outside parentheses, an INSERT begins."""
    following = ("INTO", "OVERWRITE")
    return [
        index
        for index in reader.depth_zero()
        if reader.tokens[index].upper == "INSERT"
        and index + 1 < reader.end
        and reader.tokens[index + 1].upper in following
    ]


def recognise_insert(reader: Reader, scope: Scope = frozenset()) -> Recognised:
    """``INSERT INTO|OVERWRITE …``, with the position at INSERT."""
    kind = _insert_target(reader)
    if kind is None:
        return unknown("this INSERT writes files, or names no table")
    reader.query(scope)
    return reader.recognised(kind)


def _from_insert(reader: Reader, scope: Scope) -> Recognised:
    """``FROM t INSERT … SELECT … INSERT … SELECT …``."""
    starts = _inserts(reader)
    reader.query(scope, starts[0])
    kinds = []
    for begin, end in zip(starts, [*starts[1:], reader.end], strict=True):
        reader.at = begin
        kinds.append(_insert_target(reader))
        reader.query(scope, end)
    if None in kinds:
        return unknown("one of these INSERTs writes files, or names no table")
    overwrites = Kind.INSERT_OVERWRITE in kinds
    return reader.recognised(Kind.INSERT_OVERWRITE if overwrites else Kind.INSERT)


def _insert_target(reader: Reader) -> Kind | None:
    """Step over an INSERT up to its query; None if its target is not a table."""
    reader.take("INSERT")
    reader.take("WITH", "SCHEMA", "EVOLUTION")
    verb = reader.take_one("INTO", "OVERWRITE")
    if verb == "OVERWRITE" and (reader.take("LOCAL", "DIRECTORY") or reader.take("DIRECTORY")):
        return None
    if reader.word() == "TABLE" and (reader.is_name(1)):
        reader.take("TABLE")
    if not verb or not (reader.is_name() or reader.is_symbol("(")):
        return None
    computed = reader.word() == "IDENTIFIER" and reader.is_symbol("(", 1)
    if not reader.write_table() and not computed:
        return None
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
        return reader.recognised(kind, known=False)
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
