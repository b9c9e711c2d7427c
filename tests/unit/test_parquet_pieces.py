"""Tests of reading Parquet in a separate process: how that ends, and the errors reported then."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import resource
import signal
import zlib
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.engine.interface import Column
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.route.model import Fitted
from haproc.route.offload import Worker, WorkerDiedError
from haproc.route.parquet_worker import MEMORY_BYTES_MAX
from haproc.route.rows.forms import Form, FormKind
from haproc.route.spooled import PARQUET_FITS_MAX, WORKER, ParquetPieces, SpooledBody, Spools

PARQUET = Form(FormKind.PARQUET)
COLUMNS = [Column("n", "bigint"), Column("s", "string"), Column("l", "array<int>")]
KILLER = zlib.decompress(
    base64.b64decode(
        "eNp9UL1qw0AM1smH6tWDzB3c4MUmhcbEJikdvHTp5MH0DUw4qMFJXNtJXiMPVugrVS4EOhX0Cf18n5DUvL4XDFxy"
        "+cShBMTkjA4AwGglPsbVnyyKxKEgwKUYfIO6FwSsbb0DQ9P+wx9aRtiiUT0jU11Je6eN7rtplgZjiubB9/7gjzPE"
        "ZJ11GThGmxLYF9X/Eu8EhjiMb0osC6t/l7NOTpDpUD1mhPZNNqOFJ2LKlhmwSoZ2/Dz7eb0fhnU7jqdrcvHj1J2O"
        "Sfmcb/LCOieSL0Ejv/kBWvsoPg=="
    )
)
"""A file of pyarrow's with one changed byte.

The last read of a column inside a list throws a C++ exception that nothing catches; it ends the
process of pyarrow 26.
"""


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=500)
    return sink.getvalue()


def begun_here() -> list[str]:
    while True:
        tasks = Path("/proc/self/task").iterdir()
        try:
            return [pid for task in tasks for pid in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):  # a thread ended: another has its children
            continue


def world() -> tuple[list[int], list[str]]:
    """Return the processes that this one started, also those nobody waited for, and its open files.

    The parent of a process is the thread that started it.
    """
    begun = begun_here()
    files = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            files.append(str(each.readlink()))
        except FileNotFoundError:  # that of the listing
            continue
    return sorted(map(int, begun)), sorted(each for each in files if "pipe" in each or "/#" in each)


def spared(pid: int) -> int:
    """Return the score by which the kernel kills this process when memory runs out; 1000: first."""
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = world()
    yield
    assert world() == before


@pytest.fixture
def spools(tmp_path: Path) -> Spools:
    limits = Limits(operation_bytes_max=1 << 20, staged_bytes_max=4 << 20)
    return Spools(tmp_path, Shares(10 << 20, 6 << 20), limits)


async def spooled(spools: Spools, data: bytes) -> SpooledBody:
    body = await spools.begin("ada", None, PARQUET)
    await body.append_bytes(data)
    await body.complete()
    return body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (KILLER, "not a Parquet file"),
        (parquet(pa.table({"n": [1], "x": [2]})), "the table has no column x"),
    ],
)
async def test_parquet_file_that_does_not_fit_or_crashes_its_reader_is_refused(
    spools: Spools, nothing_left: None, data: bytes, reason: str
) -> None:
    body = await spooled(spools, data)
    with closing(body._file), pytest.raises(RequestError, match=reason) as raised:
        await body.fit(COLUMNS)
    assert raised.value.error_class == ErrorClass.ROWS_MISFIT
    assert raised.value.kind is FailureKind.REFUSED


async def test_reader_of_abandoned_rows_is_ended(spools: Spools, nothing_left: None) -> None:
    # More than a piece in bytes, so that there is another one to come.
    table = pa.table({"n": range(500), "s": [f"{n:05}" * 4000 for n in range(500)]})
    body = await spooled(spools, parquet(table))
    body._columns = COLUMNS
    before = world()
    async with aclosing(aiter(body)) as chunks:
        assert (await anext(chunks)).rows < 500
        (reader,) = set(world()[0]) - set(before[0])
        limit, _ = resource.prlimit(reader, resource.RLIMIT_DATA)
        assert limit == MEMORY_BYTES_MAX
        assert spared(reader) == 1000
    assert world() == before
    with pytest.raises(RequestError, match="4194304 bytes unpacked"):
        await body.fit(COLUMNS)
    body.release()


async def test_bodies_are_fitted_up_to_the_limit_at_a_time(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = []

    async def fitted(self: SpooledBody) -> Fitted:
        under_way.append(under_way[-1] + 1 if under_way else 1)
        await asyncio.sleep(0)
        under_way.append(under_way[-1] - 1)
        return Fitted(b"")

    monkeypatch.setattr(SpooledBody, "_fitted", fitted)
    body = await spooled(spools, b"")
    await asyncio.gather(*(body.fit(COLUMNS) for _ in range(3 * PARQUET_FITS_MAX)))
    assert (max(under_way), under_way[-1]) == (PARQUET_FITS_MAX, 0)
    body.release()


@pytest.mark.parametrize(
    ("by", "kind"),
    [(signal.SIGSEGV, FailureKind.REFUSED), (signal.SIGKILL, FailureKind.AVAILABILITY)],
)
def test_reader_killed_by_a_signal_raises_an_error_of_the_kind_of_the_signal(
    tmp_path: Path, nothing_left: None, by: signal.Signals, kind: FailureKind
) -> None:
    with (tmp_path / "rows").open("w+b") as file:
        file.write(parquet(pa.table({"n": [1]})))
        file.flush()
        found = ParquetPieces(file.fileno(), file.tell(), COLUMNS, 1 << 20, PARQUET)
        with closing(found):
            assert next(found).rows == 1
            process = found._worker._process
            assert process is not None
            process.send_signal(by)
            with pytest.raises(RequestError) as raised:
                next(found)
        assert raised.value.kind is kind


def at_work(pid: int) -> bool:
    """Return whether a process has worked for longer than its start takes."""
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK") > 0.7


def test_reader_ends_with_its_haproc_during_any_work(tmp_path: Path, nothing_left: None) -> None:
    with (tmp_path / "rows").open("w+b") as file:
        file.write(b"\n" * (192 << 20))  # lines without rows: it is long before the first piece
        file.flush()
        worker = Worker(WORKER, (file.fileno(),))
        form = Form(FormKind.JSON_LINES)
        request: Any = (file.fileno(), file.tell(), COLUMNS, 1 << 20, form)

        def ask() -> None:
            with pytest.raises(WorkerDiedError):
                worker.exchange(request)

        asking = Thread(target=ask)
        asking.start()
        try:
            while (process := worker._process) is None or not at_work(process.pid):
                asking.join(0.01)
                assert asking.is_alive()
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(3) == 0
        finally:
            worker.end()
            asking.join()
