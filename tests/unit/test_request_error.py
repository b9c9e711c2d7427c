"""Tests of the errors that clients receive for a cluster's error and an unforeseen exception."""

from __future__ import annotations

import pytest

from haproc.classify.model import RefusedError
from haproc.engine.channel import CallFailure
from haproc.engine.errors import EngineError, ErrorKind, NoQueryError
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, log_unavailable
from haproc.route.answering import of_query, to_request_error
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
def test_error_without_information_differs_from_one_of_an_unreachable_cluster(
    error: EngineError, error_class: str
) -> None:
    found = request_error(error, "a", WriteOutcome.NOT_SENT)
    assert (found.kind, found.error_class) == (FailureKind.AVAILABILITY, error_class)
    assert found.message.startswith("cluster a: ")


def test_request_error_of_a_statement_that_is_no_query_is_a_refusal_without_details() -> None:
    """With details, PySpark would raise the plugin's IllegalArgumentException with a JVM stack."""
    details = Details(("java.lang.IllegalArgumentException",))
    found = request_error(NoQueryError(("DropTable",), details), "a", WriteOutcome.NOT_SENT)
    assert (found.kind, found.error_class) == (FailureKind.REFUSED, ErrorClass.ANALYSIS_DIFFERS)
    assert "DropTable" in found.message and found.details == NO_DETAILS


_BUGS = (KeyError("k"), ValueError("v"), RecursionError(), AssertionError())
_OF_THE_HOST = (OSError(28, "no space left on device"), MemoryError(), TimeoutError())


@pytest.mark.parametrize("error", [*_BUGS, *_OF_THE_HOST], ids=repr)
def test_internal_error_of_a_query_has_no_unknown_outcome(error: Exception) -> None:
    for found in (of_query(error, "a query"), to_request_error(error, "a query", only_reads=True)):
        assert isinstance(found, RequestError) and found.error_class == ErrorClass.INTERNAL
        assert found.outcome is WriteOutcome.NOT_SENT


def test_log_error_during_a_query_has_no_unknown_outcome() -> None:
    found = of_query(
        log_unavailable("the log did not answer", TimeoutError(), "ask again"), "a query"
    )
    assert isinstance(found, RequestError) and found.outcome is WriteOutcome.NOT_SENT
    assert found.error_class == ErrorClass.LOG_UNAVAILABLE and found.hint == "ask again"


@pytest.mark.parametrize("error", [*_BUGS, *_OF_THE_HOST], ids=repr)
def test_internal_error_of_a_statement_that_may_have_written_has_an_unknown_outcome(
    error: Exception,
) -> None:
    found = to_request_error(error, "a statement")
    assert found.kind is FailureKind.AVAILABILITY and found.outcome is WriteOutcome.UNKNOWN


def test_error_of_a_query_is_an_availability_error_only_if_its_host_may_be_the_cause() -> None:
    def kind(error: Exception) -> FailureKind:
        return to_request_error(error, "a query", only_reads=True).kind

    assert {kind(error) for error in _BUGS} == {FailureKind.APPLICATION}
    assert {kind(error) for error in _OF_THE_HOST} == {FailureKind.AVAILABILITY}


def test_error_of_spark_or_of_a_rule_is_not_changed() -> None:
    of_spark = EngineError(ErrorKind.APPLICATION, "no table", error_class="TABLE_OR_VIEW_NOT_FOUND")
    by_rule = RefusedError(ErrorClass.REFUSED_BY_RULE, "not this", "another")
    assert of_query(of_spark, "a query") is of_spark
    assert of_query(by_rule, "a query") is by_rule
