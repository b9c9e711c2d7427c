"""What clients are told of a cluster's error (haproc/route/failing.py)."""

from __future__ import annotations

import pytest

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.failure import CallFailure
from haproc.failure import ErrorClass, FailureKind, WriteOutcome
from haproc.route.failing import request_error


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
