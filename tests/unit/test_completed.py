"""Texts that become TIMESTAMPs in functions that Spark shows without the conversion in them."""

from __future__ import annotations

import pytest

from haproc.witness.columns import Type
from haproc.witness.completed import is_completed, may_convert

TYPES = {"1": Type.PLAIN, "2": Type.TEXT, "3": Type.INTEGER, "4": Type.LOOSE}
"""A TIMESTAMP, a text, a number, a float."""


@pytest.mark.parametrize(
    "text",
    [
        "between(§1, 09:00, 10:00)",
        "between(2026-11-25 09:30:00, 09:00, 10:00)",
        "between(§2, 2026-11-25 09:00:00, 2026-11-25 11:00:00)",
        "between(2026-11-25 09:30:00, §2, §2)",
        "nvl(§1, 10:00)",
        "nvl(cast(null as timestamp), §2)",
        "ifnull(§1, now)",
        "nvl2(1, §2, §1)",
        "nullif(2026-11-25 10:00:00, §2)",
        "equal_null(§1, 10:00)",
        "decode(§1, 10:00, 1, 2)",
        "try_add(INTERVAL '1' DAY, §2)",
        "try_subtract(§2, §1)",
        "Project [(1 + §3) AS a, nvl(max(§1), T12) AS b]",
        "nvl(§9, §2)",  # of an unknown type
    ],
)
def test_text_beside_what_may_be_a_moment_is_completed(text: str) -> None:
    assert may_convert(text) and is_completed(text, TYPES)


@pytest.mark.parametrize(
    "text",
    [
        "between(§3, 1, 10)",
        "between(§9, 1, 10)",
        "between(§2, a, 12:30)",
        "between(§1, 2026-01-01 00:00:00, 2026-02-01 00:00:00)",
        "nvl(§2, 12:30)",
        "nvl(§2, §2)",
        "nvl(upper(§2), x)",
        "nvl(§4, 0.0)",
        "nvl(cast(§1 as string), §2)",
        "nvl2(§1, 1, 0)",
        "decode(§3, 1, one, other)",
        "try_add(§3, 1)",
        "try_subtract(§1, 2026-01-01 00:00:00)",
    ],
)
def test_what_is_no_text_or_stands_beside_no_moment_is_not(text: str) -> None:
    assert not is_completed(text, TYPES)
