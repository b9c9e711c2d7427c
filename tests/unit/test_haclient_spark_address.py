"""Connection strings and gRPC's statuses as haclient.spark reads them."""

from __future__ import annotations

import pytest

from haclient.exceptions import InterfaceError, Outcome
from haclient.failover import AttemptEnd, Pulse
from haclient.spark_connect.session import read_address
from haclient.spark_connect.status import CallEnd, Health, failed, greeted, health


def test_address_with_several_servers_gives_all_parameters_to_each() -> None:
    address = read_address("sc://a:1, b,[::1]:3/;token=x;user_id=me")
    assert [server.url for server in address.servers] == [
        "sc://a:1",
        "sc://b:15002",
        "sc://[::1]:3",
    ]
    assert address.of(address.servers[1]) == "sc://b:15002/;token=x;user_id=me"
    assert not address.servers[0].secure
    assert read_address("sc://a/;use_ssl=TRUE").servers[0].secure


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://a:1", "expected the servers"),
        ("sc://", "no server"),
        ("sc:///;token=x", "no server"),
        ("sc://a,a:15002", "twice"),
        ("sc://a:b", "'a:b' is not"),
        ("sc://me@a", "'me@a' is not"),
        ("sc://a;token=x", "behind a slash"),
        ("sc://a?b", "'a?b' is not"),
    ],
)
def test_invalid_address_is_refused(url: str, reason: str) -> None:
    with pytest.raises(InterfaceError, match=reason.replace("?", r"\?")):
        read_address(url)


@pytest.mark.parametrize(
    ("code", "answer", "found", "pulse"),
    [
        ("OK", b"\x08\x01", Health.SERVING, Pulse.ALIVE),
        ("OK", b"\x08\x02", Health.NOT_SERVING, Pulse.ALIVE),
        ("UNIMPLEMENTED", b"", Health.SERVING, Pulse.ALIVE),
        ("UNAUTHENTICATED", b"", Health.SERVING, Pulse.ALIVE),
        ("UNAVAILABLE", b"", Health.REFUSED, Pulse.REFUSED),
        ("DEADLINE_EXCEEDED", b"", Health.SILENT, Pulse.SILENT),
    ],
)
def test_health_and_pulse_follow_from_the_end_of_a_health_check(
    code: str, answer: bytes, found: Health, pulse: Pulse
) -> None:
    assert health(code, answer) is found
    assert found.pulse is pulse


def test_health_other_than_serving_ends_the_attempt() -> None:
    assert greeted("a", Health.SERVING, "") is None
    ends = {each: greeted("a", each, "") for each in Health if each is not Health.SERVING}
    assert {each: error.end for each, error in ends.items() if error} == {
        Health.NOT_SERVING: AttemptEnd.LEAVING,
        Health.REFUSED: AttemptEnd.NOT_REACHED,
        Health.SILENT: AttemptEnd.NOT_REACHED,
    }


@pytest.mark.parametrize(
    ("code", "error_class", "hung", "end"),
    [
        ("INTERNAL", "TABLE_OR_VIEW_NOT_FOUND", False, None),
        ("UNAUTHENTICATED", None, False, None),
        ("CANCELLED", None, False, None),
        ("CANCELLED", None, True, AttemptEnd.IN_DOUBT),
        ("UNAVAILABLE", None, False, AttemptEnd.IN_DOUBT),
        ("UNAVAILABLE", "", False, AttemptEnd.NOT_TAKEN),
        ("UNAVAILABLE", "HAPROC_OTHER", False, AttemptEnd.NOT_TAKEN),
        ("UNAVAILABLE", "HAPROC_BUSY", False, AttemptEnd.BUSY),
        ("UNAVAILABLE", "HAPROC_NOT_FRESH", False, AttemptEnd.BUSY),
        ("UNAVAILABLE", "HAPROC_DRAINING", False, AttemptEnd.LEAVING),
    ],
)
def test_failed_call_goes_to_another_server_only_if_the_server_is_at_fault(
    code: str, error_class: str | None, hung: bool, end: AttemptEnd | None
) -> None:
    error = failed("a", CallEnd(code, "said", error_class, Outcome.NOT_SENT), hung)
    assert (error.end if error else None) is end


def test_availability_error_without_an_outcome_leaves_the_request_in_doubt() -> None:
    error = failed("a", CallEnd("UNAVAILABLE", "said", "HAPROC_BUSY"), hung=False)
    assert error is not None and error.end is AttemptEnd.IN_DOUBT
