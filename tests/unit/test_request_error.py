"""What clients are told of a cluster's error (haproc/route/streams.py)."""

from __future__ import annotations

import pytest

from haproc.engine.channel import CallFailure
from haproc.engine.errors import EngineError, ErrorKind, NoQueryError
from haproc.failure import ErrorClass, FailureKind, WriteOutcome
from haproc.route.streams import request_error
from haproc.spark_error import NO_DETAILS, Details


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (CallFailure("UNKNOWN", "").error(), ErrorClass.UNKNOWN_ERROR),
        (EngineError(ErrorKind.ENVIRONMENT, "java.lang.Error"), ErrorClass.UNKNOWN_ERROR),
        (CallFailure("UNAVAILABLE", "refused").error(), "UNAVAILABLE"),
        (EngineError(ErrorKind.AVAILABILITY, "no word"), "HAPROC_AVAILABILITY"),
        (EngineError(ErrorKind.ENVIRONMENT, "full", error_class="DISK"), "DISK"),
    ],
)
def test_error_that_says_nothing_is_told_from_a_cluster_that_is_away(
    error: EngineError, error_class: str
) -> None:
    told = request_error(error, "a", WriteOutcome.NOT_SENT)
    assert (told.kind, told.error_class) == (FailureKind.AVAILABILITY, error_class)
    assert told.message.startswith("cluster a: ")


def test_request_error_of_what_is_no_query_is_a_refusal_without_the_plugins_exception() -> None:
    """Else PySpark raises the plugin's IllegalArgumentException, with a stack of the JVM."""
    details = Details(("java.lang.IllegalArgumentException",))
    told = request_error(NoQueryError(("DropTable",), details), "a", WriteOutcome.NOT_SENT)
    assert (told.kind, told.error_class) == (FailureKind.REFUSED, ErrorClass.ANALYSIS_DIFFERS)
    assert "DropTable" in told.message and told.details == NO_DETAILS
