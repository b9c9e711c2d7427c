"""Regular expressions mean the same in every Python that is supported."""

from __future__ import annotations

import re

from tests.unit.test_layering import ROOT, modules

POSSESSIVE_GROUP = re.compile(r"\)[*+?]\+")
"""Python before 3.11.5, such as Debian's own, gets these wrong: a cut of CSV never ended."""


def test_groups_are_atomic_and_not_possessive() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in modules()
        if POSSESSIVE_GROUP.search(path.read_text())
    ]
    assert found == []
