"""Names in messages: replaced on the way to Spark, appended on the way back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc import protos
from haproc.engine.rewriting import (
    FIELDS_MAX,
    RPCS,
    Names,
    fields_of,
    replaced_plan,
    response_id,
    to_client,
    to_spark,
)

base = protos.base
_BACKEND = Names("backend", "its-own")
_NAMES = {"ArtifactStatus": "ArtifactStatuses"}


def _request(rpc: str) -> Any:
    message = getattr(base, f"{_NAMES.get(rpc, rpc)}Request")
    request = message(session_id="client", client_type="test")
    request.user_context.user_id = "alice"
    request.user_context.user_name = "Alice"
    if RPCS[rpc].observed is not None:
        request.client_observed_server_side_session_id = "observed"
    return request


@pytest.mark.parametrize("rpc", RPCS)
def test_request_of_each_call_contains_only_the_session_behind(rpc: str) -> None:
    request = _request(rpc)
    found = type(request).FromString(to_spark(rpc, request.SerializeToString(), _BACKEND, "haproc"))
    request.session_id = "backend"
    request.user_context.CopyFrom(base.UserContext(user_id="haproc"))
    if RPCS[rpc].observed is not None:
        request.client_observed_server_side_session_id = "its-own"
    assert found == request


@pytest.mark.parametrize("rpc", RPCS)
def test_response_of_each_call_contains_only_the_session_of_the_client(rpc: str) -> None:
    name = {"ReattachExecute": "ExecutePlan"}.get(rpc, _NAMES.get(rpc, rpc))
    message = getattr(base, f"{name}Response")
    response = message(session_id="backend", server_side_session_id="its-own")
    written = response.SerializeToString() + to_client(rpc, Names("client", "ours"))
    assert message.FromString(written) == message(
        session_id="client", server_side_session_id="ours"
    )


def test_every_call_of_the_service_is_known() -> None:
    service = base.DESCRIPTOR.services_by_name["SparkConnectService"]
    assert {method.name for method in service.methods} == set(RPCS)


def test_request_for_an_unknown_server_session_has_no_server_id() -> None:
    request = _request("Config").SerializeToString()
    written = to_spark("Config", request, Names("backend", ""), "haproc")
    assert not base.ConfigRequest.FromString(written).HasField(
        "client_observed_server_side_session_id"
    )


def test_execute_request_is_not_reattachable_and_keeps_its_other_options() -> None:
    request = _request("ExecutePlan")
    request.operation_id = "the-clients"
    request.request_options.add().reattach_options.reattachable = True
    chunking = request.request_options.add().result_chunking_options
    chunking.allow_arrow_batch_chunking = True
    request.tags.append("tag")
    data = to_spark("ExecutePlan", request.SerializeToString(), _BACKEND, "haproc", "ours")
    found = base.ExecutePlanRequest.FromString(data)
    assert [each.WhichOneof("request_option") for each in found.request_options] == [
        "result_chunking_options"
    ]
    assert (found.operation_id, list(found.tags)) == ("ours", ["tag"])


def test_execute_response_gets_operation_and_response_ids() -> None:
    response = base.ExecutePlanResponse(operation_id="backend", response_id="theirs")
    written = response.SerializeToString() + to_client("ExecutePlan", _BACKEND, "op")
    found = base.ExecutePlanResponse.FromString(written + response_id("r1"))
    assert (found.operation_id, found.response_id) == ("op", "r1")


@given(st.text(max_size=300), st.text(max_size=300))
def test_repeated_field_is_replaced_wherever_it_occurs(first: str, second: str) -> None:
    written = b"".join(
        base.ConfigRequest(session_id=each).SerializeToString() for each in (first, second)
    )
    found = base.ConfigRequest.FromString(to_spark("Config", written, _BACKEND, "haproc"))
    assert found.session_id == "backend"


def test_plan_in_two_parts_is_read_as_protobuf_reads_it() -> None:
    one = base.ExecutePlanRequest()
    one.plan.root.sql.query = "SELECT 1"
    two = base.ExecutePlanRequest()
    two.plan.root.common.plan_id = 7
    written = one.SerializeToString() + two.SerializeToString()
    merged = base.Plan.FromString(b"".join(fields_of(written, 3)))
    assert merged == base.ExecutePlanRequest.FromString(written).plan


def test_plan_is_replaced_completely() -> None:
    request = base.ExecutePlanRequest(session_id="s")
    request.plan.root.sql.query = "SELECT :a"
    other = base.Plan()
    other.root.sql.query = "SELECT 1"
    found = replaced_plan(request.SerializeToString(), other.SerializeToString())
    assert base.ExecutePlanRequest.FromString(found).plan == other


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x0b", b"\x80", b"\xff" * 12])
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|field"):
        to_spark("Config", data, _BACKEND, "haproc")


def test_field_of_another_wire_type_is_no_part_of_a_message() -> None:
    """A parser of the request skips numbers in the place of its plan."""
    request = base.ExecutePlanRequest()
    request.plan.root.sql.query = "SELECT 1"
    numbers = bytes((3 << 3 | 1, *range(8))) + bytes((3 << 3 | 5, *range(4))) + bytes((3 << 3, 7))
    written = numbers + request.SerializeToString() + numbers
    assert base.ExecutePlanRequest.FromString(written).plan == request.plan
    assert fields_of(written, 3) == [request.plan.SerializeToString()]


def test_tag_that_spark_would_read_as_another_one_is_refused() -> None:
    """The JVM's reader drops the bits above 32 of a tag, so this tag would be a plan's."""
    tag = bytes((0x80 | 3 << 3 | 2, 0x80, 0x80, 0x80, 0x80, 0x01))
    with pytest.raises(ValueError, match="number"):
        fields_of(tag + b"\x00", 3)
    with pytest.raises(ValueError, match="number"):
        to_spark("ExecutePlan", tag + b"\x00", _BACKEND, "haproc", "ours")


def test_message_with_too_many_fields_is_refused() -> None:
    field = bytes((9 << 3, 0))
    assert fields_of(field * FIELDS_MAX, 3) == []
    with pytest.raises(ValueError, match="fields"):
        fields_of(field * (FIELDS_MAX + 1), 3)
