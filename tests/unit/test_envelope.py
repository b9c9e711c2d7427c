"""What Redis carries is signed: whatever was changed, or comes from elsewhere, is no message."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.membership.exchange import BYTES_MAX, Envelope, Seal
from haproc.membership.state import Beat, State

SEAL = Seal("a-secret-of-usual-length", "sales")
SAID = Envelope(
    "a", "a1", 7, {"b": ("b1", 6)}, "http://a:8080", Beat("a", "a1", 3, (), True, State.READY)
)


def test_envelope_opened_is_what_was_closed() -> None:
    assert SEAL.open(SEAL.close(SAID)) == SAID


def test_envelope_is_readable_json() -> None:
    shown = json.loads(SEAL.close(SAID))
    assert shown["beat"]["epoch"] == 3
    assert shown["url"] == "http://a:8080" and len(shown["mac"]) == 64


@given(st.data())
def test_envelope_with_any_change_is_none(data: st.DataObject) -> None:
    closed = bytearray(SEAL.close(SAID))
    at = data.draw(st.integers(0, len(closed) - 1))
    closed[at] ^= data.draw(st.integers(1, 255))
    assert SEAL.open(bytes(closed)) is None


@given(st.binary(max_size=300))
def test_envelope_of_anything_is_none(data: bytes) -> None:
    assert SEAL.open(data) is None


@pytest.mark.parametrize(
    "other", [Seal("another-secret-of-that-length", "sales"), Seal("a-secret-of-usual-length", "x")]
)
def test_envelope_of_another_ring_is_none(other: Seal) -> None:
    assert SEAL.open(other.close(SAID)) is None


def test_envelope_that_is_too_large_is_none() -> None:
    large = dataclasses.replace(SAID, url="x" * BYTES_MAX)
    assert SEAL.open(SEAL.close(large)) is None


@pytest.mark.parametrize(
    "odd",
    [
        dataclasses.replace(SAID, heard={"b": ("b1",)}),  # type: ignore[dict-item]
        dataclasses.replace(SAID, heard=["b"]),  # type: ignore[arg-type]
        dataclasses.replace(SAID, number="many"),  # type: ignore[arg-type]
        dataclasses.replace(SAID, beat=3),  # type: ignore[arg-type]
    ],
)
def test_envelope_of_another_version_is_none(odd: Envelope) -> None:
    assert SEAL.open(SEAL.close(odd)) is None
