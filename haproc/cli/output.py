"""The output of commands: tables for people, JSON for machines, errors, classes of statements."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from haproc.classify.classifier import Unparsed, classify, decided, ruled
from haproc.classify.model import (
    Classified,
    Kind,
    OperationClass,
    Recognised,
    RefusedError,
    Touched,
)
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.classify.showing import described

FAILED = 1
USAGE = 2
NOT_READY = 3


_ACTING: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that a terminal acts on instead of showing them: controls, and marks of a text's
direction. Also halves of characters, which cannot be printed."""


def harmless(text: str) -> str:
    """Return a text of unknown origin as one line that a terminal can show safely."""
    return _shown(text).replace("\n", "\\n")


def _shown(text: str) -> str:
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def line(text: str) -> None:
    """Print a text of unknown origin as one line."""
    print(harmless(text))


def error(message: str) -> None:
    """Print an error message to standard error."""
    print(f"haproc: {_shown(message)}", file=sys.stderr)


def dump(value: Any) -> None:
    """Print a value as JSON."""
    print(_shown(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table for people, with aligned columns."""
    lines = [list(header), *([harmless(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(cells[n]) for cells in lines) for n in range(len(header))]
    for cells in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        )


# A statement's classification, for people and for machines.
#
# A refused statement has a report, too, with the reason and the remedy. If its words are not enough
# to classify a statement, a running ring must do it.


@dataclass(frozen=True, slots=True)
class ClassifyReport:
    """What `haproc classify` reports on a statement.

    ``statement``: its class; ``refused``: why it is refused. Both are None if only Spark can
    decide.
    """

    sql: str
    statement: Classified | None = None
    refused: RefusedError | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the report as the JSON object that ``--json`` prints."""
        if self.statement is not None:
            return described(self.statement)
        if self.refused is not None:
            return {"statement": self.sql, "refused": _why(self.refused)}
        hint = "Spark's parser says what it is: name a running ring, with --ring or --server"
        return {"statement": self.sql, "kind": None, "hint": hint}

    def as_text(self) -> str:
        """Return the report as lines for people, each with a name and a value."""
        return "\n".join(lines_of(self.as_dict()))


def report(
    sql: str,
    context: Context,
    rules: Rules,
    override: OperationClass | None = None,
) -> ClassifyReport:
    """Classify a statement by its text alone, and return the report, also if it is refused.

    The deciding rule is named if it does not depend on the tables that the statement reads.
    """
    try:
        found = classify(sql, context, rules, override)
        if isinstance(found, Unparsed):
            return ClassifyReport(sql)
        written = Touched(found.writes)
        by_text_alone = bool(found.rules) and found.rules[0].fits(found.kind, written)
        return ClassifyReport(sql, ruled(found, written, override) if by_text_alone else found)
    except RefusedError as error:
        return ClassifyReport(sql, refused=error)


def under(report: Mapping[str, Any], rules: Rules, user: str) -> dict[str, Any]:
    """Return a ring's report on a statement with the class that ``rules`` give it.

    A statement that the ring itself refuses stays refused. The ring reports no expressions, so
    rules about expressions count as in doubt.
    """
    if "kind" not in report:
        return {**report}
    writes, known = frozenset(report["writes"]), bool(report.get("tables_known", True))
    recognised = Recognised(Kind(report["kind"]), writes=writes, tables_known=known)
    touched = Touched(writes | frozenset(report.get("reads", ())), known, expressions=None)
    try:
        found = decided(recognised, report["statement"], Context(user=user), rules)
        description = described(ruled(found, touched) if found.rules else found)
    except RefusedError as error:
        return {**report, "refused": _why(error)}
    return {**report, **description, "combinable": report.get("combinable")}


def _why(error: RefusedError) -> dict[str, str]:
    return {
        "error_class": str(error.error_class),
        "reason": error.message,
        "hint": error.hint,
    }


def lines_of(values: Mapping[str, object]) -> list[str]:
    """Return named values as lines for people, one value in each line."""
    return list(_lines(values))


def _lines(values: Mapping[str, object], indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        label = f"{indent}{name.replace('_', ' ')}:"
        if isinstance(value, Mapping):
            yield label
            yield from _lines(value, indent + "  ")
        else:
            yield f"{label:<14} {_text(value)}"


def _text(value: object) -> str:
    if value is None or value == [] or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    text = str(value)
    return text if len(text) <= 400 else f"{text[:400]}… ({len(text):,} characters)"
