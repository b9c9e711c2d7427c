"""Errors as PySpark expects them of a channel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from haclient.exceptions import DatabaseError
from haclient.protocol import outcome_of
from haclient.spark_connect.status import Said

_CODES = {
    "HACLIENT_DEADLINE": grpc.StatusCode.DEADLINE_EXCEEDED,
    "HACLIENT_CANCELLED": grpc.StatusCode.CANCELLED,
}


class ChannelError(grpc.RpcError, grpc.Call):  # type: ignore[misc]
    """A call that ended here, without a server's status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Return why."""
        return self._code

    def details(self) -> str:
        """Return what there is to say about it."""
        return self._details

    def initial_metadata(self) -> tuple[Any, ...]:
        """Return nothing: no server said any."""
        return ()

    def trailing_metadata(self) -> tuple[Any, ...]:
        """Return nothing: no server said any."""
        return ()

    def is_active(self) -> bool:
        """Whether it goes on: no."""
        return False

    def time_remaining(self) -> float | None:
        """Return None: it has ended."""
        return None

    def cancel(self) -> bool:
        """Do nothing: it has ended."""
        return False

    def add_callback(self, callback: Any) -> bool:
        """Take none: it has ended."""
        return False


class Lost(ChannelError):
    """The server failed in the middle; PySpark asks again, and the next one answers."""

    def __init__(self, details: str, cause: BaseException) -> None:
        super().__init__(grpc.StatusCode.UNAVAILABLE, details)
        self.__cause__ = cause


class GivenUp(ChannelError):
    """Every server was asked, for as long as the policy says: asking again is of no use."""

    def __init__(self, error: DatabaseError) -> None:
        code = _CODES.get(error.error_class, grpc.StatusCode.UNAVAILABLE)
        super().__init__(code, f"[{error.error_class}] {error.message}; outcome {error.outcome}")
        self.failure = error.failure


def said_by(error: grpc.RpcError) -> Said:
    """Return how a call ended; the class is what the server's ErrorInfo names, "" for none."""
    code, details = error.code().name, error.details() or ""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # its details belong to another status
        status = None
    if status is None:
        return Said(code, details, None)
    said = Said(code, details, "")
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for detail in status.details:
        if detail.Unpack(info):
            said = replace(
                said,
                error_class=info.metadata.get("errorClass", info.reason),
                outcome=outcome_of(info.metadata.get("outcome")),
            )
        elif detail.Unpack(retry):
            said = replace(said, retry_after_s=retry.retry_delay.ToTimedelta().total_seconds())
    return said
