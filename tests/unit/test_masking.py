"""Tests of masked statements, as other users may see them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from haproc.classify.showing import CUT, masked, masked_insert
from haproc.classify.tokens import LexicalError, TokenKind, literals, tokenize

STATEMENTS = Path(__file__).with_name("statements.txt").read_text().splitlines()


def found(sql: str) -> list[tuple[int, int]] | None:
    """Return the positions of literals by the lexer itself; None if it refuses the text."""
    kinds = (TokenKind.STRING, TokenKind.NUMBER)
    try:
        return [(token.start, token.end) for token in tokenize(sql) if token.kind in kinds]
    except LexicalError:
        return None


def found_fast(sql: str) -> list[tuple[int, int]] | None:
    try:
        return list(literals(sql))
    except LexicalError:
        return None


def test_literals_of_every_listed_statement_are_those_of_the_lexer() -> None:
    assert [sql for sql in STATEMENTS if found(sql) != found_fast(sql)] == []


PARTS = "a A1 1 1.5 .5 1e3 1L 2BD x1F ' '' \" ` r' R\" \\ . , ( ) = - + :a : ? ; é _ * / < > ! | é1"
words = st.lists(st.sampled_from([*PARTS.split(), " ", "\n", "'a b'", '"q"', "`n`"]), max_size=12)


@given(words)
@example(["a", ":", "r'", "'"])  # a text as Spark reads it, and no parameter in front of one
def test_literals_of_any_text_are_those_of_the_lexer(parts: list[str]) -> None:
    sql = "".join(parts)
    assert found(sql) == found_fast(sql)


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT * FROM t WHERE a = 'x' AND b=-1.5", "SELECT * FROM t WHERE a = ? AND b=-?"),
        ("SET a = r'x\\' WHERE d = DATE '2026-01-01'", "SET a = ? WHERE d = DATE ?"),
        ("DELETE FROM `t 1` WHERE t1 > 5 -- a secret", "DELETE FROM `t 1` WHERE t1 > ?"),
        ("INSERT /*+ hint('x') */ INTO t /* x */ SELECT 'a'", "INSERT INTO t SELECT ?"),
        ("SELECT $tag$ it's $tag$", "SELECT ?"),
        ("SELECT 'not closed", None),
    ],
)  # fmt: skip
def test_masked_hides_literals_comments_and_hints(sql: str, shown: str | None) -> None:
    assert masked(sql, 1000) == shown


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SET x.password = 'hunter22'", "SET x.password = ?"),
        ("OPTIONS ('secretKey' 'abc', 'mode' 'x')", "OPTIONS ('secretKey' ?, 'mode' 'x')"),
        ("WITH ('fs.s3a.access.key' = 'abc')", "WITH ('fs.s3a.access.key' = ?)"),
        ("f(token => 'abc', n => 3)", "f(token => ?, n => 3)"),
        ("url 'jdbc://ann:hunter22@host/db'", "url 'jdbc://ann:?@host/db'"),
        ("UPDATE t SET a = 'x' WHERE id = 1", "UPDATE t SET a = 'x' WHERE id = 1"),
    ],
)
def test_masked_with_secrets_only_hides_values_whose_name_marks_a_secret(
    sql: str, shown: str
) -> None:
    assert masked(sql, 1000, secrets_only=True) == shown


def test_masked_reads_no_more_of_the_text_than_it_shows() -> None:
    long = "SELECT " + ", ".join(str(n) for n in range(200_000))
    shown = masked(long, 20)
    assert shown == "SELECT ?, ?, ?, ?, ?" + CUT
    assert masked(long + " 'not closed", 20) == shown


def test_masked_insert_shows_one_row_in_place_of_all() -> None:
    sql = "INSERT INTO t (a, b) VALUES (1, 'x'), (2, 'y')"
    at = sql.index("(1")
    assert masked_insert(sql, at, 2, 2, 100) == "INSERT INTO t (a, b) VALUES (?, ?), … 2 rows"
    assert masked_insert(sql, at, 1, 2, 100) == "INSERT INTO t (a, b) VALUES (?, ?)"
    assert (
        masked_insert(sql, at, 1, 900, 100)
        == ("INSERT INTO t (a, b) VALUES (" + "?, " * 24)[:100] + CUT
    )
