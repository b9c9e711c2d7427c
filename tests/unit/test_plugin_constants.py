"""What the plugin's Java must say as HAProc's Python does."""

from __future__ import annotations

import re

from haproc.classify import allowed
from haproc.classify.names import OWN_SCHEMAS, PATH_FORMATS, STAGING_SCHEMA
from haproc.engine.server import SOURCES


def constant(source: str, name: str) -> str:
    """Return what a constant is made of, without quotes that only go on in the next line."""
    text = (SOURCES / source).read_text(encoding="utf-8")
    found = re.search(rf" {name} =\s+(.*?);\n", text, re.DOTALL)
    assert found is not None
    return re.sub(r'"\s*\+\s*"', "", found[1])


def test_formats_whose_names_are_paths_are_the_same() -> None:
    assert set(re.findall(r'"(\w+)"', constant("Files.java", "FORMATS"))) == PATH_FORMATS


def test_names_of_options_are_told_by_the_same_patterns() -> None:
    for name, pattern in (("LOCATING", allowed._LOCATING), ("OF_FORMATS", allowed._OF_FORMATS)):
        said = re.search(r'"(.*)"', constant("Files.java", name))
        assert said is not None
        assert said[1].replace("\\\\", "\\") == pattern.pattern


def test_schemas_of_our_own_are_the_same() -> None:
    assert STAGING_SCHEMA in constant("Guard.java", "STAGING")
    said = constant("Guard.java", "OWN").replace("STAGING", f'"{STAGING_SCHEMA}"')
    assert set(re.findall(r'"(\w+)"', said)) == OWN_SCHEMAS
