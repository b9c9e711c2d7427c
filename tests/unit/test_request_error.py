"""What clients are told of a cluster's error, and of an exception that nobody foresaw."""

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


_BUGS = (KeyError("k"), ValueError("v"), RecursionError(), AssertionError())
_OF_THE_HOST = (OSError(28, "no space left on device"), MemoryError(), TimeoutError())


@pytest.mark.parametrize("error", [*_BUGS, *_OF_THE_HOST], ids=repr)
def test_internal_error_of_a_query_has_no_unknown_outcome(error: Exception) -> None:
    for told in (of_query(error, "a query"), to_request_error(error, "a query", only_reads=True)):
        assert isinstance(told, RequestError) and told.error_class == ErrorClass.INTERNAL
        assert told.outcome is WriteOutcome.NOT_SENT


def test_error_in_doubt_that_a_query_meets_has_no_unknown_outcome() -> None:
    told = of_query(
        log_unavailable("the log did not answer", TimeoutError(), "ask again"), "a query"
    )
    assert isinstance(told, RequestError) and told.outcome is WriteOutcome.NOT_SENT
    assert told.error_class == ErrorClass.LOG_UNAVAILABLE and told.hint == "ask again"


@pytest.mark.parametrize("error", [*_BUGS, *_OF_THE_HOST], ids=repr)
def test_internal_error_of_what_may_have_written_is_in_doubt(error: Exception) -> None:
    told = to_request_error(error, "a statement")
    assert told.kind is FailureKind.AVAILABILITY and told.outcome is WriteOutcome.UNKNOWN


def test_query_is_worth_asking_elsewhere_only_if_this_host_may_be_why() -> None:
    def kind(error: Exception) -> FailureKind:
        return to_request_error(error, "a query", only_reads=True).kind

    assert {kind(error) for error in _BUGS} == {FailureKind.APPLICATION}
    assert {kind(error) for error in _OF_THE_HOST} == {FailureKind.AVAILABILITY}


def test_error_of_spark_or_a_rule_stays_as_it_is() -> None:
    of_spark = EngineError(ErrorKind.APPLICATION, "no table", error_class="TABLE_OR_VIEW_NOT_FOUND")
    by_rule = RefusedError(ErrorClass.REFUSED_BY_RULE, "not this", "another")
    assert of_query(of_spark, "a query") is of_spark
    assert of_query(by_rule, "a query") is by_rule
