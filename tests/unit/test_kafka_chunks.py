"""Tests of large records in parts, and of a trim that spares their parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmq import LogCorruptError, Record, UnknownVersionError, decode, encode
from dmq.kafka_topic import Head, Parts, cut, head_of, is_part, join, read_head, value_bytes_max

ENCODED = encode(Record("rows", "id", bytes(range(256)) * 40))


@given(st.binary(min_size=1, max_size=5000), st.integers(min_value=9, max_value=700))
def test_cut_parts_fit_the_limit_and_join_to_the_same_record(
    encoded: bytes, value_max: int
) -> None:
    parts = dict(enumerate(cut(encoded, value_max), 10))
    assert all(len(part) <= value_max and is_part(part) for part in parts.values())
    head = read_head(head_of(encoded, list(parts)))
    assert head is not None
    assert join(head, parts) == encoded


def test_value_bytes_max_leaves_room_for_the_message() -> None:
    assert 1 << 19 < value_bytes_max(1 << 20) < (1 << 20) - 100


def test_read_head_of_other_data_is_none() -> None:
    for stored in (ENCODED, cut(ENCODED, 100)[0], b"", b"DQ", b"not a record"):
        assert read_head(stored) is None
    assert not is_part(ENCODED)


@pytest.mark.parametrize("stored", [cut(ENCODED, 100)[0], head_of(ENCODED, [1, 2])])
def test_decode_by_a_version_without_parts_refuses_parts_and_heads(stored: bytes) -> None:
    with pytest.raises(UnknownVersionError, match="upgrade"):
        decode(stored)


@pytest.mark.parametrize(
    "head", [b"{}", b"[]", b"not json", b'{"parts":[],"bytes":1,"crc32":1}', b'{"parts":[2,1]}']
)
def test_read_head_of_a_broken_head_is_corrupt(head: bytes) -> None:
    with pytest.raises(LogCorruptError):
        read_head(head_of(ENCODED, [1])[:8] + head)


def test_join_with_a_missing_or_foreign_part_is_corrupt() -> None:
    parts = dict(enumerate(cut(ENCODED, 1000)))
    head = read_head(head_of(ENCODED, list(parts)))
    assert head is not None
    with pytest.raises(LogCorruptError, match="offset 3 is missing"):
        join(head, {offset: part for offset, part in parts.items() if offset != 3})
    with pytest.raises(LogCorruptError, match="offset 3 is missing"):
        join(head, parts | {3: ENCODED})
    with pytest.raises(LogCorruptError, match="not those"):
        join(head, parts | {3: parts[4]})
    with pytest.raises(LogCorruptError, match="not those"):
        join(Head(head.parts[:-1], head.size_bytes, head.crc32), parts)


def seen(*stored: bytes, first: int = 0) -> Parts:
    parts = Parts()
    parts.look_from(first)
    for offset, data in enumerate(stored, first):
        parts.see(offset, data)
    return parts


PART = cut(ENCODED, 1000)[0]
SMALL = encode(Record("test"))


def test_trim_point_without_parts_is_the_requested_one() -> None:
    assert seen(SMALL, SMALL, SMALL).trim_point(2, 0) == 2


def test_trim_point_spares_the_parts_of_a_record_that_stays() -> None:
    log = (SMALL, PART, SMALL, PART, SMALL, head_of(ENCODED, [1, 3]), SMALL)
    points = [seen(*log).trim_point(before, 0) for before in range(8)]
    assert points == [0, 1, 1, 1, 1, 1, 6, 7]


def test_trim_point_spares_new_parts_whose_head_may_follow() -> None:
    log = (PART, SMALL, PART, SMALL)
    assert seen(*log).trim_point(4, 0) == 0
    assert seen(*log).trim_point(4, 1) == 2
    assert seen(*log).trim_point(4, 3) == 4


def test_look_from_continues_at_a_known_offset_and_starts_afresh_at_another() -> None:
    parts = seen(SMALL, PART, SMALL, first=10)
    assert parts.look_from(11) == 13
    parts.forget(12)
    assert parts.look_from(12) == 13
    assert parts.look_from(11) == 11
    assert parts.look_from(40) == 40


def test_forget_keeps_parts_above_the_offset() -> None:
    parts = seen(PART, PART, head_of(ENCODED, [1]), SMALL, PART)
    parts.forget(1)
    assert parts.trim_point(2, 0) == 1
    parts.forget(3)
    assert parts.trim_point(5, 0) == 4


def test_see_broken_head_changes_no_parts() -> None:
    broken = head_of(ENCODED, [1])[:8] + b"{}"
    assert seen(PART, broken, SMALL).trim_point(3, 0) == 0
