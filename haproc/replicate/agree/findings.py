"""Which clusters hold the same, by the checksums in the log, and which ones are wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from haproc.replicate.records.contents import Checksums
from haproc.replicate.records.progress import TEXT_CHARACTERS_MAX

# Which clusters are wrong when some of them differ: only a majority proves it.


def right_of(votes: Iterable[str], absent: int) -> str | None:
    """Return what is right; None where nothing proves it.

    ``votes``: what each cluster that may vote has. ``absent``: how many may vote later. What all
    have is right; where they differ, what more than half have, counting those that are absent: so
    no later vote can turn it.
    """
    counts = Counter(votes)
    if not counts:
        return None
    word, most = counts.most_common(1)[0]
    alike = len(counts) == 1
    return word if alike or 2 * most > counts.total() + absent else None


def is_odd(me: str, outcomes: Mapping[str, str], absent: int) -> bool:
    """Whether this cluster is one that is proven to differ; in a tie nobody is.

    ``outcomes`` holds a comparable word for each cluster whose outcome is known.
    """
    right = right_of(outcomes.values(), absent)
    return right is not None and outcomes[me] != right


def tied(outcomes: Mapping[str, str], absent: int) -> bool:
    """Whether outcomes differ and nothing proves which of them is right."""
    return right_of(outcomes.values(), absent) is None


# Which clusters hold the same, judged from the checksums that they put into the log.
#
# Table by table, the majority is right (`right_of`); where there is none, nobody is found to
# differ, unless an operator has said in the marker which cluster is to be trusted: then its tables
# are right, and until it has told them nothing is decided. A cluster that is known to differ has
# no vote while there is one that is not, and cannot be found equal without having been compared
# with another one.


ABSENT = "absent"
"""Stands for the checksum of a table that a cluster does not have."""
_PARTS_OF_A_TABLE: Final = 3


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

    ``differing``: what each cluster has of each table that is not the same everywhere, for people.
    ``tied``: those of them for which nothing says which is right.
    """

    tables: Mapping[str, Mapping[str, Finding]]
    clusters: Mapping[str, Finding]
    differing: Mapping[str, Mapping[str, str]]
    tied: tuple[str, ...] = ()

    def different(self, cluster: str) -> list[str]:
        """Return the tables that a cluster has wrong."""
        found = self.tables.items()
        return sorted(table for table, by in found if by[cluster] is Finding.DIFFERENT)

    def counted(self, cluster: str) -> dict[str, int]:
        """Return how many of the tables are found so on a cluster, by finding."""
        counts = Counter(by[cluster] for by in self.tables.values())
        return {finding.value: counts[finding] for finding in Finding}


def compare(records: Mapping[str, Checksums], ring: Iterable[str], trusted: str = "") -> Findings:
    """Judge all clusters of the ring by the records that there are.

    ``trusted``: the cluster whose tables are right; empty: the majority's are.
    """
    names = list(ring)
    told = {name: records[name] for name in names if name in records and not records[name].error}
    voters = {name for name, record in told.items() if not record.marked}
    if not voters and told.keys() == set(names):
        voters = set(told)
    absent = len(set(names) - records.keys())
    tables: dict[str, dict[str, Finding]] = {}
    differing: dict[str, dict[str, str]] = {}
    tied: list[str] = []
    for table in sorted({table for record in told.values() for table in record.tables}):
        sums = {name: record.tables.get(table, ABSENT) for name, record in told.items()}
        if trusted:
            right = sums.get(trusted) or None
        else:
            right = right_of(
                [sums[name] for name in names if name in voters and sums[name]], absent
            )
        tables[table] = {name: _found(name, sums, right) for name in names}
        if len({held for held in sums.values() if held}) > 1:
            differing[table] = {name: contents(held) for name, held in sums.items()}
            tied += [table] * (right is None)
    clusters = {name: _cluster(name, names, told, voters, tables) for name in names}
    return Findings(tables, clusters, differing, tuple(tied))


def contents(checksum: str) -> str:
    """Return what a checksum says, for people."""
    if not checksum:
        return "cannot be read"
    parts = checksum.split(":")
    if len(parts) == _PARTS_OF_A_TABLE:
        return f"{parts[0]} rows, sum {parts[1]}, columns {parts[2]}"
    return checksum if checksum == ABSENT else f"definition {checksum}"


def listed_names(names: Sequence[str]) -> str:
    """Return the names, or as many of them as there is room for beside a cursor."""
    text = ""
    for count, name in enumerate(names):
        longer = f"{text}, {name}" if text else name
        rest = f" and {len(names) - count} more"
        if len(longer.encode("unicode_escape")) > TEXT_CHARACTERS_MAX - len(rest):
            return text + rest if text else f"{len(names)} tables"
        text = longer
    return text


def _found(name: str, sums: Mapping[str, str], right: str | None) -> Finding:
    if name not in sums:
        return Finding.UNAVAILABLE
    if not sums[name] or right is None:
        return Finding.UNDECIDED
    return Finding.EQUAL if sums[name] == right else Finding.DIFFERENT


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
