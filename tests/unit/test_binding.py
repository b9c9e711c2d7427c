"""Parameters are replaced by literals behind the doors, in every form of request that has some."""

from __future__ import annotations

import json
from typing import Any

import pytest

from haproc.failure import FailureKind, RequestError
from haproc.pin.parameters import Given
from haproc.route.classifying import with_bound
from haproc.route.model import Request, Sent, SentRows, SentSql
from haproc.route.offload import Inline, Offload


def sent(text: str, given: Any, *, rows: bool = False) -> SentSql:
    return SentSql(text, Given(json.dumps(given).encode(), rows=rows))


async def bound(statement: Sent) -> Sent:
    return (await with_bound(Request("r", statement, "f"), Inline())).statement


async def test_named_parameters_are_bound_as_literals_in_the_text() -> None:
    given = [{"name": "n", "value": "5", "type": "INT"}, {"name": "s", "value": "it's"}]
    assert await bound(sent("SELECT :n, :s", given)) == SentSql(r"SELECT 5, 'it\'s'")


async def test_parameter_rows_are_bound_as_one_insert() -> None:
    rows = [[{"value": "1", "type": "INT"}], [{"value": None, "type": "INT"}]]
    found = await bound(sent("INSERT INTO t VALUES (?)", rows, rows=True))
    assert isinstance(found, SentSql) and found.parameters is None
    assert found.text.startswith("INSERT INTO t VALUES (1), (") and "NULL" in found.text


@pytest.mark.parametrize("statement", [SentSql("SELECT ':n'"), SentRows("t", b"")])
async def test_statement_without_parameters_is_bound_unchanged(statement: Sent) -> None:
    assert await bound(statement) is statement


@pytest.mark.parametrize(
    "statement",
    [
        sent("SELECT ?", []),
        sent("SELECT :a", [{"name": "b", "value": "1"}]),
        sent("SELECT 1", [{"value": "x", "type": "INT"}]),
        sent("SELECT ?", [[{"value": "1"}]], rows=True),
    ],
)
async def test_parameters_that_do_not_fit_are_refused(statement: Sent) -> None:
    with pytest.raises(RequestError) as caught:
        await bound(statement)
    assert caught.value.kind is FailureKind.REFUSED
    assert caught.value.error_class == "HAPROC_PARAMETERS"


async def test_large_parameters_are_bound_outside_the_event_loop() -> None:
    rows = [[{"value": "x" * 100}] for _ in range(1000)]
    texts = Offload()
    try:
        request = Request("r", sent("INSERT INTO t VALUES (?)", rows, rows=True), "f")
        found = (await with_bound(request, texts)).statement
        assert isinstance(found, SentSql) and len(found.text) > 100_000
    finally:
        await texts.aclose()
