"""Tests of the values of string literals."""

from __future__ import annotations

import pytest

from haproc.classify.tokens import adjacent, decoded, tokenize
from tests.readings.classified import classified
from tests.unit.string_literals import LITERALS


@pytest.mark.parametrize(("literal", "expected"), LITERALS)
def test_adjacent_of_a_literal_gives_the_value_that_spark_reads(
    literal: str, expected: str
) -> None:
    tokens = list(tokenize(literal))
    assert adjacent(tokens, 0) == (expected, len(tokens))


def test_decoded_of_dollar_quotes_gives_the_text_between_them() -> None:
    assert decoded("$$it's \\n$$") == "it's \\n"
    assert decoded("$x$a $$ b$x$") == "a $$ b"


@pytest.mark.parametrize("literal", ["'a.b'", "r'a.b'", "'a\\u002eb'", "'`a`.b'", "'a.' 'b'"])
def test_identifier_of_a_literal_in_any_form_is_the_name(literal: str) -> None:
    statement = classified(f"DELETE FROM IDENTIFIER({literal})")
    assert statement.writes == {"spark_catalog.a.b"}
