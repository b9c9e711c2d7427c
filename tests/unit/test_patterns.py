"""Tests that regular expressions mean the same in every supported Python."""

from __future__ import annotations

import re

from tests.unit.test_layering import ROOT, modules

POSSESSIVE_GROUP = re.compile(r"\)[*+?]\+")
"""Python before 3.11.5, such as Debian's, runs these wrongly: cutting a CSV never ended."""


def test_regular_expressions_use_no_possessive_groups() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in modules()
        if POSSESSIVE_GROUP.search(path.read_text())
    ]
    assert found == []
