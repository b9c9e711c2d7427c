"""Tests of the record format: a record is decoded as it was encoded, and no other bytes are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmq import LogCorruptError, Record, UnknownVersionError, decode, encode

GOLDEN = Path(__file__).parents[1] / "golden" / "record.bin"
GOLDEN_RECORD = Record(
    kind="sql",
    key="2f1c6a5e9d3b4870a1b2c3d4e5f60718",
    payload="INSERT INTO flüge VALUES (1, '😀')".encode() + b"\x00\xff",
)

text = st.text(st.characters(exclude_categories=["Cs"]))
record_values = st.builds(Record, kind=text, key=text, payload=st.binary())


@given(record_values)
def test_decode_encoded_record_is_equal(record: Record) -> None:
    assert decode(encode(record)) == record


def test_encode_golden_record_gives_the_kept_bytes() -> None:
    assert encode(GOLDEN_RECORD) == GOLDEN.read_bytes()


def test_decode_golden_bytes_gives_the_record() -> None:
    assert decode(GOLDEN.read_bytes()) == GOLDEN_RECORD


@pytest.mark.parametrize("version", [0, 2, 255])
def test_decode_of_an_unknown_version_is_refused(version: int) -> None:
    data = bytearray(encode(GOLDEN_RECORD))
    data[2] = version
    with pytest.raises(UnknownVersionError, match=f"version {version} "):
        decode(bytes(data))


def test_decode_of_unknown_flags_is_refused() -> None:
    data = bytearray(encode(GOLDEN_RECORD))
    data[3] = 1
    with pytest.raises(UnknownVersionError, match="flags 0x01"):
        decode(bytes(data))


@given(st.binary())
def test_decode_of_any_bytes_gives_a_record_or_log_corrupt_error(data: bytes) -> None:
    for candidate in (data, b"DQ\x01\x00" + len(data).to_bytes(4, "little") + data):
        try:
            record = decode(candidate)
        except LogCorruptError:
            continue
        assert decode(encode(record)) == record


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'["a"]',
        b'["a","",""]',
        b'[1,""]',
        b'["a",null]',
        b'["a",""',
        b'["\xff",""]',
        b"\xff\xfe",
    ],
)
def test_decode_of_a_broken_header_is_corrupt(header: bytes) -> None:
    data = b"DQ\x01\x00" + len(header).to_bytes(4, "little") + header
    with pytest.raises(LogCorruptError):
        decode(data)


@given(record_values, st.data())
def test_decode_of_a_record_cut_in_its_header_is_corrupt(
    record: Record, data: st.DataObject
) -> None:
    stored = encode(record)
    header_end = len(stored) - len(record.payload)
    with pytest.raises(LogCorruptError):
        decode(stored[: data.draw(st.integers(0, header_end - 1))])
