"""Options of HAProc's own, set by SQL text."""

from __future__ import annotations

import pytest

from haproc.config.model import Consistency, Reads
from haproc.doors.connect.options import OptionChange, change_in, defaults, in_force, read
from haproc.jobs.model import ring_variables


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "SET haproc.consistency = linearizable",
            OptionChange("haproc.consistency", "linearizable"),
        ),
        ("/* x */ set haproc.timeout_s=2.5 ;\n", OptionChange("haproc.timeout_s", "2.5")),
        ("SET `haproc.fanout` = serial", OptionChange("haproc.fanout", "serial")),
        ("SET haproc.fanout", OptionChange("haproc.fanout")),
        ("RESET haproc.fanout", OptionChange("haproc.fanout", resets=True)),
        ("RESET `haproc.fanout`;", OptionChange("haproc.fanout", resets=True)),
        ("RESET", OptionChange("", resets=True)),
        ("RESET ;", OptionChange("", resets=True)),
        ("SET", None),
        ("SET spark.sql.ansi.enabled = haproc.x", None),
        ("SET VARIABLE haproc.x = 1", None),
        ("SELECT 'SET haproc.x = 1'", None),
        ("INSERT INTO t VALUES (1)", None),
        ("'", None),
        ("", None),
    ],
)
def test_option_change_is_recognised_in_sql_text_and_other_texts_are_not(
    text: str, expected: OptionChange | None
) -> None:
    assert change_in(text) == expected


def test_spark_remote_of_a_restarted_job_contains_the_offset_that_its_reads_must_show() -> None:
    url = ring_variables(9, [], "t", [("haproc.timeout_s", "7")], 41)["SPARK_REMOTE"]
    given = dict(each.split("=") for each in url.split(";")[1:])
    found = read(in_force({}, given, defaults(Reads(), 60.0)))
    assert (found.freshness.level, found.freshness.after_offset) == (Consistency.SESSION, 41)
    assert found.timeout_s == 7
    assert read(in_force({}, {}, defaults(Reads(), 60.0))).freshness.after_offset == 0
