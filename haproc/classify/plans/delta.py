"""Delta's own API over Spark Connect: extensions of plans, each kind that there is in a table.

``DeltaTable`` writes by relations as well as by commands: update, delete, merge, optimize, restore
and convert run as soon as Spark meets them, wherever they stand, so they have to be a plan's root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from haproc.classify.model import Kind, RefusedError
from haproc.classify.options import check_property
from haproc.classify.plans import expressions, refusals
from haproc.classify.plans.delta_messages import DeltaCommand, DeltaRelation
from haproc.classify.plans.members import members
from haproc.classify.plans.names import name_in
from haproc.classify.plans.parsing import parse
from haproc.classify.plans.reading import Does, PlanFindings, PlanReading
from haproc.failure import ErrorClass

EXTENSIONS_MAX: Final = 200
"""In one plan; each is parsed by itself. Chosen, not measured."""
READING: Final = members("scan describe_history describe_detail is_delta_table")
VERSIONS: Final = "versions of a table"
"""Named among a plan's relations where it tells such, which differ from cluster to cluster."""

Walk = Callable[[Any, PlanFindings], None]


def relation_in(extension: Any, found: PlanFindings) -> Any:
    """Return Delta's relation in an extension; RefusedError if it is another's."""
    return _unpacked(extension, DeltaRelation, found)


def kind_of(message: Any) -> str:
    """Return which relation or command is set; RefusedError unless it is one."""
    kinds: list[str] = [each.name for each, _ in message.ListFields()]
    if len(kinds) != 1:
        raise refusals.unknown("an extension of Delta's of no kind that there is")
    return kinds[0]


def read_nested(extension: Any, found: PlanFindings) -> None:
    """Take what stands inside a plan; RefusedError unless it only reads."""
    relation = relation_in(extension, found)
    kind = kind_of(relation)
    if kind not in READING:
        raise refusals.nested(f"DeltaTable's {kind}")
    message = getattr(relation, kind)
    if kind == "is_delta_table":
        found.paths.add(message.path)
    elif message.table.HasField("path"):
        found.paths.add(message.table.path.path)
        found.names_known = False
    else:
        found.names.add(name_in(message.table.table_or_view_name, "is read"))
    if kind != "scan":
        found.relations.add(VERSIONS)


def read_root(relation: Any, found: PlanFindings, walk: Walk) -> PlanReading:
    """Return what a relation does that writes, and is all of a plan."""
    kind = kind_of(relation)
    message = getattr(relation, kind)
    if kind not in WRITING:
        raise refusals.unknown(f"DeltaTable's {kind}")
    expressions.take(message, found)
    if kind == "merge_into_table":
        walk(message.source, found)
    return WRITING[kind](message, found)


def read_command(extension: Any) -> PlanReading:
    """Return what a command of Delta's does."""
    found = PlanFindings()
    command = _unpacked(extension, DeltaCommand, found)
    kind = kind_of(command)
    if kind not in COMMANDS:
        raise refusals.unknown(f"DeltaTable's {kind}")
    return COMMANDS[kind](getattr(command, kind), found)


def _unpacked(extension: Any, kind: Any, found: PlanFindings) -> Any:
    if extension.type_url.rpartition("/")[2] != kind.DESCRIPTOR.full_name:
        raise refusals.unknown(f"an extension of type {extension.type_url[:100]}")
    found.extensions += 1
    if found.extensions > EXTENSIONS_MAX:
        raise RefusedError(
            ErrorClass.STATEMENT_TOO_COMPLEX,
            f"the plan reads DeltaTables more than {EXTENSIONS_MAX} times",
            "use spark.table(…) instead, or do it in several steps",
        )
    return parse(kind, extension.value)


def _name(table: Any) -> tuple[str, ...]:
    if table.HasField("path"):
        raise refusals.files(f"DeltaTable.forPath({table.path.path!r}) names files")
    return name_in(table.table_or_view_name, "is written")


