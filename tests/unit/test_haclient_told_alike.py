"""A failed request's error has the same meaning over both of the client's transports."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import grpc
import pytest

from haclient.failover import AttemptEnd
from haclient.protocol import end_of, failure
from haclient.spark_connect.calls import ChannelError, call_end_of
from haclient.spark_connect.status import UNAVAILABLE, failed
from haproc.doors.connect.errors import DETAILS, CallEnd, call_end
from haproc.doors.http.bodies import body_of
from haproc.doors.http.statuses import status_of
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome


class Failed(ChannelError):
    """A call that ended with the status that the server's door sends."""

    def __init__(self, ending: CallEnd) -> None:
        super().__init__(getattr(grpc.StatusCode, ending.code), ending.message)
        self._packed = ending.packed

    def trailing_metadata(self) -> Any:
        return ((DETAILS, self._packed),)


@pytest.mark.parametrize("hint", ["", "ask the next HAProc"])
@pytest.mark.parametrize(("name", "outcome"), [*product(ErrorClass, WriteOutcome)])
def test_end_of_an_attempt_is_the_same_over_http_and_grpc(
    name: ErrorClass, outcome: WriteOutcome, hint: str
) -> None:
    error = RequestError(
        FailureKind.AVAILABILITY, "no", error_class=name, outcome=outcome, hint=hint
    )
    status = status_of(error)
    by_http = failure(status, json.dumps(body_of(error, "a", None, status)).encode())
    ending = call_end(error)
    if ending.code != UNAVAILABLE:
        return  # an answer, which is not repeated
    by_grpc = failed("http://a", call_end_of(Failed(ending)), hung=False)
    assert by_grpc is not None and by_grpc.end is end_of(by_http)
    if outcome is WriteOutcome.UNKNOWN:
        assert by_grpc.end is AttemptEnd.IN_DOUBT
