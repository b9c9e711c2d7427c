"""Requests that no client of Spark would send are refused as the client's error."""

from __future__ import annotations

import pytest

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.doors.connect.calls import check_id
from haproc.doors.connect.messages import files_of
from haproc.doors.connect.options import checked
from haproc.failure import ErrorClass, RequestError


def test_config_request_without_an_operation_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        checked(protos.base.ConfigRequest.Operation())
    assert caught.value.error_class == ErrorClass.BAD_REQUEST


def test_artifacts_request_with_bytes_of_another_message_is_refused() -> None:
    request = protos.base.ExecutePlanRequest(session_id="s")
    request.plan.root.sql.query = "SELECT 1"
    with pytest.raises((RefusedError, RequestError)):
        files_of([request.SerializeToString()], allow_jars=False)


def _file(name: str) -> bytes:
    request = protos.base.AddArtifactsRequest(session_id="s")
    request.batch.artifacts.add(name=name).data.data = b"x"
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    ("name", "error_class"),
    [
        ("forward_to_fs\\tmp\\x", ErrorClass.PATH),
        ("jars\\x", ErrorClass.JVM_CODE),
        ("./jars/x", ErrorClass.BAD_REQUEST),
        ("files/../forward_to_fs/tmp/x", ErrorClass.BAD_REQUEST),
        ("/tmp/x", ErrorClass.BAD_REQUEST),
        ("", ErrorClass.BAD_REQUEST),
    ],
)
def test_file_with_a_name_that_hides_its_destination_is_refused(
    name: str, error_class: ErrorClass
) -> None:
    with pytest.raises(RequestError) as caught:
        files_of([_file(name)], allow_jars=False)
    assert caught.value.error_class == error_class


def test_file_name_of_a_client_on_windows_is_accepted() -> None:
    assert [each.name for each in files_of([_file("files\\x")], allow_jars=False)] == ["files\\x"]


@pytest.mark.parametrize("given", ["", "x", "-" * 9000 + "0" * 32, "{" + "0" * 32 + "}", "é" * 36])
def test_id_that_is_no_uuid_is_refused(given: str) -> None:
    with pytest.raises(RequestError, match="must be a UUID"):
        check_id(given, "the operation's")
