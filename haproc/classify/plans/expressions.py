"""The expressions of a plan; they are searched only if one of them could matter.

Expressions are most of a plan, and for a query it mostly doesn't matter what they compute. So for a
query a check of its bytes shows whether it may contain a relevant part (`_suspicious`); only then
its expressions are searched. The expressions of a write are always searched: they contain names of
functions, SQL texts and the user's code, which decide whether all clusters compute the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, Final

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.classify.names import parts_of
from haproc.classify.plans import parsing
from haproc.classify.plans.parsing import PlanFindings, may_hold, members
from haproc.failure import ErrorClass

_EXPRESSION = protos.expressions.Expression.DESCRIPTOR.full_name
_LITERAL = protos.expressions.Expression.Literal.DESCRIPTOR.full_name
HIDING: Final = frozenset({"java_method", "reflect", "try_reflect"})
"""Functions that run any code that their arguments name."""
_EXTENSION: Final = bytes((0xBA, 0x3E))
"""The bytes with which a message's field of number 999 begins: an extension."""
_JVM_OBJECT: Final = bytes((0xAC, 0xED, 0x00, 0x05))
"""The bytes with which a serialized object of the JVM begins: a function in Scala."""
_SUSPECT: Final = (
    *(b"reflect", b"java_method", b"identifier"),
    *(_EXTENSION, _JVM_OBJECT),
)
"""Bytes one of which is in every plan that runs hidden code, calls ``identifier`` or has an
extension."""
_SUBQUERY: Final = re.compile(rb"\([^\w(]*+(?:select|with|from|table|values|map|reduce)\b")
"""The beginning of a query in parentheses, with any spaces and comments before its first word."""
_LETTERS: Final = (("ſ".encode(), b"s"), ("ı".encode(), b"i"))
"""The two letters outside ASCII that become letters of ASCII in capitals."""
COMPUTING: Final = members(
    """
    literal unresolved_attribute unresolved_star alias cast unresolved_regex sort_order
    lambda_function window unresolved_extract_value update_fields
    unresolved_named_lambda_variable named_argument_expression merge_action
    subquery_expression direct_shuffle_partition_id
    """
)
"""Expressions that only compute something from the expressions inside them."""
NUMBERS: Final = members(
    """
    boolean byte short integer long float double decimal binary date time timestamp timestamp_ntz
    calendar_interval year_month_interval day_time_interval
    """
)
"""Literals in which no other expression, text or code can be."""


def check(message: Any, found: PlanFindings) -> None:
    """Search the expressions of a query, if any of them might do more than compute."""
    if _suspicious(message.SerializeToString()):
        take(message, found)


def _suspicious(data: bytes) -> bool:
    lowered = data.lower()
    # Bytes that are no letters of ASCII stay unchanged, except those that Spark's lexer reads as
    # such letters.
    for written, letter in _LETTERS:
        lowered = lowered.replace(written, letter)
    return any(each in lowered for each in _SUSPECT) or _SUBQUERY.search(lowered) is not None


def take(message: Any, found: PlanFindings) -> None:
    """Collect the functions, SQL texts and user's code in all expressions of a message."""
    for each in _below(message):
        if each.DESCRIPTOR.full_name == _EXPRESSION:
            _entered(each, found)


def check_count(message: Any, most: int) -> None:
    """Raise RefusedError if a plan has more than ``most`` steps and expressions."""
    count = sum(1 for _ in islice(_below(message, numbers=True), most + 1))
    if count > most:
        raise RefusedError(
            ErrorClass.STATEMENT_TOO_COMPLEX,
            f"the plan has more than {most} steps and expressions (limits.statement_tokens_max)",
            "join with a DataFrame of the values in place of isin(), or do it in several steps",
        )


def _below(message: Any, *, numbers: bool = False) -> Iterator[Any]:
    """Yield the message and all parts that may hold expressions or literals, in their order.

    Numbers and similar literals are left out unless ``numbers`` is set: a plan may have hundreds of
    thousands.
    """
    stack = [message]
    while stack:
        each = stack.pop()
        kind: Any = type(each)
        places = _holding(kind)
        if isinstance(places, str):
            name = each.WhichOneof(places)
            inner: Any = None if name is None else getattr(each, name)
            if name == "literal" and inner.WhichOneof("literal_type") in NUMBERS:
                if numbers:
                    yield each
                continue
            yield each
            if inner is not None:
                stack.append(inner)
            continue
        yield each
        inside: list[Any] = []
        for name, is_map, repeated in places:
            if is_map:
                inside.extend(getattr(each, name).values())
            elif repeated:
                inside.extend(getattr(each, name))
            elif each.HasField(name):
                inside.append(getattr(each, name))
        stack.extend(reversed(inside))


@cache
def _holding(kind: Any) -> tuple[tuple[str, bool, bool], ...] | str:
    """Return the fields of messages of this class that may hold expressions or literals.

    For each: its name, True for a map, True for a list. For an expression, whose fields are a
    choice of one, only the name of that choice.
    """
    if kind.DESCRIPTOR.full_name == _EXPRESSION:
        return "expr_type"
    return tuple(
        (each.name, each.message_type.GetOptions().map_entry, each.is_repeated)
        for each in kind.DESCRIPTOR.fields
        if each.message_type is not None and may_hold(each.message_type, _EXPRESSION, _LITERAL)
    )


def _entered(expression: Any, found: PlanFindings) -> None:
    kind = expression.WhichOneof("expr_type")
    if kind in COMPUTING:
        return
    if kind == "unresolved_function":
        called(expression.unresolved_function, found)
    elif kind == "call_function":
        called(expression.call_function, found)
    elif kind == "expression_string":
        found.expressions.append(expression.expression_string.expression)
    elif kind == "common_inline_user_defined_function":
        check_code(expression.common_inline_user_defined_function)
        found.user_code = True
    elif kind == "typed_aggregate_expression":
        raise parsing.refused_jvm_code("an aggregate function")
    else:
        raise parsing.refused_unknown(f"the expression {kind}")


def called(message: Any, found: PlanFindings) -> None:
    """Collect the called function's name; RefusedError if it runs code that its arguments name."""
    parts = parts_of(message.function_name) or (message.function_name,)
    name = parts[-1].lower()
    if name in HIDING:
        raise parsing.refused_hiding(name)
    found.functions.add(name if len(parts) == 1 else ".".join(parts).lower())


def check_code(function: Any) -> None:
    """Raise RefusedError if a user's function is not written in Python."""
    if function.WhichOneof("function") not in ("python_udf", "python_udtf"):
        raise parsing.refused_jvm_code(f"the function {function.function_name[:100]}")
