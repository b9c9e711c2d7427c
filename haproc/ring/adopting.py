"""Compares the tables of all clusters with those of the source: the cluster that the others copy.

Clusters that had tables before they became a ring may differ, but the clusters of a ring must be
equal. A cluster that differs from the source becomes a copy of it as a whole; an equal cluster is
left alone. If the source holds something that cannot be copied, nothing is copied at all.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from dmq import Json

_OWNER: Final = frozenset({"owner", "transient_lastDdlTime", "sqlFunction.createTime"})
"""The properties of objects that are not compared: they depend on the user and the time of the
making."""
_MARKS: Final = ("view.sqlConfig.spark.databricks.delta.", "sqlConfig.spark.databricks.delta.")
"""The prefixes of properties that are not compared: Delta's settings in the session that made a
view or function. Neither depends on them."""
_SQL_FUNCTION: Final = "sqlFunction."
"""The text `class` of a function that is written in SQL. Its definition is in its resources: JSON,
cut into numbered pieces."""
_NUMBER_CHARACTERS: Final = 3
_PHYSICAL: Final = ("delta.columnMapping.", "delta.rowTracking.materialized")
"""The prefixes of properties that are not compared: Delta chose them for a table itself, such as
the names of columns in files."""
_CLUSTERING: Final = "delta.clustering"


class Sort(StrEnum):
    """The kinds of objects that a cluster can hold."""

    CATALOG = "catalog"
    """A catalog other than ``spark_catalog``. Its content is not compared."""
    SCHEMA = "schema"
    TABLE = "table"
    VIEW = "view"
    FUNCTION = "function"


class Difference(StrEnum):
    """How an object on a cluster differs from the same object on the source."""

    MISSING = "missing"
    EXTRA = "only there"
    COLUMNS = "other columns"
    DEFINITION = "other definition"
    """The definition of a view or function differs, or the properties of a table or schema."""
    ROWS = "other rows"


@dataclass(frozen=True, slots=True)
class Held:
    """One object of a cluster, as texts that are equal if the object is equal on two clusters.

    ``rows``: the number of rows; None if it is no table, or cannot be read. ``content``: the rows'
    checksum.
    """

    sort: Sort
    name: str
    definition: str = ""
    columns: str = ""
    rows: int | None = None
    content: str = ""

    @property
    def key(self) -> tuple[Sort, str]:
        """The object's kind and name."""
        return self.sort, self.name


@dataclass(frozen=True, slots=True)
class Holdings:
    """All objects of a cluster; those that cannot be copied are also in pairs (name, reason)."""

    things: tuple[Held, ...] = ()
    not_copied: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Differing:
    """An object on a cluster that differs from the source's.

    ``rows``: its number of rows on this cluster; ``source_rows``: on the source.
    """

    sort: Sort
    name: str
    difference: Difference
    rows: int | None
    source_rows: int | None


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """A cluster's objects, and those that differ from the source's (none for the source itself)."""

    holdings: Holdings
    differing: tuple[Differing, ...]

    @property
    def counts(self) -> Mapping[Sort, int]:
        """The number of the cluster's objects of each kind."""
        return Counter(each.sort for each in self.holdings.things)

    @property
    def rows(self) -> int:
        """The number of rows in all tables of the cluster."""
        return sum(each.rows or 0 for each in self.holdings.things)


