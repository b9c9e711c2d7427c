"""What a query's text alone says of whether it gives the same wherever and whenever it is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from haproc.classify.tokens import LexicalError
from haproc.pin.examine import Doubt, Examination, Finding
from haproc.pin.inline import UnclearError, made_items
from haproc.pin.model import Moment
from haproc.pin.scan import Scan

_ANY_MOMENT: Final = Moment(datetime(2000, 1, 1, tzinfo=UTC), 0, "UTC", "", "", "")


@dataclass(frozen=True, slots=True)
class Differing:
    """What could differ; nothing where ``reasons`` is empty.

    ``dispellable``: all of it is only doubtful, and Spark's analysis may show that nothing differs.
    ``unknown`` are the functions that are not Spark's own, without their schemas, in lower case.
    """

    reasons: tuple[str, ...] = ()
    dispellable: bool = False
    unknown: frozenset[str] = frozenset()

    @classmethod
    def of(cls, findings: Sequence[Finding], unknown: frozenset[str]) -> Differing:
        """Return what findings come to."""
        found = dict.fromkeys(findings)
        doubtful = bool(found) and all(each.doubt is not Doubt.CERTAIN for each in found)
        return cls(tuple(each.reason for each in found), doubtful, unknown)


def text_findings(text: str) -> tuple[list[Finding], frozenset[str]]:
    """Return what in a query could differ, and which functions in it are not Spark's own."""
    try:
        examination = Examination(Scan(text), _ANY_MOMENT)
    except LexicalError as error:
        return [Finding(str(error))], frozenset()
    examination.stretch(0, len(examination.scan.tokens))
    try:
        computed = [
            Finding(f"Spark computes {item[:60]} before it shows what it is")
            for item in made_items(examination.scan)
        ]
    except UnclearError as error:
        computed = [Finding(str(error))]
    replaced = [
        Finding(f"{text[each.start : each.end]} is another value on every cluster")
        for each in examination.replacements
    ]
    return [*examination.findings, *replaced, *computed], frozenset(examination.unknown)


def query_differing(text: str) -> Differing:
    """Return what in a query could differ."""
    return Differing.of(*text_findings(text))
