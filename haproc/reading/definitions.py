"""The expressions that DDL stores: defaults, generated columns, checks, bodies of functions.

Every cluster computes them again whenever rows are written or the function is called. So they must
give the same everywhere, and no part can become a literal now. Spark stores them as texts, or made
constants of them while it read the statement. So each is read once more, as a query over columns
with the names and types of its table or function, with unknown values. So a name in it means a
column, as in the definition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from haproc.pin.sqltypes import quote_name
from haproc.reading.known import is_text
from haproc.reading.moving import is_moment_type
from haproc.reading.names import parts
from haproc.reading.order import at
from haproc.reading.tree import Node, Reading, UnreadableError

Columns: TypeAlias = Sequence[tuple[str, str]]
"""The names of columns, and their types as SQL."""
FUNCTIONS: Final = frozenset({"CreateUserDefinedFunction", "CreateSQLFunctionCommand"})
_SCHEMA: Final = "CREATE TABLE haproc_columns ({}\n)"
_NUMBERED: Final = frozenset({"IdentityColumnSpec"})


def queries(reading: Reading) -> list[str]:
    """Return queries that compute the expressions which DDL on a table stores.

    For a function there is `function_queries`. Raises UnreadableError.
    """
    parsed, analyzed = reading.parsed, reading.analyzed
    assert parsed is not None and analyzed is not None
    # A default sees no columns, so a column must not hide a function of its name.
    alone = [*_defaults(parsed), *_set_defaults(parsed, analyzed), *_options(parsed, reading.text)]
    columns = _columns_of(analyzed)
    beside = [*_generated(parsed), *_checks(parsed)]
    found = [over(alone)] if alone else []
    return [*found, over(beside, columns)] if beside else found


def is_numbered(parsed: Node) -> bool:
    """True if a table has an IDENTITY column, whose values each cluster numbers itself."""
    return any(node.cls in _NUMBERED for node in parsed.walk())


def over(expressions: Sequence[str], columns: Columns = (), owner: str = "q") -> str:
    """Return a query that computes expressions from rows with these columns.

    ``owner``: the name by which the expressions may qualify the columns.
    """
    items = ", ".join(f"{each} AS x{nth}" for nth, each in enumerate(expressions))
    return f"SELECT {items}" + _from(columns, owner)


def _from(columns: Columns, owner: str) -> str:
    shown = ", ".join(f"{_unknown(kind)} AS {quote_name(name)}" for name, kind in columns)
    return f" FROM (SELECT {shown}) AS {quote_name(owner)}" if shown else ""


def _unknown(kind: str) -> str:
    """Return SQL for a value of this type that Spark does not know.

    It is no plain NULL, because Spark knows that NULL is no time of day.
    """
    return f"CAST({'elt(1, CAST(NULL AS STRING))' if is_text(kind) else 'NULL'} AS {kind})"


def _typed(text: str, kind: str | None) -> str:
    """Return SQL that casts an expression to a type; UnreadableError if the type is not known.

    The line break is for an expression that ends with a line comment.
    """
    if not kind:
        raise UnreadableError("the type of a computed value is not known")
    return f"CAST(({text}\n) AS {kind})"


def _defaults(root: Node) -> Iterator[str]:
    """Yield the defaults of new columns as SQL, cast to the columns' types."""
    for node in root.walk():
        default = node.node("defaultValue") or node.node("default")
        if default is not None and default.cls == "DefaultValueExpression":
            yield _typed(str(default["originalSQL"]), node["dataType"])


def _set_defaults(parsed: Node, analyzed: Node) -> Iterator[str]:
    """Yield the defaults that a statement gives to existing columns, cast to the columns' types."""
    found = analyzed.nodes("specs") or [analyzed]
    specs = parsed.nodes("specs") if parsed.cls == "AlterColumns" else []
    for nth, spec in enumerate(specs):
        default = spec.node("newDefaultExpression")
        if default is None or not default["originalSQL"]:
            continue
        if len(found) != len(specs):
            raise UnreadableError("the column of a default is not known")
        column = at(found[nth], "column", "field") or found[nth].node("newColumn")
        yield _typed(str(default["originalSQL"]), None if column is None else column["dataType"])


def _options(parsed: Node, text: str) -> Iterator[str]:
    """Yield the values of those options that are not plain literals, as SQL."""
    for node in parsed.walk():
        for _, value in (node["options"] or ()) if node.cls == "OptionList" else ():
            if value.cls == "Literal" and not is_moment_type(value):
                continue
            if value.place is None:
                raise UnreadableError("the value of an option is not known")
            yield f"({text[value.place.start : value.place.end]}\n)"


def _generated(parsed: Node) -> Iterator[str]:
    for node in parsed.nodes("columns"):
        if node["generationExpression"]:
            yield _typed(str(node["generationExpression"]), node["dataType"])


def _checks(parsed: Node) -> Iterator[str]:
    for node in parsed.walk():
        text = node["condition"] if node.cls == "CheckConstraint" else node["expr"]
        if isinstance(text, str):
            yield f"({text}\n)"


def _columns_of(analyzed: Node) -> Columns:
    """Return the columns of the table that a statement creates or changes."""
    table = analyzed.node("table")
    shown = analyzed.nodes("columns") if table is None else table.nodes("outputAttributes")
    return [(str(each["name"]), str(each["dataType"])) for each in shown]


def function_of(reading: Reading) -> Node | None:
    """Return the root of a CREATE FUNCTION of SQL's language; None for other statements."""
    root = reading.parsed
    return root if root is not None and root.cls in FUNCTIONS else None


def schemas(function: Node) -> list[str]:
    """Return texts for Spark's parser, so that it reads a function's parameters and its columns.

    Each is a CREATE TABLE: first one with the parameters, if any, then one with the columns.
    """
    found = [_SCHEMA.format(function["inputParamText"])] if function["inputParamText"] else []
    returns = function["returnTypeText"]
    is_table = function["isTableFunc"] and returns and str(returns).strip().upper() != "TABLE"
    return [*found, _SCHEMA.format(returns)] if is_table else found


def function_queries(function: Node, tables: Sequence[Reading]) -> list[str]:
    """Return queries that compute a function's body, and the defaults of its parameters.

    ``tables``: the readings of `schemas`. Raises UnreadableError.
    """
    trees = [each.parsed for each in tables if each.parsed is not None]
    given = trees[0] if function["inputParamText"] else None
    returned = trees[-1] if len(trees) > (given is not None) else None
    parameters = [] if given is None else _columns_of(given)
    defaults = [] if given is None else list(_defaults(given))
    found = [over(defaults)] if defaults else []
    named = function.node("child") or function.node("name")
    name = (parts(named) if named is not None else ("q",))[-1]
    body = function["queryText"] or function["exprText"]
    if not isinstance(body, str):
        raise UnreadableError("the function's body is not known")
    if not function["isTableFunc"]:
        kind = function["returnTypeText"]
        return [*found, over([_typed(body, kind) if kind else f"({body}\n)"], parameters, name)]
    if returned is not None:
        columns = [(f"c{nth}", kind) for nth, (_, kind) in enumerate(_columns_of(returned))]
        casts = ", ".join(f"CAST({name} AS {kind})" for name, kind in columns)
        body = f"SELECT {casts} FROM ({body}\n) AS q({', '.join(name for name, _ in columns)})"
    if parameters:
        body = f"SELECT *{_from(parameters, name)}, LATERAL ({body}\n)"
    return [*found, body]
