"""Messages in Redis are signed: changed or foreign ones are ignored."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.membership.exchange import BYTES_MAX, Envelope, Seal
from haproc.membership.state import Beat, State

SEAL = Seal("a-secret-of-usual-length", "sales")
ENVELOPE = Envelope(
    "a", "a1", 7, {"b": ("b1", 6)}, "http://a:8080", Beat("a", "a1", 3, (), True, State.READY)
)


def test_envelope_survives_closing_and_opening() -> None:
    assert SEAL.open(SEAL.close(ENVELOPE)) == ENVELOPE


def test_envelope_is_readable_json() -> None:
    shown = json.loads(SEAL.close(ENVELOPE))
    assert shown["beat"]["epoch"] == 3
    assert shown["url"] == "http://a:8080" and len(shown["mac"]) == 64


@given(st.data())
def test_envelope_with_any_change_is_ignored(data: st.DataObject) -> None:
    closed = bytearray(SEAL.close(ENVELOPE))
    at = data.draw(st.integers(0, len(closed) - 1))
    closed[at] ^= data.draw(st.integers(1, 255))
    assert SEAL.open(bytes(closed)) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_no_envelope(data: bytes) -> None:
    assert SEAL.open(data) is None


@pytest.mark.parametrize(
    "other", [Seal("another-secret-of-that-length", "sales"), Seal("a-secret-of-usual-length", "x")]
)
def test_envelope_of_another_ring_or_secret_is_ignored(other: Seal) -> None:
    assert SEAL.open(other.close(ENVELOPE)) is None


def test_envelope_that_is_too_large_is_ignored() -> None:
    large = dataclasses.replace(ENVELOPE, url="x" * BYTES_MAX)
    assert SEAL.open(SEAL.close(large)) is None


@pytest.mark.parametrize(
    "unusual",
    [
        dataclasses.replace(ENVELOPE, heard={"b": ("b1",)}),  # type: ignore[dict-item]
        dataclasses.replace(ENVELOPE, heard=["b"]),  # type: ignore[arg-type]
        dataclasses.replace(ENVELOPE, number="many"),  # type: ignore[arg-type]
        dataclasses.replace(ENVELOPE, beat=3),  # type: ignore[arg-type]
    ],
)
def test_envelope_of_another_version_is_ignored(unusual: Envelope) -> None:
    assert SEAL.open(SEAL.close(unusual)) is None
