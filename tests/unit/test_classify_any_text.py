"""Any text is classified, or refused with a message."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haproc.classify.classifier import Unparsed, classify
from haproc.classify.model import RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules

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


def check(text: str) -> None:
    try:
        found = classify(text, Context(), RULES)
    except RefusedError as error:
        assert error.error_class and error.message
    else:
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
def test_classify_of_reading_function_without_literals_raises_no_other_error(call: str) -> None:
    check(f"SELECT {call}")
