"""Tests of queries whose text is written so that a search of its bytes could miss a keyword."""

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
def test_keyword_in_letters_that_spark_folds_to_ascii_is_found(text: str) -> None:
    plan = protos.base.Plan()
    plan.root.project.input.range.end = 1
    plan.root.project.expressions.add().expression_string.expression = text
    assert read_plan(plan).expressions == (text,)


def test_letters_that_fold_to_ascii_are_all_listed() -> None:
    found = {
        (each.encode(), each.upper().lower().encode())
        for each in map(chr, range(128, sys.maxunicode + 1))
        if len(each.upper()) == 1 and each.upper().isascii()
    }
    assert found == set(_LETTERS)
