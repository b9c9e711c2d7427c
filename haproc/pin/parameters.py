"""Replaces a statement's parameters (``?`` and ``:name``) by typed literals.

A statement in the log has to stand alone, and Delta's parser drops parameters on their way to
Spark, so they are replaced here, in every statement. The text is read as tokens: what looks like a
parameter inside a string, a comment, a quoted name or a hint is none, and each value becomes
exactly one literal.

The body of a request gives parameters as Databricks' Statement Execution API does: a list of
``{"name": …, "value": …, "type": …}``. Either all have a name, or none has. A value is a string or
null; for ARRAY, MAP and STRUCT (an extension) it is JSON. BINARY values are base64. A ``DECIMAL``
without precision has the digits that its value is written with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from haproc.classify.model import RefusedError
from haproc.classify.tokens import LexicalError, Token, TokenKind, tokenize
from haproc.failure import ErrorClass
from haproc.pin.literals import LiteralError, null_literal, string_literal
from haproc.pin.sqltypes import TypeTextError, parse_type
from haproc.pin.texts import json_literal, text_literal

_JOINING = frozenset("'\"`-.&$@\\")
"""Characters that would form one token with a literal next to them, so a space is put between."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The value of one parameter: text, None for NULL, or JSON for ARRAY, MAP and STRUCT.

    ``name`` is None for ``?``. ``type`` None means STRING, but NULL without a type stays so.
    """

    name: str | None
    value: Any
    type: str | None = None


Parameters: TypeAlias = Sequence[Parameter]
"""The parameters of a statement: either all have a name, or none has and their order counts."""


@dataclass(frozen=True, slots=True)
class Given:
    """Parameters as JSON text, as a client sent them; `bound` reads them.

    The text is a list of parameters, or with ``rows`` a list of such lists. There may be millions
    of them, so they are not read earlier.
    """

    json: bytes
    rows: bool = False


def bound(sql: str, given: Given) -> str:
    """Return the statement with these parameters replaced by literals; raises RefusedError."""
    read = json.loads(given.json)
    if given.rows:
        return expand_rows(sql, [parse_parameters(row) for row in read])
    return bind(sql, parse_parameters(read))


def parse_parameters(given: Any) -> Parameters:
    """Read the field ``parameters`` of a request's JSON body; None: it is missing.

    Raises RefusedError.
    """
    if given is None:
        return ()
    if not isinstance(given, list):
        raise _refused("parameters is a list", 'write [{"name": "x", "value": "1", "type": "INT"}]')
    return [_parse_one(entry, at) for at, entry in enumerate(given, start=1)]


def bind(sql: str, parameters: Parameters) -> str:
    """Return the statement with every parameter replaced by its literal; raises RefusedError."""
    if not parameters and "?" not in sql and ":" not in sql:
        return sql
    markers = _markers(sql)
    if not parameters and not markers:
        return sql
    pieces = _cut(sql, markers)
    return _fill(pieces, _literals([token.text for token in markers], parameters))


def expand_rows(sql: str, rows: Sequence[Parameters]) -> str:
    """Return ``INSERT … VALUES (…?…)`` with its one row written once for each set of parameters.

    Raises RefusedError.
    """
    if not rows:
        raise _refused("there are no rows of parameters", "give at least one")
    start, end = _row_template(sql)
    markers = _markers(sql)
    if not all(start < token.start < end for token in markers):
        raise _refused("a parameter stands outside the row", "keep them inside VALUES (…)")
    names = [token.text for token in markers]
    pieces = _cut(sql[start:end], markers, start)
    written = [_fill(pieces, _literals(names, row, at)) for at, row in enumerate(rows, start=1)]
    return f"{sql[:start]}{', '.join(written)}{sql[end:]}"


def _refused(message: str, hint: str = "") -> RefusedError:
    return RefusedError(ErrorClass.PARAMETERS, message, hint)


def _parse_one(entry: Any, at: int) -> Parameter:
    if not isinstance(entry, dict) or entry.keys() - {"name", "value", "type"}:
        raise _refused(f"parameter {at} is not an object with name, value and type")
    name, value, type_text = (entry.get(key) for key in ("name", "value", "type"))
    label = repr(name) if name else str(at)
    if name is not None and (not isinstance(name, str) or not name):
        raise _refused(f"parameter {at} has a name that is not a text")
    if type_text is not None and not isinstance(type_text, str):
        raise _refused(f"parameter {label} has a type that is not a text")
    parameter = Parameter(name, value, type_text)
    _literal(parameter, label)  # so that a wrong one is refused whether or not it is used
    return parameter


def _literal(parameter: Parameter, label: str) -> str:
    """Return the literal of a parameter; a RefusedError names it by ``label``."""
    value = parameter.value
    try:
        if parameter.type is None and (value is None or isinstance(value, str)):
            return "NULL" if value is None else string_literal(value)
        kind = parse_type(parameter.type or "STRING")
        if value is None:
            return null_literal(kind)
        if isinstance(value, str):
            return text_literal(value, kind)
        if kind.arguments:
            return json_literal(value, kind)
    except (LiteralError, TypeTextError) as error:
        raise _refused(f"parameter {label}: {error}") from error
    raise _refused(
        f"parameter {label}: a value is a text or null",
        f'write "value": "{value}" and the type it has, such as "type": "INT"',
    )


def _markers(sql: str) -> list[Token]:
    try:
        return list(_scan(tokenize(sql)))
    except LexicalError as error:
        raise _refused(str(error)) from error


def _scan(tokens: Iterator[Token]) -> Iterator[Token]:
    """Yield the tokens that are parameters; ``:INT`` in ``STRUCT<a :INT>`` is none."""
    depth, previous = 0, ""
    for token in tokens:
        if token.kind is TokenKind.SYMBOL:
            if token.text == "<" and (depth or previous == "STRUCT"):
                depth += 1
            elif depth and not token.text.strip(">"):
                depth = max(0, depth - len(token.text))
        elif token.kind is TokenKind.PARAMETER and not (depth and previous and token.text != "?"):
            yield token
        is_name = token.kind in (TokenKind.WORD, TokenKind.QUOTED_NAME)
        previous = token.text.upper() if is_name else ""


def _cut(sql: str, markers: Sequence[Token], offset: int = 0) -> list[str]:
    """Return the pieces of text before, between and behind the markers.

    Spaces are added where a literal would join its neighbour. ``offset``: the position of ``sql``
    in the text that the markers' positions refer to.
    """
    pieces: list[str] = []
    position = 0
    for token in markers:
        pieces.append(_padded(sql[position : token.start - offset], before=bool(pieces)))
        position = token.end - offset
    pieces.append(sql[position:])
    if markers and _joins(pieces[-1][:1]):
        pieces[-1] = f" {pieces[-1]}"
    return pieces


def _padded(piece: str, *, before: bool) -> str:
    lead = " " if before and _joins(piece[:1]) else ""
    tail = " " if _joins(piece[-1:]) else ""
    return f"{lead}{piece}{tail}"


def _joins(character: str) -> bool:
    return bool(character) and (character in _JOINING or character == "_" or character.isalnum())


def _fill(pieces: Sequence[str], literals: Sequence[str]) -> str:
    parts = [pieces[0]]
    for written, piece in zip(literals, pieces[1:], strict=True):
        parts.append(written)
        parts.append(piece)
    return "".join(parts)


def _literals(names: Sequence[str], parameters: Parameters, row: int | None = None) -> list[str]:
    """Return the literal for each marker in ``names``, in their order; raises RefusedError.

    ``row``: the number of the row of parameters, for the error.
    """
    place = "" if row is None else f" in row {row}"
    named = [item for item in parameters if item.name is not None]
    positional = names.count("?")
    if named and len(named) < len(parameters):
        raise _refused(f"some parameters{place} have a name and some have none", "name all or none")
    if positional and positional < len(names):
        raise _refused("the statement has both ? and :name", "use one of them")
    if not named and (positional or not names):
        if positional != len(parameters):
            raise _refused(
                f"the statement has {positional} markers, but {len(parameters)} "
                f"parameters were given{place}"
            )
        if row is None:
            return [_literal(item, str(at)) for at, item in enumerate(parameters, start=1)]
        return [_literal(item, f"{at}{place}") for at, item in enumerate(parameters, start=1)]
    if named and positional:
        raise _refused("the statement has ? but the parameters have names", "write :name")
    if not named and parameters:
        raise _refused("the statement has :name but the parameters have no names", "write ?")
    return _named_literals([_name(marker) for marker in names], named, place)


def _name(marker: str) -> str:
    """Return the name of a marker: of ``:name``, or of ``:`name``` with backquotes."""
    name = marker[1:]
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _named_literals(names: Sequence[str], given: Sequence[Parameter], place: str) -> list[str]:
    literals: Mapping[str, str] = {
        str(item.name): _literal(item, f"{item.name!r}{place}") for item in given
    }
    if len(literals) < len(given):
        raise _refused(f"two parameters{place} have the same name")
    missing = [name for name in names if name not in literals]
    if missing:
        raise _refused(f"the parameter :{missing[0]} was not given{place}")
    surplus = sorted(literals.keys() - set(names))
    if surplus:
        raise _refused(f"the parameter {surplus[0]!r}{place} is not in the statement")
    return [literals[name] for name in names]


def _row_template(sql: str) -> tuple[int, int]:
    """Return the positions of the begin and the end of the one row in ``INSERT … VALUES (…)``.

    Raises RefusedError for another statement.
    """
    hint = "rows of parameters go with INSERT INTO … VALUES (…) that ends after its one row"
    wrong = _refused("the statement cannot be repeated for rows of parameters", hint)
    depth, start, end, seen_values = 0, -1, -1, False
    try:
        for at, token in enumerate(tokenize(sql)):
            if at == 0 and token.upper != "INSERT":
                raise wrong
            if end >= 0:
                if token.is_symbol(";"):
                    continue
                raise wrong
            if not depth and token.upper in ("SELECT", "FROM", "WITH", "TABLE", "VALUES"):
                if token.upper == "SELECT" or token.upper == "FROM" or seen_values:
                    raise wrong
                seen_values = token.upper == "VALUES"
                continue
            if seen_values and start < 0:
                if not token.is_symbol("("):
                    raise wrong
                start = token.start
            depth += token.is_symbol("(") - token.is_symbol(")")
            if start >= 0 and not depth:
                end = token.end
    except LexicalError as error:
        raise _refused(str(error)) from error
    if end < 0:
        raise wrong
    return start, end
