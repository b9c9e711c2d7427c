"""Tests that the recorded readings belong to the corpus and can be read."""

from __future__ import annotations

import pytest

from tests.readings import corpus, golden


@pytest.mark.parametrize("name", corpus.names())
def test_recorded_readings_are_those_of_the_corpus(name: str) -> None:
    """If it fails, run `make readings`."""
    assert list(golden.part(name)) == corpus.statements(name)


def test_recorded_reading_has_places_within_the_text() -> None:
    wrong = []
    for statement, recorded in golden.everything():
        if recorded.error:
            continue
        reading = recorded.reading(statement)
        for tree in (reading.parsed, reading.analyzed):
            for node in tree.walk() if tree is not None else ():
                place = node.place
                if place and not 0 <= place.start <= place.end <= len(statement):
                    wrong.append((statement, node))
    assert wrong == []


def test_recorded_error_is_an_error_of_the_statement() -> None:
    accidents = {"INTERNAL_ERROR", "UNAVAILABLE", "UNKNOWN", "DEADLINE_EXCEEDED"}
    assert [each for each, entry in golden.everything() if entry.error in accidents] == []


def test_statement_of_the_corpus_is_written_as_its_line() -> None:
    for name in corpus.names():
        lines = (corpus.HERE / "corpus" / f"{name}.txt").read_text(encoding="utf-8").split("\n")
        kept = [line for line in lines if line and not line.startswith("#")]
        assert [corpus.line_of(each) for each in corpus.statements(name)] == kept
