"""Tests that constants in the plugin's Java are the same as in HAProc's Python."""

from __future__ import annotations

import re

from haproc.classify import allowed
from haproc.classify.names import OWN_SCHEMAS, PATH_FORMATS, STAGING_SCHEMA
from haproc.engine.server import SOURCES


def constant(source: str, name: str) -> str:
    """Return the definition of a constant, its string parts on several lines joined."""
    text = (SOURCES / source).read_text(encoding="utf-8")
    found = re.search(rf" {name} =\s+(.*?);\n", text, re.DOTALL)
    assert found is not None
    return re.sub(r'"\s*\+\s*"', "", found[1])


def test_formats_whose_table_names_are_paths_are_the_same() -> None:
    assert set(re.findall(r'"(\w+)"', constant("Files.java", "FORMATS"))) == PATH_FORMATS


def test_patterns_of_option_names_are_the_same() -> None:
    for name, pattern in (("LOCATING", allowed._LOCATING), ("OF_FORMATS", allowed._OF_FORMATS)):
        definition = re.search(r'"(.*)"', constant("Files.java", name))
        assert definition is not None
        assert definition[1].replace("\\\\", "\\") == pattern.pattern


def test_schemas_of_haproc_are_the_same() -> None:
    assert STAGING_SCHEMA in constant("Guard.java", "STAGING")
    definition = constant("Guard.java", "OWN").replace("STAGING", f'"{STAGING_SCHEMA}"')
    assert set(re.findall(r'"(\w+)"', definition)) == OWN_SCHEMAS
