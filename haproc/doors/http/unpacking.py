"""Undoes a body's Content-Encoding, piece by piece, and tells one that is cut off from a whole one.

aiohttp would take the beginning of a gzip stream for all of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final

from haproc.failure import ErrorClass, RequestError, refused

PIECE_BYTES: Final = 64 << 10
PLAIN: Final = frozenset({"", "identity"})
ENCODINGS: Final = PLAIN | {"gzip", "x-gzip", "deflate"}
_DEFLATED: Final = 8
"""The first byte's low half where deflate has the header that it is to have; many leave it out."""


class Unpacking:
    """One body of an encoding of `ENCODINGS` that is not plain. Methods raise RequestError."""

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding
        self._stream: zlib._Decompress | None = None

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what the next bytes come to."""
        while data:
            if self._stream is None or self._stream.eof:
                data = data if self._stream is None else data.lstrip(b"\0")
                if not data:
                    return
                self._stream = self._begun(data[0])
            yield from self._of_stream(data)
            data = self._stream.unused_data

    def check_whole(self) -> None:
        """Refuse a body that ends before what it holds does."""
        if self._stream is not None and not self._stream.eof:
            raise self._wrong("is cut off")

    def _of_stream(self, data: bytes) -> Iterator[bytes]:
        stream, piece = self._stream, b""
        assert stream is not None
        while not stream.eof and (data or len(piece) == PIECE_BYTES):
            try:
                piece = stream.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise self._wrong("cannot be read") from error
            data = stream.unconsumed_tail
            if piece:
                yield piece

    def _begun(self, first: int) -> zlib._Decompress:
        if self._encoding != "deflate":
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        return zlib.decompressobj(zlib.MAX_WBITS if first & 0xF == _DEFLATED else -zlib.MAX_WBITS)

    def _wrong(self, what: str) -> RequestError:
        return refused(
            ErrorClass.BAD_REQUEST,
            f"the body {what}: it is no whole {self._encoding} stream",
            "look whether the file is whole, and send it again",
        )
