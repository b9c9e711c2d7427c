"""Where the query begins inside INSERT and CREATE TABLE … AS."""

from __future__ import annotations

from dataclasses import dataclass

from haproc.pin.scan import Scan


@dataclass(frozen=True, slots=True)
class Split:
    """Token places: the statement proper begins at ``head`` (behind a leading WITH clause, which
    is tokens 0 to ``head``), its target's name ends before ``target_end``, the query begins at
    ``query``.
    """

    head: int
    target_end: int
    query: int


def split_insert(scan: Scan) -> Split | None:
    """Split ``[WITH …] INSERT … query``; None for several inserts in one or what is not clear."""
    head = 0
    if scan.word(0) == "WITH":
        head = next(
            (i for i in range(len(scan.tokens)) if not scan.depth[i] and scan.word(i) == "INSERT"),
            -1,
        )
    if head < 0 or scan.word(head) != "INSERT" or scan.word(head + 1) not in ("INTO", "OVERWRITE"):
        return None
    at = head + 2
    while scan.word(at) in ("TABLE", "LOCAL", "DIRECTORY"):
        at += 1
    return _find_query(scan, head, _name_end(scan, at))


def split_create(scan: Scan) -> Split | None:
    """Split ``CREATE [OR REPLACE] TABLE … [AS] query`` and ``REPLACE TABLE …``."""
    at = next((i for i in range(min(8, len(scan.tokens))) if scan.word(i) == "TABLE"), -1)
    if at < 0:
        return None
    at += 1
    while scan.word(at) in ("IF", "NOT", "EXISTS"):
        at += 1
    return _find_query(scan, 0, _name_end(scan, at))


def _name_end(scan: Scan, at: int) -> int:
    if scan.word(at) == "IDENTIFIER" and scan.symbol(at + 1) == "(":
        return scan.closing[at + 1] + 1
    at += 1
    while scan.symbol(at) == "." and at + 1 < len(scan.tokens):
        at += 2
    return at


def _find_query(scan: Scan, head: int, target_end: int) -> Split | None:
    for at in range(target_end, len(scan.tokens)):
        if not scan.depth[at] and scan.starts_query(at):
            return Split(head, target_end, at)
    return None