def _scanned(relation: Any, found: PlanFindings) -> tuple[str, ...]:
    """Return the name of the table that an UPDATE, DELETE or MERGE is for, alias or not."""
    kind = relation.WhichOneof("rel_type")
    while kind == "subquery_alias":
        relation = relation.subquery_alias.input
        kind = relation.WhichOneof("rel_type")
    scan = relation_in(relation.extension, found) if kind == "extension" else None
    if scan is None or kind_of(scan) != "scan":
        raise refusals.unknown("a target that is no DeltaTable")
    return _name(scan.scan.table)


def _changes(kind: Kind) -> Callable[[Any, PlanFindings], PlanReading]:
    def changed(message: Any, found: PlanFindings) -> PlanReading:
        evolves = kind is Kind.MERGE and message.with_schema_evolution
        target = _scanned(message.target, found)
        return found.reading(Does.WRITES, kind, target=target, evolves=evolves)

    return changed


def _optimize(message: Any, found: PlanFindings) -> PlanReading:
    found.expressions += message.partition_filters
    return found.reading(Does.WRITES, Kind.OPTIMIZE, target=_name(message.table))


def _restore(message: Any, found: PlanFindings) -> PlanReading:
    raise RefusedError(
        ErrorClass.NONDETERMINISTIC,
        "each cluster numbers and dates the versions of its tables itself",
        "write the rows that the table should hold",
    )


def _convert(message: Any, found: PlanFindings) -> PlanReading:
    target = name_in(message.identifier, "is converted")
    return found.reading(Does.WRITES, Kind.OTHER_DDL, target=target)


WRITING: Final[dict[str, Callable[[Any, PlanFindings], PlanReading]]] = {
    "delete_from_table": _changes(Kind.DELETE),
    "update_table": _changes(Kind.UPDATE),
    "merge_into_table": _changes(Kind.MERGE),
    "optimize_table": _optimize,
    "restore_table": _restore,
    "convert_to_delta": _convert,
}
"""Relations that write."""


def _named(kind: Kind) -> Callable[[Any, PlanFindings], PlanReading]:
    def told(message: Any, found: PlanFindings) -> PlanReading:
        return found.reading(Does.WRITES, kind, target=_name(message.table))

    return told


def _check_properties(properties: Mapping[str, str]) -> None:
    for key in properties:
        check_property(key.lower())


def _create(message: Any, found: PlanFindings) -> PlanReading:
    if not message.HasField("table_name"):
        raise refusals.files(f"a table at {message.location!r} without a name")
    if message.HasField("location"):
        found.paths.add(message.location)
    _check_properties(message.properties)
    for column in message.columns:
        if column.HasField("generated_always_as"):
            found.expressions.append(column.generated_always_as)
    target = name_in(message.table_name, "is created")
    return found.reading(Does.WRITES, Kind.CREATE_TABLE, target=target)


def _clone(message: Any, found: PlanFindings) -> PlanReading:
    _check_properties(message.properties)
    found.names.add(_name(message.table))
    if message.HasField("version") or message.HasField("timestamp"):
        found.relations.add(VERSIONS)
    target = name_in(message.target, "is cloned to")
    return found.reading(Does.WRITES, Kind.CREATE_TABLE_AS, target=target)


def _feature(message: Any, found: PlanFindings) -> PlanReading:
    check_property(f"delta.feature.{message.feature_name.lower()}")
    return found.reading(Does.WRITES, Kind.ALTER_TABLE, target=_name(message.table))


COMMANDS: Final[dict[str, Callable[[Any, PlanFindings], PlanReading]]] = {
    "clone_table": _clone,
    "vacuum_table": _named(Kind.VACUUM),
    "upgrade_table_protocol": _named(Kind.ALTER_TABLE),
    "generate": _named(Kind.OTHER_DDL),
    "create_delta_table": _create,
    "add_feature_support": _feature,
    "drop_feature_support": _feature,
}
