"""Writes docs/statements.md from the closed lists of the judge.

Usage: python scripts/statement_table.py [--check]: with --check it writes nothing, and ends with 1
if the document is not what the lists say.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from haproc.reading import known

DOCUMENT = Path(__file__).parents[1] / "docs" / "statements.md"
_BEGIN = """\
# What a statement may hold

Written by `python scripts/statement_table.py` from `haproc/reading/known.py`: change the lists,
not this. The names are those of Spark's classes, as `haproc classify --server … --tree` shows
them; of a function it is the class that counts, however it is called. What stands in no list
counts as differing from cluster to cluster. How a statement is judged is in
[design.md](design.md#making-operations-the-same-everywhere).
"""
_VALUES = "One value for the whole statement: it becomes a literal at its place in the text"
_ROWS = "Differs: the query that it stands in is replicated as its rows; elsewhere it is refused"
_NEVER = "Not run at all"
_IF = "The same everywhere under a condition; else as what differs"
_EXACT = (
    "The same everywhere, under the conditions above where it is named there: it stands as it is"
)


def document() -> str:
    """Return the whole text of the document."""
    values = {
        "the clock": known.CLOCK,
        "the session's user, catalog, schema and time zone": known.IDENTITY,
        "variables of the session": ["VariableReference"],
    }
    conditional = frozenset().union(*known.CONDITIONS.values())
    differing = {f"it {said}": found - conditional for said, found in known.REASONS.items()}
    exact = {"operators": known.OPERATORS, "expressions": known.EXPRESSIONS}
    parts = [
        _BEGIN,
        _section(_VALUES, values),
        _section(_ROWS, differing),
        _section(_NEVER, {"code outside SQL": known.FOREIGN}),
        _section(_IF, known.CONDITIONS),
        _section(_EXACT, exact),
    ]
    return "\n".join(parts)


def _section(title: str, entries: Mapping[str, Iterable[str]]) -> str:
    lines = [f"## {title}", ""]
    for said, classes in entries.items():
        text = f"- *{said}*: {', '.join(sorted(classes))}"
        lines += textwrap.wrap(text, 100, subsequent_indent="  ")
    return "\n".join([*lines, ""])


def main() -> int:
    """Write the document, or check it; return the exit code."""
    text = document()
    if "--check" in sys.argv[1:]:
        return int(DOCUMENT.read_text(encoding="utf-8") != text)
    DOCUMENT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