@dataclass(frozen=True, slots=True)
class Report:
    """All clusters compared with the source: what an adoption will do."""

    source: str
    clusters: Mapping[str, ClusterReport]

    @property
    def copies(self) -> list[str]:
        """The names of the clusters that will become copies of the source."""
        return [name for name, each in self.clusters.items() if each.differing]

    @property
    def refusals(self) -> list[str]:
        """The reasons why no copy can be made; empty if all can be made, or none is needed."""
        if not self.copies:
            return []
        found = [
            f"{self.source} holds {name}, which cannot be copied: {why}; make a Delta table of it, "
            "or drop it"
            for name, why in self.clusters[self.source].holdings.not_copied
        ]
        for cluster, each in self.clusters.items():
            found += [
                f"{cluster} has the catalog {one.name}, which a copy leaves as it is; "
                "take it out of its settings"
                for one in each.differing
                if one.sort is Sort.CATALOG and one.difference is not Difference.MISSING
            ]
        return found

    def json(self) -> dict[str, Json]:
        """Return the report as JSON."""
        return {
            "source": self.source,
            "refusals": [*self.refusals],
            "clusters": {name: self._cluster(name, each) for name, each in self.clusters.items()},
        }

    def _cluster(self, name: str, report: ClusterReport) -> Json:
        return {
            **{f"{sort}s": report.counts.get(sort, 0) for sort in Sort},
            "rows": report.rows,
            "becomes_copy": name in self.copies,
            "differing": [asdict(each) for each in report.differing],
            "not_copied": [
                {"name": each, "reason": why} for each, why in report.holdings.not_copied
            ],
        }


def compare(source: str, clusters: Mapping[str, Holdings]) -> Report:
    """Compare the objects of all clusters (their ``Holdings`` by name) with those of ``source``."""
    model = {each.key: each for each in clusters[source].things}
    return Report(
        source,
        {
            name: ClusterReport(each, tuple(_differing(model, each.things)))
            for name, each in clusters.items()
        },
    )


def _differing(
    model: Mapping[tuple[Sort, str], Held], things: Iterable[Held]
) -> Iterable[Differing]:
    here = {each.key: each for each in things}
    for key in sorted({*model, *here}):
        wanted, found = model.get(key), here.get(key)
        difference = _difference(wanted, found)
        if difference is not None:
            rows, source_rows = (each.rows if each else None for each in (found, wanted))
            yield Differing(*key, difference, rows, source_rows)


def _difference(wanted: Held | None, found: Held | None) -> Difference | None:
    if found is None:
        return Difference.MISSING
    if wanted is None:
        return Difference.EXTRA
    if wanted.columns != found.columns:
        return Difference.COLUMNS
    if wanted.definition != found.definition:
        return Difference.DEFINITION
    if (wanted.rows, wanted.content) != (found.rows, found.content):
        return Difference.ROWS
    return None


# -- texts that are equal if the objects are --------------------------------------------------


def definition_of(answer: Mapping[str, Any]) -> str:
    """Return the definition of a schema, view or function, as a text that can be compared.

    ``answer``: the plugin's JSON for the object.
    """
    text = {**answer, "properties": _properties(answer.get("properties") or {})}
    if answer.get("class") == _SQL_FUNCTION:
        pieces = sorted(str(uri) for _, uri in answer["resources"])
        joined = "".join(piece[_NUMBER_CHARACTERS:] for piece in pieces)
        text["resources"] = _properties(json.loads(joined))
    return _text(text)


def _properties(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return those of an object's properties that are compared between clusters."""
    return {k: v for k, v in properties.items() if k not in _OWNER and not k.startswith(_MARKS)}


def table_of(actions: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Return a Delta table's definition and its columns, as texts that can be compared.

    ``actions``: the actions that make up its state in Delta's log.
    """
    definition: dict[str, Any] = {}
    columns = ""
    for action in actions:
        if meta := action.get("metaData"):
            columns = _text(_columns(json.loads(meta["schemaString"])))
            definition["comment"] = meta.get("description")
            definition["partitions"] = meta.get("partitionColumns")
            definition["properties"] = {
                key: value
                for key, value in (meta.get("configuration") or {}).items()
                if not key.startswith((*_PHYSICAL, "delta.inCommitTimestampEnablement"))
                or key == "delta.columnMapping.mode"
            }
        domain = action.get("domainMetadata") or {}
        if domain.get("domain") == _CLUSTERING:
            definition["clustering"] = domain.get("configuration")
    return _text(definition), columns


def _columns(value: Any) -> Any:
    """Return a Delta schema (as JSON) without the properties that Delta chose itself."""
    if isinstance(value, dict):
        return {k: _columns(v) for k, v in value.items() if not k.startswith(_PHYSICAL)}
    return [_columns(each) for each in value] if isinstance(value, list) else value


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
