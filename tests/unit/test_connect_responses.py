"""Ids of responses: our own are read back, and those of others do no harm."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.doors.connect.responses import (
    ID_CHARS_MAX,
    REQUEST_BYTES_MAX,
    TAIL_BYTES_MAX,
    Kind,
    RequestRead,
    ResponseId,
    ResultPosition,
    Way,
    id_text,
    packed,
    read_id,
    read_request,
    responses_of,
    seen,
    tail_of,
)
from tests.unit.spark_responses import (
    OPERATION,
    SESSION,
    complete,
    metrics,
    progress,
    request,
    schema,
)

RUN = b"12345678"
POSITIONS = st.builds(
    ResultPosition,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.binary(min_size=16, max_size=16),
)


@given(st.integers(0, 2**32 - 1), POSITIONS, st.sampled_from(Way), st.binary(max_size=99))
def test_response_id_survives_writing_and_reading(
    index: int, position: ResultPosition, way: Way, rest: bytes
) -> None:
    text = id_text(RUN, index, position, way, packed(rest))
    assert read_id(text) == ResponseId(RUN, index, position, way, rest)
    assert read_id(id_text(RUN, index, position, way)) == ResponseId(RUN, index, position, way)


@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]{0,80}(\.[A-Za-z0-9_-]{0,40})?", fullmatch=True))
def test_invented_response_id_is_none_or_bounded(text: str) -> None:
    read = read_id(text)
    assert read is None or len(read.rest) <= 1 << 16


def test_response_id_that_is_too_long_or_unpacks_to_too_much_is_none() -> None:
    head = id_text(RUN, 0, ResultPosition(), Way.TAIL)
    assert read_id(head + packed(bytes(1 << 16))) is not None
    assert read_id(head + packed(bytes((1 << 16) + 1))) is None
    assert read_id(head + "A" * ID_CHARS_MAX) is None
    assert read_id(head[:-5] + "." + packed(b"")) is None


def test_longest_response_id_of_haproc_is_read() -> None:
    noise = bytes(zlib.crc32(bytes([i & 255, i >> 8])) & 255 for i in range(TAIL_BYTES_MAX))
    longest = id_text(RUN, 0, ResultPosition(), Way.TAIL, packed(noise + bytes(4 * 60)))
    assert len(longest) > REQUEST_BYTES_MAX
    assert read_id(longest) is not None


@given(st.lists(st.sampled_from([schema(), metrics(), complete()]), max_size=4))
def test_tail_of_responses_survives_writing_and_reading(responses: list[bytes]) -> None:
    assert responses_of(tail_of(responses)) == responses


@given(st.binary(max_size=40))
def test_invented_tail_is_refused_or_holds_messages(rest: bytes) -> None:
    try:
        responses = responses_of(rest)
    except ValueError:
        return
    assert tail_of(responses) == rest
    assert all(seen(each) for each in responses)


def test_response_kind_follows_from_its_content() -> None:
    kinds = [seen(each).kind for each in (schema(), metrics(), progress(), complete())]
    assert kinds == [Kind.OTHER, Kind.OTHER, Kind.PROGRESS, Kind.COMPLETE]
    with pytest.raises(ValueError):
        seen(b"\xff\xff")


def test_request_fields_that_are_needed_are_read() -> None:
    read = read_request(request("select 1", tags=["t1", "t2"]))
    assert (read.session_id, read.operation_id, read.reattachable) == (SESSION, OPERATION, True)
    assert read.tags == ("t1", "t2")
    assert read.plan_hash == read_request(request("select 1")).plan_hash
    assert read.plan_hash != read_request(request("select 2")).plan_hash
    assert not read_request(request(reattachable=False)).reattachable
    assert read_request(b"") == RequestRead()
