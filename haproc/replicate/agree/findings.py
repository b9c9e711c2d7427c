"""Which clusters hold the same, judged from the checksums that they put into the log.

Table by table, the majority is right; between equal numbers the cluster that was asked to verify
is, else nobody is. A cluster that is known to differ has no vote while there is one that is not,
and cannot be found equal without having been compared with another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from haproc.replicate.records.contents import Checksums

ABSENT = "absent"
"""Stands for the checksum of a table that a cluster does not have."""


class Finding(StrEnum):
    """What a verification says of a cluster, or of a table on it."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    """It could not be read or compared, or clusters differ and nothing says which is right."""
    UNAVAILABLE = "unavailable"
    """The cluster said nothing."""


@dataclass(frozen=True, slots=True)
class Findings:
    """``tables``: for each table, what is found of each cluster.

    ``tied``: tables on which clusters differ, and nothing says which is right.
    """

    tables: Mapping[str, Mapping[str, Finding]]
    clusters: Mapping[str, Finding]
    tied: tuple[str, ...] = ()

    def different(self, cluster: str) -> list[str]:
        """Return the tables that a cluster has wrong."""
        found = self.tables.items()
        return sorted(table for table, by in found if by[cluster] is Finding.DIFFERENT)

    def counted(self, cluster: str) -> dict[str, int]:
        """Return how many of the tables are found so on a cluster, by finding."""
        counts = Counter(by[cluster] for by in self.tables.values())
        return {finding.value: counts[finding] for finding in Finding}


def compare(records: Mapping[str, Checksums], ring: Iterable[str], origin: str) -> Findings:
    """Judge all clusters of the ring by the records that there are."""
    names = list(ring)
    told = {name: records[name] for name in names if name in records and not records[name].error}
    voters = {name for name, record in told.items() if not record.marked}
    if not voters and told.keys() == set(names):
        voters = set(told)
    tables: dict[str, dict[str, Finding]] = {}
    tied: list[str] = []
    for table in sorted({table for record in told.values() for table in record.tables}):
        sums = {name: record.tables.get(table, ABSENT) for name, record in told.items()}
        right = _right(sums, voters, origin)
        tables[table] = {name: _found(name, sums, right) for name in names}
        tied += [table] * (len(right) > 1)
    clusters = {name: _cluster(name, names, told, voters, tables) for name in names}
    return Findings(tables, clusters, tuple(tied))


def _right(sums: Mapping[str, str], voters: set[str], origin: str) -> set[str]:
    """Return the checksums that may be the right one."""
    votes = Counter(sums[name] for name in voters if sums[name])
    most = max(votes.values(), default=0)
    right = {value for value, count in votes.items() if count == most}
    return {sums[origin]} if origin in voters and sums[origin] in right else right


def _found(name: str, sums: Mapping[str, str], right: set[str]) -> Finding:
    if name not in sums:
        return Finding.UNAVAILABLE
    if not sums[name] or not right:
        return Finding.UNDECIDED
    if sums[name] not in right:
        return Finding.DIFFERENT
    return Finding.EQUAL if len(right) == 1 else Finding.UNDECIDED


def _cluster(
    name: str,
    names: list[str],
    told: Mapping[str, Checksums],
    voters: set[str],
    tables: Mapping[str, Mapping[str, Finding]],
) -> Finding:
    if name not in told:
        return Finding.UNAVAILABLE
    found = {by[name] for by in tables.values()}
    for finding in (Finding.DIFFERENT, Finding.UNDECIDED):
        if finding in found:
            return finding
    others = (voters if told[name].marked else told.keys()) - {name}
    compared = bool(others) or len(names) == 1
    return Finding.EQUAL if compared else Finding.UNDECIDED
