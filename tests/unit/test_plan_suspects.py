"""Queries whose texts are written so that a look at their bytes could miss what they hold."""

from __future__ import annotations

import sys

import pytest

from haproc import protos
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.expressions import _LETTERS


@pytest.mark.parametrize(
    "text",
    [
        "(ſelect max(value) from text.`/etc/passwd`)",
        "exists(ſelect value from text.`/etc/passwd`)",
        "ıdentıfıer('ref' || 'lect')('java.lang.System', 'getenv', 'HOME')",
    ],
)
def test_keyword_in_letters_that_spark_takes_for_others_is_not_missed(text: str) -> None:
    plan = protos.base.Plan()
    plan.root.project.input.range.end = 1
    plan.root.project.expressions.add().expression_string.expression = text
    assert read_plan(plan).expressions == (text,)


def test_letters_that_become_others_are_all_there_are() -> None:
    found = {
        (each.encode(), each.upper().lower().encode())
        for each in map(chr, range(128, sys.maxunicode + 1))
        if len(each.upper()) == 1 and each.upper().isascii()
    }
    assert found == set(_LETTERS)
