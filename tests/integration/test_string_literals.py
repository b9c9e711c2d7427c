"""Test of HAProc's reading of string literals against Spark's own."""

from __future__ import annotations

import random

import pytest

from haproc.classify.tokens import TokenKind, UnclosedError, adjacent, tokenize
from haproc.engine.connect import SparkConnectEngine
from tests.integration.engine_calls import rows
from tests.unit.string_literals import LITERALS, PIECES

pytestmark = pytest.mark.spark
COUNT = 1000
COLUMNS = 100


def strange(chance: random.Random) -> str:
    """One to three adjacent strings, or text that looks like them."""
    parts = []
    for _ in range(chance.randint(1, 3)):
        quote = chance.choice("'\"")
        body = "".join(chance.choice(PIECES) for _ in range(chance.randint(0, 6)))
        parts.append(f"{chance.choice(['', '', 'r', 'R'])}{quote}{body}{quote}")
    return chance.choice([" ", "", " -- c\n", "/* ' */"]).join(parts)


def strange_ones(seed: int) -> list[str]:
    chance, found = random.Random(seed), list[str]()
    while len(found) < COUNT:
        text = strange(chance)
        try:
            if all(token.kind is TokenKind.STRING for token in tokenize(text)):
                found.append(text)
        except UnclosedError:
            pass
    return found


@pytest.mark.thorough
async def test_string_literals_of_any_spelling_have_the_value_that_spark_reads(
    engine: SparkConnectEngine,
) -> None:
    session = engine.session("strings")
    literals = [literal for literal, _ in LITERALS] + strange_ones(seed=1)
    differing = []
    for start in range(0, len(literals), COLUMNS):
        chunk = literals[start : start + COLUMNS]
        # The line break ends a comment that may stand last.
        items = ", ".join(f"{literal}\n AS c{at}" for at, literal in enumerate(chunk))
        (answer,) = await rows(session, f"SELECT {items}")
        ours = [adjacent(list(tokenize(literal)), 0)[0] for literal in chunk]
        pairs = zip(chunk, ours, answer, strict=True)
        differing += [(literal, us, spark) for literal, us, spark in pairs if us != spark]
    await session.aclose()
    assert differing == []
