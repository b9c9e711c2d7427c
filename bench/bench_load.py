"""The speed of loading a file, against PySpark's own write of the same file on the same server.

A ring of one. PySpark reads the file itself, as one that lies beside the server, with the table's
schema, and appends it to a table like the ring's; so nothing of it goes through a client. The
memory that the HAProc has at most meanwhile is measured, too.

``python -m bench.bench_load [MEBIBYTES]`` (256 by default; the bar is for 1024). ``--pieces`` tries
pieces of other sizes than the usual one, and keeps nothing.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import haclient
from bench.measures import forget_peak, peak, timed
from bench.report import Row, report, show
from bench.rings import past_ring, ring_of
from haclient.files import PIECE_BYTES
from haproc.ring.local import LocalRing

MIB: Final = 256
BATCH_ROWS: Final = 200_000
SCHEMA: Final = "id BIGINT, name STRING, price DOUBLE, quantity INT, day DATE, note STRING"
BAR: Final = 0.7
MEMORY_BAR_MIB: Final = 300.0
PIECES_MIB: Final = (8, 12, 16, 24)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mebibytes", type=int, nargs="?", default=MIB)
    parser.add_argument("--pieces", action="store_true")
    options = parser.parse_args()
    with ring_of(1, memory="2g") as ring:
        asyncio.run(ring.up(warm=True))
        files = written(ring.folder, options.mebibytes << 20)
        if options.pieces:
            show("load", [_through(ring, files[0], mib << 20) for mib in PIECES_MIB])
        else:
            report("load", [row for path in files for row in compared(ring, path)])


def written(folder: Path, size: int) -> tuple[Path, Path]:
    """Write the same rows as CSV of at least ``size`` bytes, and as Parquet; return both paths."""
    table, texts = folder / "rows.parquet", folder / "rows.csv"
    first = _rows(0)
    with (
        pq.ParquetWriter(table, first.schema) as as_parquet,
        pa_csv.CSVWriter(texts, first.schema) as as_csv,
    ):
        begin = 0
        while not texts.exists() or texts.stat().st_size < size:
            batch = _rows(begin)
            as_parquet.write_batch(batch)
            as_csv.write_batch(batch)
            begin += BATCH_ROWS
    return texts, table


def _rows(begin: int) -> pa.RecordBatch:
    """Return rows of some hundred bytes each, that no compression makes vanish."""
    ids = range(begin, begin + BATCH_ROWS)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "name": pa.array([f"customer {n * 7919 % 1_000_003}" for n in ids]),
        "price": pa.array([n * 0.37 % 1000 for n in ids]),
        "quantity": pa.array([n % 97 for n in ids], pa.int32()),
        "day": pa.array([20_000 + n % 400 for n in ids], pa.int32()).cast(pa.date32()),
        "note": pa.array([f"{n * 2654435761 % (1 << 61):016x} delivered, {n % 11}" for n in ids]),
    }
    return pa.RecordBatch.from_pydict(columns)


def compared(ring: LocalRing, path: Path) -> list[Row]:
    """Return the rates of a file through the ring and past it, and the HAProc's memory."""
    pid = ring.pids(ring.names[0])["haproc"]
    assert pid is not None
    forget_peak(pid)
    through = _through(ring, path)
    memory = peak(pid)
    size, kind = path.stat().st_size / 2**20, path.suffix[1:]
    session = past_ring(ring.sparks[ring.names[0]])
    session.sql(f"CREATE TABLE by_pyspark ({SCHEMA}) USING delta").collect()
    reader = session.read.schema(SCHEMA).option("header", True)
    read: Any = reader.csv if kind == "csv" else reader.parquet
    direct_s = timed(lambda: read(f"file://{path}").write.insertInto("by_pyspark"))
    session.sql("DROP TABLE by_pyspark").collect()
    session.stop()
    label = f"PySpark's own write (bar {BAR}, for a GiB)"
    return [
        Row(through.name, "MiB/s", through.value, label, size / direct_s),
        Row(f"the HAProc's memory meanwhile, {kind}", "MiB", memory, "bar", MEMORY_BAR_MIB),
    ]


def _through(ring: LocalRing, path: Path, piece_bytes: int = PIECE_BYTES) -> Row:
    """Load a file into a new table of the ring."""
    size = path.stat().st_size
    with haclient.connect(ring.urls) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE by_ring ({SCHEMA}) USING delta")
        seconds = timed(lambda: connection.load(path, "by_ring", piece_bytes=piece_bytes))
        cursor.execute("SELECT count(*), count(DISTINCT id) FROM by_ring")
        rows, different = cursor.fetchall()[0]
        assert rows == different > 0
        cursor.execute("DROP TABLE by_ring")
    name = f"load of {size >> 20} MiB of {path.suffix[1:]}, pieces of {piece_bytes >> 20} MiB"
    return Row(name, "MiB/s", size / 2**20 / seconds)


if __name__ == "__main__":
    main()
