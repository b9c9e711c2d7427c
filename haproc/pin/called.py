"""What a merge's conditions call the columns of its source, where rows stand in for it.

Spark keeps a DataFrame's name (of an alias, or of the table or view that it reads) through steps
that hand columns on. What such a step makes anew has no name in front. So rows are put below the
same alias, and the columns that have none are made anew above it, each as itself.

Where columns of several names come together (a join, a SQL text), rows get none: what names one of
them is not resolved, and Spark says so before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from haproc import protos
from haproc.classify.names import Context, completed, parts_of, path_of
from haproc.classify.plans.members import members
from haproc.pin.sqltypes import quote_name

_HANDING_ON: Final = members(
    """
    filter sort limit offset tail sample deduplicate repartition repartition_by_expression hint drop
    drop_na collect_metrics with_watermark
    """
)
"""What comes out of these are columns that came in, under the same names."""


@dataclass(frozen=True, slots=True)
class Called:
    """The name in front of columns, with what may stand in front of it; ``anew`` have none."""

    alias: str
    qualifier: tuple[str, ...] = ()
    anew: frozenset[str] = frozenset()

    def over(self, rows: Any, columns: Iterable[str]) -> Any:
        """Return the relation ``rows``, which has these columns, under the name."""
        named = protos.relations.Relation()
        named.subquery_alias.alias = self.alias
        named.subquery_alias.qualifier.extend(self.qualifier)
        named.subquery_alias.input.CopyFrom(rows)
        anew = [each for each in columns if each.lower() in self.anew]
        if not anew:
            return named
        made = protos.relations.Relation()
        made.with_columns.input.CopyFrom(named)
        for each in anew:
            alias = made.with_columns.aliases.add()
            alias.name.append(each)
            alias.expr.unresolved_attribute.unparsed_identifier = quote_name(each)
        return made


def called(source: Any, context: Context) -> Called | None:
    """Return what a relation's columns are called; None if they have no name, or several."""
    anew = frozenset[str]()
    while (kind := source.WhichOneof("rel_type")) is not None:
        message = getattr(source, kind)
        if kind == "subquery_alias":
            return Called(message.alias, tuple(message.qualifier), anew)
        if kind == "read":
            parts = parts_of(message.named_table.unparsed_identifier) or ()
            if not parts or path_of(parts):
                return None
            *before, name = completed(parts, context)
            return Called(name, tuple(before), anew)
        if kind in _MAKING:
            made = list(_MAKING[kind](message))
            if None in made:
                return None
            anew |= {each.lower() for each in made if each is not None}
        elif kind not in _HANDING_ON:
            break
        source = message.input
    return None


def _with_columns(message: Any) -> Iterator[str | None]:
    for alias in message.aliases:
        yield alias.name[0] if len(alias.name) == 1 else None


def _renamed(message: Any) -> Iterator[str | None]:
    yield from message.rename_columns_map.values()
    yield from (each.new_col_name for each in message.renames)


def _selected(message: Any) -> Iterator[str | None]:
    """Yield what has a name of its own; what only computes gets one that nobody says."""
    for each in message.expressions:
        kind = each.WhichOneof("expr_type")
        if kind == "alias":
            yield each.alias.name[0] if len(each.alias.name) == 1 else None
        elif kind == "unresolved_attribute":
            parts = parts_of(each.unresolved_attribute.unparsed_identifier)
            if parts is None or len(parts) > 2:
                yield None  # a field of a column, or a column by a longer name


_MAKING: Final = {
    "with_columns": _with_columns,
    "with_columns_renamed": _renamed,
    "project": _selected,
}
