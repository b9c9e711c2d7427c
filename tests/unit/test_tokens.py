"""Tests of the lexer: Spark's lexical rules (SqlBaseLexer.g4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.classify.tokens import Token, TokenKind, UnclosedError, capitals, tokenize

_PIECES = """' '' " `` ` \\ -- /* */ /*+ $$ $a$ r' R" a 1 1.5 . 1e5 E+3 L BD _ é gs:// / - ? : ::
    a:b ; ( ) insert ß ı < > = | , 1a .1a # % *"""
PIECES = st.sampled_from([*_PIECES.split(), "\n", "\r", "\t", " ", "\\\n"])
SOUP = st.lists(PIECES, max_size=14).map("".join)


def texts(sql: str) -> list[str]:
    return [token.text for token in tokenize(sql)]


def kinds(sql: str) -> list[tuple[TokenKind, str]]:
    return [(token.kind, token.text) for token in tokenize(sql)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select a", ["select", "a"]),
        ("t.1a", ["t", ".", "1a"]),
        ("t.1", ["t", ".1"]),
        ("1.5a", ["1", ".", "5a"]),
        ("1..2", ["1.", ".2"]),
        ("1.5e5 1e+5x 1e5x 1.5BD 1.", ["1.5e5", "1e+5", "x", "1e5x", "1.5BD", "1."]),
        ("1L 1S 1Y 1F 1D 1Lx", ["1L", "1S", "1Y", "1F", "1D", "1Lx"]),
        ("Größe.naïve", ["Größe", ".", "naïve"]),
        ("'a''b' 'a\\'b' \"x\"\"y\"", ["'a''b'", "'a\\'b'", '"x""y"']),
        ("r'a\\' R\"b\\\" xr'c'", ["r'a\\'", 'R"b\\"', "xr", "'c'"]),
        ("`a``b`.`c d`", ["`a``b`", ".", "`c d`"]),
        ("a -- b ' \n c", ["a", "c"]),
        ("a -- b \\\n c \n d", ["a", "d"]),
        ("a--b", ["a"]),
        ("a /* b /* c */ ' */ d", ["a", "d"]),
        ("a /* b /*+ c */ d", ["a", "d"]),
        ("a /*+ h('*/') */ b", ["a", "/*+ h('*/') */", "b"]),
        ("$$ it's $$ $x$ $$ $x$", ["$$ it's $$", "$x$ $$ $x$"]),
        ("gs://bucket/a--b c", ["gs://bucket/a--b", "c"]),
        (
            "a<=>b->c=>d||e|>f::g",
            ["a", "<=>", "b", "->", "c", "=>", "d", "||", "e", "|>", "f", "::", "g"],
        ),
        ("a!=b<>c==d>=e", ["a", "!=", "b", "<>", "c", "==", "d", ">=", "e"]),
    ],
)
def test_tokenize_of_a_text_gives_sparks_tokens(sql: str, expected: list[str]) -> None:
    assert texts(sql) == expected


@pytest.mark.parametrize(
    "sql", ["'a", '"a', "`a", "/* a", "/* a /* b */", "/*+ a", "/*+ '*/", "$$ a", "$a$ b $$"]
)
def test_tokenize_of_an_unclosed_text_raises_an_error_with_its_position(sql: str) -> None:
    with pytest.raises(UnclosedError) as caught:
        list(tokenize("select " + sql))
    assert caught.value.position == 7


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("a = ? and b = :name", ["?", ":name"]),
        ("values (:a,:b, :c)", [":a", ":b", ":c"]),
        ("select :a", [":a"]),
        ("limit :n", [":n"]),
        ("payload:user.name", []),
        ("payload :user", []),
        ("t.`p`:user", []),
        ("f(x):user and a[0]:b", []),
        ("a::int", []),
        ("struct<a:int, b: string>", []),
        ("':a' `:b` -- :c", []),
        ("case when :a then :b else :c end", [":a", ":b", ":c"]),
    ],
)
def test_tokenize_of_a_colon_distinguishes_parameter_and_path(
    sql: str, parameters: list[str]
) -> None:
    found = [token.text for token in tokenize(sql) if token.kind is TokenKind.PARAMETER]
    assert found == parameters


def test_capitals_of_unusual_letters_keeps_the_number_of_letters() -> None:
    assert capitals("ınsert") == "INSERT"
    assert capitals("ſelect") == "SELECT"
    assert capitals("paß") == "PAß"


def test_token_of_a_quoted_name_is_no_keyword() -> None:
    assert [token.upper for token in tokenize("`select` 'x' select")] == ["", "", "SELECT"]
    assert next(iter(tokenize("("))).is_symbol("(")
    assert not next(iter(tokenize("'('"))).is_symbol("(")


def test_tokenize_of_a_huge_text_is_lazy() -> None:
    tokens = tokenize("insert into t values " + "'" + "x" * 1_000_000)
    assert [next(tokens).text for _ in range(4)] == ["insert", "into", "t", "values"]


@given(SOUP)
def test_tokenize_of_any_text_gives_its_tokens_in_order(sql: str) -> None:
    try:
        tokens = list(tokenize(sql))
    except UnclosedError as error:
        assert 0 <= error.position < len(sql)
        return
    end = 0
    for token in tokens:
        assert token == Token(token.kind, sql[token.start : token.end], token.start, token.end)
        assert end <= token.start < token.end
        end = token.end


@given(st.text(max_size=30))
def test_tokenize_of_a_quoted_text_gives_one_token(text: str) -> None:
    string = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
    name = "`" + text.replace("`", "``") + "`"
    assert kinds(string) == [(TokenKind.STRING, string)]
    assert kinds(name) == [(TokenKind.QUOTED_NAME, name)]


@given(SOUP, SOUP)
def test_tokenize_treats_a_comment_like_a_space(before: str, after: str) -> None:
    def joined(between: str) -> list[tuple[TokenKind, str]] | None:
        try:
            return kinds("a " + before + between + after)
        except UnclosedError:
            return None

    try:
        list(tokenize("a " + before))
    except UnclosedError:
        return
    if "--" in before or "/*" in before or joined(" ") is None:
        return
    assert joined(" /* ' \" ` ; -- */ ") == joined(" ")
