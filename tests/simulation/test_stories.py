"""What the ring does in typical stories, held against the traces in tests/golden/stories.

A difference is no failure by itself: it says that the ring behaves otherwise than it did. Look
whether it should, and write the traces anew.
"""

from __future__ import annotations

import difflib

import pytest

from tests.simulation.stories import FOLDER, STORIES, trace

HINT = "if that is what it should do now: make stories, and look at the difference in your commit"


@pytest.mark.parametrize("name", STORIES)
def test_story_goes_as_its_trace_says(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    now = trace(name)
    if now != before:
        lines = difflib.unified_diff(
            before.splitlines(), now.splitlines(), str(path.name), "now", lineterm=""
        )
        pytest.fail("\n".join(["the story goes otherwise:", *lines, HINT]), pytrace=False)


def test_traces_are_those_of_the_stories_and_short_enough_to_be_read() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(STORIES)
    assert all(len(path.read_text().splitlines()) <= 70 for path in FOLDER.iterdir())
