"""Tests of compressed bodies: unpacked in bounded pieces, and refused if they are incomplete."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.doors.http.reading import PIECE_BYTES, Unpacking
from haproc.failure import RequestError

TEXT = b"".join(b"%d," % number for number in range(50_000))
MANY = bytes(40 * PIECE_BYTES)


def raw_deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def unpacked(encoding: str, data: bytes, step: int) -> bytes:
    unpacking = Unpacking(encoding)
    found = b""
    for begin in range(0, len(data), step):
        for piece in unpacking.pieces(data[begin : begin + step]):
            assert 0 < len(piece) <= PIECE_BYTES
            found += piece
    unpacking.check_whole()
    return found


PACKED = [
    ("gzip", gzip.compress(TEXT, mtime=0), TEXT),
    ("x-gzip", gzip.compress(TEXT, mtime=0) + gzip.compress(b"more", mtime=0), TEXT + b"more"),
    ("gzip", gzip.compress(MANY, mtime=0) + bytes(512), MANY),
    ("gzip", gzip.compress(b"", mtime=0) + gzip.compress(b"x", mtime=0), b"x"),
    ("deflate", zlib.compress(TEXT), TEXT),
    ("deflate", raw_deflated(MANY), MANY),
]


@pytest.mark.parametrize(("encoding", "data", "wanted"), PACKED)
@pytest.mark.parametrize("step", [97, 4096, 1 << 30])
def test_whole_body_is_unpacked_from_any_pieces(
    encoding: str, data: bytes, wanted: bytes, step: int
) -> None:
    assert unpacked(encoding, data, step) == wanted


@pytest.mark.parametrize(("encoding", "data", "wanted"), [PACKED[0], *PACKED[4:]])
@given(share=st.floats(0.0001, 0.9999))
def test_body_that_is_cut_off_is_refused(
    encoding: str, data: bytes, wanted: bytes, share: float
) -> None:
    with pytest.raises(RequestError, match="cut off"):
        unpacked(encoding, data[: max(1, int(share * len(data)))], 4096)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_body_in_another_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        unpacked(encoding, b"(no such thing)", 4)
    assert unpacked(encoding, b"", 1) == b""
