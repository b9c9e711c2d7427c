"""Typical behaviour of the ring, compared with the traces in tests/golden/stories.

A difference is not always a fault: it shows that the ring behaves differently than before. Check
whether it should, and write the traces again.
"""

from __future__ import annotations

import difflib

import pytest

from tests.simulation.stories import FOLDER, STORIES, trace

HINT = "if that is what it should do now: make stories, and look at the difference in your commit"


@pytest.mark.parametrize("name", STORIES)
def test_story_matches_its_trace(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    now = trace(name)
    if now != before:
        lines = difflib.unified_diff(
            before.splitlines(), now.splitlines(), str(path.name), "now", lineterm=""
        )
        pytest.fail("\n".join(["the story goes otherwise:", *lines, HINT]), pytrace=False)


def test_traces_match_the_stories_and_are_short() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(STORIES)
    assert all(len(path.read_text().splitlines()) <= 70 for path in FOLDER.iterdir())
