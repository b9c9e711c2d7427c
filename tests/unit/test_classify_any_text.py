"""Any text is classified, or refused with a message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haproc.classify.classifier import Unparsed, classify
from haproc.classify.model import Classified, Kind, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.classify.tokens import LexicalError, tokenize
from haproc.failure import ErrorClass

RULES = Rules.builtin()
WORDS = [
    "select",
    "from",
    "insert",
    "into",
    "values",
    "update",
    "set",
    "delete",
    "merge",
    "using",
    "when",
    "matched",
    "then",
    "not",
    "create",
    "replace",
    "table",
    "view",
    "temporary",
    "function",
    "schema",
    "drop",
    "alter",
    "add",
    "columns",
    "with",
    "as",
    "on",
    "where",
    "in",
    "options",
    "location",
    "path",
    "partition",
    "overwrite",
    "directory",
    "cache",
    "show",
    "describe",
    "explain",
    "use",
    "call",
    "identifier",
    "execute",
    "immediate",
    "begin",
    "end",
    "optimize",
    "vacuum",
    "restore",
    "to",
    "timestamp",
    "version",
    "of",
    "from_xml",
    "from_avro",
    "to_avro",
    "schema_of_xml",
    "schema_of_avro",
    "from_protobuf",
    "to_protobuf",
    "map",
    "named_struct",
    "interval",
    "date",
    "current_date",
    "now",
    "delta",
    "parquet",
    "t",
    "u",
    "a.b",
    "`x`",
    "'y'",
    '"z"',
    "r'q'",
    "1",
    "1.5e3",
    "x'00'",
    "(",
    ")",
    "[",
    "]",
    ",",
    ".",
    ";",
    ":",
    "?",
    "*",
    "||",
    "->",
    "=>",
    "=",
    "<",
    ">",
    "!",
    "/*",
    "*/",
    "--",
    "/*+",
    "$$",
    "${v}",
    ":p",
    "{f}",
    "@",
    "\\",
    "\n",
    "é",
]


def expected_refusal(text: str) -> str:
    """Return the only class of error that a text may be refused with; empty: it must be taken."""
    if "\0" in text:
        return ErrorClass.SYNTAX
    if "${" in text:
        return ErrorClass.VARIABLE
    try:
        tokens = list(tokenize(text))
    except LexicalError:
        return ErrorClass.SYNTAX
    while tokens and tokens[-1].is_symbol(";"):
        tokens.pop()
    if not tokens:
        return ErrorClass.EMPTY
    if not any(token.is_symbol(";") for token in tokens):
        return ""
    begins = tokens[0].upper == "BEGIN"
    return ErrorClass.HIDDEN_STATEMENT if begins else ErrorClass.MULTIPLE_STATEMENTS


def check(text: str) -> None:
    expected = expected_refusal(text)
    try:
        found = classify(text, Context(), RULES)
    except RefusedError as error:
        assert error.error_class == expected and error.message
    else:
        assert not expected
        assert isinstance(found, Unparsed) or found.operation_class


@given(st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join))
@settings(max_examples=600, deadline=None)
def test_any_sequence_of_tokens_is_classified_or_refused(text: str) -> None:
    check(text)


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_characters_are_classified_or_refused(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "call", ["from_xml()", "from_avro()", "to_avro(1)", "schema_of_xml(a)", "from_protobuf(a, b)"]
)
def test_classify_of_reading_function_without_literals_is_a_query(call: str) -> None:
    found = classify(f"SELECT {call}", Context(), RULES)
    assert isinstance(found, Classified) and found.kind is Kind.SELECT
