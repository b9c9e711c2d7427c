"""What classification makes of a statement, for people and for machines.

A refused statement has a report too: it says why, and what would make it acceptable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from haproc.classify.classifier import classify, ruled
from haproc.classify.described import described
from haproc.classify.model import Classified, OperationClass, RefusedError, Touched
from haproc.classify.names import Context
from haproc.classify.rules import Rules


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of classifying one statement: either ``statement`` or ``refused``."""

    sql: str
    statement: Classified | None = None
    refused: RefusedError | None = None

    def as_dict(self) -> dict[str, object]:
        """Return the report for ``--json``."""
        if self.statement is not None:
            return described(self.statement)
        refused = self.refused
        return {
            "statement": self.sql,
            "refused": None
            if refused is None
            else {
                "error_class": refused.error_class,
                "reason": refused.message,
                "hint": refused.hint,
            },
        }

    def as_text(self) -> str:
        """Return the report as lines of a name and a value."""
        return "\n".join(lines_of(self.as_dict()))


def report(
    sql: str,
    context: Context,
    rules: Rules,
    override: OperationClass | None = None,
) -> Report:
    """Classify a statement by its text alone and report on it, also if it is refused.

    Which rule decides is told if that does not rest on what the statement reads.
    """
    try:
        found = classify(sql, context, rules, override)
        written = Touched(found.writes)
        is_told = bool(found.rules) and found.rules[0].fits(found.kind, written)
        return Report(sql, ruled(found, written, override) if is_told else found)
    except RefusedError as error:
        return Report(sql, refused=error)


def lines_of(values: Mapping[str, object]) -> list[str]:
    """Return values for people to read, a line each."""
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
