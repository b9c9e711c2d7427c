"""Tests of a key-value store in Kafka: the index in memory, and the form of its messages."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmq.key_value_index import (
    CACHED_VALUE_BYTES_MAX,
    UNOWNED_KEPT_S,
    Cache,
    Head,
    Index,
    Manifest,
    head_message,
    joined,
    manifest_message,
    piece_key,
    pieces_in,
    read_manifest,
    read_stored,
    small_message,
)
from dmq.log import LogCorruptError, UnknownVersionError
from dmq.waiting import CHANGES_MAX, Changes

ID = bytes(range(16))


def head(value_id: bytes = ID, value: bytes = b"abc") -> Head:
    return Head(value_id, 5, 9, 2, len(value), zlib.crc32(value))


# Messages


def test_messages_are_read_as_they_were_written() -> None:
    assert read_stored(small_message(b"")) == b""
    assert read_stored(small_message(b"\x02x")) == b"\x02x"
    assert read_stored(head_message(head())) == head()
    manifest = Manifest(ID, "größe/1", 7)
    assert read_manifest(*manifest_message(manifest)) == manifest


def test_messages_keep_their_stored_form() -> None:
    """Messages in a topic stay there across upgrades."""
    assert small_message(b"v") == b"\x01v"
    assert head_message(head()).hex() == (
        "02000102030405060708090a0b0c0d0e0f00000000000000050000000000000009000000020000000000000003"
        "352441c2"
    )
    key, message = manifest_message(Manifest(ID, "k", 7))
    assert (key, message) == (b"\0" + ID, b"\x03\0\0\0\x07k")
    assert piece_key(ID, 258) == ID + b"\0\0\x01\x02"


@pytest.mark.parametrize("message", [b"", b"\x09new"])
def test_read_stored_of_a_newer_form_is_refused(message: bytes) -> None:
    with pytest.raises(UnknownVersionError, match="upgrade"):
        read_stored(message)


def test_read_stored_of_a_damaged_head_is_corrupt() -> None:
    with pytest.raises(LogCorruptError, match="cannot be read"):
        read_stored(head_message(head())[:-1])


@given(st.binary(min_size=1, max_size=200), st.integers(1, 50))
def test_joined_pieces_are_the_value_and_a_changed_piece_is_corrupt(
    value: bytes, piece_max: int
) -> None:
    count = pieces_in(len(value), piece_max)
    pieces = {
        piece_key(ID, number): value[number * piece_max : (number + 1) * piece_max]
        for number in range(count)
    }
    assert all(pieces.values())
    whole = Head(ID, 0, 0, count, len(value), zlib.crc32(value))
    assert joined(whole, pieces) == value
    pieces[piece_key(ID, 0)] += b"x"
    with pytest.raises(LogCorruptError, match="not those"):
        joined(whole, pieces)


# The index


@given(
    st.lists(
        st.tuples(
            st.text("ab/é\uffff😀", min_size=1, max_size=4), st.none() | st.binary(max_size=4)
        ),
        max_size=40,
    ),
    st.text("ab/é", max_size=3),
)
def test_index_holds_the_values_of_the_newest_messages(
    changes: list[tuple[str, bytes | None]], prefix: str
) -> None:
    index = Index()
    expected: dict[str, tuple[int, bytes]] = {}
    for offset, (key, value) in enumerate(changes):
        message = None if value is None else small_message(value)
        assert index.take(offset, key.encode(), message, 0.0) == key
        expected.pop(key, None)
        if value is not None:
            expected[key] = (offset, value)
    assert index.below(prefix) == sorted(key for key in expected if key.startswith(prefix))
    assert index.end == len(changes)
    for key, (offset, value) in expected.items():
        assert index.offset(key) == offset
        assert index.cache.get(offset) == value


def test_index_refuses_a_message_of_a_newer_version() -> None:
    index = Index()
    with pytest.raises(UnknownVersionError):
        index.take(3, b"a", b"\x09new", 0.0)
    assert index.end == 0


def test_index_manifest_is_unowned_only_long_after_its_value_is_gone() -> None:
    index, manifest = Index(), Manifest(ID, "a", 2)
    key, message = manifest_message(manifest)
    assert index.take(0, key, message, 0.0) is None
    assert list(index.unowned(UNOWNED_KEPT_S - 1)) == []
    index.take(1, b"a", head_message(head()), 1.0)
    later = 10 * UNOWNED_KEPT_S
    assert list(index.unowned(later)) == []
    index.take(2, b"a", small_message(b""), later)
    assert list(index.unowned(later + UNOWNED_KEPT_S - 1)) == []
    assert list(index.unowned(later + UNOWNED_KEPT_S)) == [manifest]
    index.take(3, key, None, later)
    assert list(index.unowned(2 * later)) == []


def test_cache_drops_the_least_recently_used_values() -> None:
    cache = Cache(100)
    for offset in range(3):
        cache.keep_value(offset, bytes(40))
        cache.get(0)
    assert [cache.get(offset) is not None for offset in range(3)] == [True, False, True]
    cache.drop(0)
    cache.keep_value(3, bytes(40))
    assert cache.get(2) is not None and cache.get(3) is not None
    cache.keep_value(4, bytes(CACHED_VALUE_BYTES_MAX + 1))
    assert cache.get(4) is None


# Changes


def test_changes_are_found_below_the_prefix_and_after_the_revision() -> None:
    changes = Changes()
    changes.begin(10)
    changes.note(12, "a/1")
    changes.note(15, "b/1")
    changes.note(14, "a/2")  # older than what was heard of: known already
    assert changes.revision == 15
    assert changes.changed("a/", 11) and changes.changed("a/", 10)
    assert not changes.changed("a/", 12)
    assert changes.changed("b/", 14) and not changes.changed("c", 10)


def test_changes_before_the_remembered_ones_count_as_possible_anywhere() -> None:
    changes = Changes()
    changes.begin(10)
    assert changes.changed("c", 9) and not changes.changed("c", 10)
    for revision in range(11, 12 + CHANGES_MAX):
        changes.note(revision, "a")
    assert changes.changed("c", 10) and not changes.changed("c", 11)
