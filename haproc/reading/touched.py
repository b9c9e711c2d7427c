"""What a statement touches, for the rules of operators: tables, seen through views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from haproc.classify.model import RefusedError, Touched
from haproc.classify.names import Context, completed, joined
from haproc.classify.tokens import tokenize
from haproc.reading.anatomy import anatomy
from haproc.reading.definitions import function_of
from haproc.reading.names import expression_classes, parts
from haproc.reading.tree import Node, Reading

_FURTHER: Final = frozenset({"LOGICAL", "FORMATTED", "EXTENDED", "CODEGEN", "COST", "QUERY"})
_SHOWING: Final = frozenset({"ShowTablesExtended", "ShowTablePartition"})
_PLACES: Final = frozenset({"UnresolvedNamespace", "CurrentNamespace"})
DESCRIBING: Final = "DescribeQueryCommand"


@dataclass(frozen=True, slots=True)
class Touches:
    """What a reading shows. ``rests_on``: what decides which tables these are.

    ``function``: what makes a function, whose body is to be read (`haproc.reading.definitions`).
    ``inner``: a query of which the reading has but the names: it is to be read in its place.
    ``refusal``: why it would not be run, unless a rule allows it.
    """

    touched: Touched
    rests_on: frozenset[str] = frozenset()
    function: Node | None = None
    inner: str = ""
    refusal: RefusedError | None = None

    def __or__(self, other: Touches) -> Touches:
        """Return what both touch."""
        return Touches(self.touched | other.touched, self.rests_on | other.rests_on)


NOTHING: Final = Touches(Touched())


def touches(reading: Reading, context: Context) -> Touches:
    """Return what a statement touches; raises RefusedError."""
    if reading.parsed is not None and reading.parsed.cls == DESCRIBING:
        return Touches(Touched(), inner=explained(reading.text))
    whole = anatomy(reading, context)
    tables, schemas = _shown(reading.parsed, context)
    tables |= whole.reads | whole.writes
    known = whole.known and whole.refusal is None
    touched = Touched(tables, known, schemas, expression_classes(reading))
    return Touches(touched, whole.rests_on, function_of(reading), refusal=whole.refusal)


def _shown(parsed: Node | None, context: Context) -> tuple[frozenset[str], frozenset[str]]:
    """Return the tables, or the schema, of which SHOW TABLE EXTENDED tells more than names."""
    nothing = frozenset[str]()
    if parsed is None or parsed.cls not in _SHOWING:
        return nothing, nothing
    if (table := parsed.node("table")) is not None:
        return frozenset({joined(completed(parts(table), context))}), nothing
    place = parsed.node("namespace")
    if place is None or place.cls not in _PLACES:
        return nothing, frozenset({""})
    given = place["multipartIdentifier"] or (context.schema,)
    *schema, _ = completed((*given, ""), context)
    names = [each.strip() for each in str(parsed["pattern"] or "*").split("|")]
    if all(each.isidentifier() for each in names):
        return frozenset(joined((*schema, each)) for each in names), nothing
    return nothing, frozenset({joined(schema)})


def explained(text: str) -> str:
    """Return what follows EXPLAIN, or DESCRIBE [QUERY]."""
    _, *tokens = tokenize(text)
    if len(tokens) > 1 and tokens[0].upper in _FURTHER:
        del tokens[0]
    return text[tokens[0].start :] if tokens else ""
