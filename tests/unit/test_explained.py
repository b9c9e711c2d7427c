"""What Spark says of a statement behind EXPLAIN EXTENDED, as Spark 4.2.1 said it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from haproc.config.shares import Shares
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session
from haproc.route.explain import Explaining
from haproc.route.offload import Inline
from haproc.route.planning import Planning
from haproc.witness.explained import explaining, in_own_lines

PARSED = (
    "\n[PARSE_SYNTAX_ERROR] Syntax error at or near '=='. SQLSTATE: 42601 (line {line}, pos 7)\n\n"
    "== SQL ==\n{before}UPDATE k1 SET v = v / 0 WHERE\n id == == 3\n-------^^^\n"
)
SHOWN = (
    '\n[UNSUPPORTED_DATATYPE] Unsupported data type "FOO". SQLSTATE: 0A000\n'
    "== SQL (line {line}, position 19) ==\nCREATE TABLE x (a FOO)\n                  ^^^\n"
)
ANALYZED = (
    "[DELTA_MERGE_RESOLVED_ATTRIBUTE_MISSING_FROM_INPUT] Resolved attribute(s) c#481 missing "
    "from k#466 in operator !DeltaMergeInto (k#466 = k#470); line {line} pos 0"
)
UNTOUCHED = (
    f"numbers that are none; line {'9' * 5000} pos 1",
    "no form of Spark's (line 3, pos 4)",
    "== SQL of VIEW spark_catalog.default.v (line 2, position 8) ==\nSELECT 1/0\n       ^^^",
    "== SQL ==\nSELECT ';  line 2 pos 3, and more'",
)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            PARSED.format(line=3, before="EXPLAIN EXTENDED\n"),
            PARSED.format(line=2, before=""),
        ),
        (SHOWN.format(line=2), SHOWN.format(line=1)),
        (SHOWN.format(line=12), SHOWN.format(line=11)),
        (ANALYZED.format(line=2), ANALYZED.format(line=1)),
        (
            "== SQL (line 1, position 1) ==\nEXPLAIN EXTENDED\n^^^^^^^^^^^^^^^^\nVALUES (1)\n"
            "^^^^^^^^^^",
            "== SQL (line 1, position 1) ==\nVALUES (1)\n^^^^^^^^^^",
        ),
        (
            "no (line 1, pos 0)\n\n== SQL ==\nEXPLAIN EXTENDED\n^^^\nFOO\n",
            "no (line 1, pos 0)\n\n== SQL ==\nFOO\n",
        ),
        (  # the parser's, of a text that looks like other errors
            PARSED.format(line=3, before="EXPLAIN EXTENDED\n") + "-- is it? ; line 7 pos 3\n",
            PARSED.format(line=2, before="") + "-- is it? ; line 7 pos 3\n",
        ),
        (  # a name that looks like the lines shown
            "[TABLE_OR_VIEW_NOT_FOUND] The table `a == SQL b` cannot be found.; line 2 pos 14",
            "[TABLE_OR_VIEW_NOT_FOUND] The table `a == SQL b` cannot be found.; line 1 pos 14",
        ),
        (SHOWN.format(line=2) + "; line 9 pos 1", SHOWN.format(line=1) + "; line 9 pos 1"),
        *((message, message) for message in UNTOUCHED),
    ],
)
def test_place_in_explained_text_is_told_as_that_in_the_statement(said: str, told: str) -> None:
    assert in_own_lines(said) == told


class _Refusing:
    """A session that answers each question with a parser's error about it."""

    async def query(self, statement: Any, *, timeout_s: float, planned: Any) -> Any:
        line = statement.sql.split("\n").index("UPDATE k1 SET v = v / 0 WHERE") + 2
        before = statement.sql.partition("UPDATE")[0]
        message = PARSED.format(line=line, before=before)
        raise EngineError(
            ErrorKind.APPLICATION, message, error_class="PARSE_SYNTAX_ERROR", sqlstate="42601"
        )


async def test_error_of_a_statement_that_is_explained_shows_the_statement_alone() -> None:
    asked = Explaining(
        cast(Session, _Refusing()), Inline(), "ann", 1.0, Planning(Shares(1), Shares(1))
    )
    with pytest.raises(EngineError) as raised:
        await asked.plan("UPDATE k1 SET v = v / 0 WHERE\n id == == 3")
    assert raised.value.message == PARSED.format(line=2, before="")
    error = raised.value
    assert (error.kind, error.error_class, error.sqlstate) == (
        ErrorKind.APPLICATION,
        "PARSE_SYNTAX_ERROR",
        "42601",
    )


async def test_reason_why_there_is_no_plan_has_the_place_in_the_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Explaining(
        cast(Session, _Refusing()), Inline(), "ann", 1.0, Planning(Shares(1), Shares(1))
    )

    async def said(sql: str) -> str:
        reason = f"org.apache.spark.sql.delta.DeltaAnalysisException: {ANALYZED.format(line=2)}"
        return f"== Parsed Logical Plan ==\nx\n\n== Analyzed Logical Plan ==\n{reason}"

    monkeypatch.setattr(asked, "text", said)
    with pytest.raises(EngineError) as raised:
        await asked.plan("MERGE INTO c USING c d ON c.k = d.k WHEN MATCHED THEN DELETE")
    assert raised.value.message == ANALYZED.format(line=1)


def test_statement_stands_in_lines_of_its_own() -> None:
    assert explaining("SELECT 1\nFROM t") == "EXPLAIN EXTENDED\nSELECT 1\nFROM t"
