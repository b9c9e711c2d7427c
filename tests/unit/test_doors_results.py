"""The store of kept results: counted, spilled, read back, dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from haproc.config.shares import Shares
from haproc.failure import RequestError
from haproc.statements.store import Kept, ResultStore


def files(folder: Path) -> list[Path]:
    return list(folder.glob("*"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=40), max_size=5), min_size=1, max_size=4),
    st.integers(0, 100),
)
async def test_store_returns_the_chunks_that_were_added(
    tmp_path: Path, results: list[list[bytes]], memory_bytes_max: int
) -> None:
    store = ResultStore(tmp_path / "kept", Shares(1 << 20), memory_bytes_max)
    kept = [Kept() for _ in results]
    for one, chunks in zip(kept, results, strict=True):
        for chunk in chunks:
            await store.append_chunk(one, chunk, 2)
    assert store.bytes_used == sum(len(chunk) for chunks in results for chunk in chunks)
    for one, chunks in zip(kept, results, strict=True):
        assert [await store.read_stored_chunk(one, i) for i in range(len(chunks))] == chunks
        assert [chunk.row_offset for chunk in one.chunks] == [2 * i for i in range(len(chunks))]
        store.drop(one)
    assert store.bytes_used == 0
    assert files(tmp_path / "kept") == []


async def test_store_accepts_a_second_drop(tmp_path: Path) -> None:
    store, kept = ResultStore(tmp_path, Shares(100)), Kept()
    await store.append_chunk(kept, b"123", 1)
    store.charge(kept, 10)
    assert store.bytes_used == 13
    store.drop(kept)
    store.drop(kept)
    assert store.bytes_used == 0


async def test_store_keeps_chunks_in_memory_if_the_disk_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store, kept = ResultStore(tmp_path / "file", Shares(100), 0), Kept()
    await store.append_chunk(kept, b"123", 1)
    assert await store.read_stored_chunk(kept, 0) == b"123"


async def test_store_reports_a_missing_file_as_expired(tmp_path: Path) -> None:
    store, kept = ResultStore(tmp_path / "kept", Shares(100), 0), Kept()
    await store.append_chunk(kept, b"123", 1)
    store.clean()
    with pytest.raises(RequestError, match="expired"):
        await store.read_stored_chunk(kept, 0)
