"""The command `haclient load`, which loads a file into a table."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

from haclient import output
from haclient.exceptions import DatabaseError, DataError, Error, Outcome
from haclient.file_schemas import (
    TableColumn,
    create_statement,
    differences,
    of_result,
    stated_types,
    table_name,
    table_of,
)
from haclient.files import PIECE_BYTES, FileKind, Loaded, LoadFile, form_of
from haclient.output import (
    EXIT_INTERRUPTED,
    EXIT_REJECTED,
    Line,
    Report,
    Waiting,
    exit_code,
    harmless,
)
from haclient.settings import Settings
from haclient.sync.connection import Connection
from haclient.sync.load import AT_ONCE, Load

LOAD: Final = """\
Load a file into a table, in pieces of which each is acknowledged by itself.

What the file holds follows from its name (.csv, .tsv, .jsonl, .ndjson, each also .gz; .parquet,
.arrow, .feather) or --format. A load that broke off goes on with --resume ID: what is in the table
is passed over. --create makes the table first, with the types of a Parquet or Arrow file, or those
that all texts of a column look like; --types says others. Exit codes: 0 loaded, 1 a piece was
rejected, 2 wrong usage, 3 no server was available, 4 it is not known whether a piece is in the
table, 130 interrupted.
"""
"""The text of `haclient load --help`."""
TABLE_EXISTS: Final = "42P07"
"""The SQLSTATE of Spark's error for a table that exists already."""
STATES_TYPES: Final = (FileKind.PARQUET, FileKind.ARROW)
BAR_WIDTH: Final = 30


def add_load_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that only `haclient load` has."""
    add = command.add_argument
    add("file", type=Path, help="a file of this machine")
    add("--table", required=True, help="[catalog.][schema.]name")
    add("--format", choices=list(FileKind), help="what the file holds (else by its name)")
    add(
        "--create",
        action="store_true",
        help="make the table, unless it is there with these columns",
    )
    add(
        "--types",
        metavar="TYPES",
        help="of --create: 'id INT, price DECIMAL(10,2)' (else inferred)",
    )
    add("--columns", metavar="NAMES", help="its columns, with commas; *: the table's own")
    add("--delimiter", metavar="C", help="of CSV (,)")
    add("--null", metavar="TEXT", help="what stands for NULL in CSV (nothing)")
    add("--time-zone", metavar="ZONE", help="of texts for TIMESTAMP columns that have none")
    add("--resume", metavar="ID", help="go on with a load that broke off")
    add("--catalog", help="where an unqualified table is looked up")
    add("--schema", help="likewise")
    add("--write-concern", choices=("one", "majority", "all"), help="of each piece")
    add("--timeout", type=float, default=300.0, metavar="S", help="each piece's deadline (300)")
    add("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"pieces under way ({AT_ONCE})")


def load(options: argparse.Namespace, settings: Settings, report: Report) -> int:
    """Run `haclient load`; return the exit code. Raises OSError and ValueError for wrong usage."""
    if options.at_once < 1:
        raise ValueError("--at-once must be at least 1")
    if options.types is not None and not options.create:
        raise ValueError("--types needs --create")
    form = form_of(
        options.file,
        options.format,
        columns=options.columns,
        delimiter=options.delimiter,
        null=options.null,
        time_zone=options.time_zone,
    )
    file = LoadFile(options.file, form, PIECE_BYTES)
    is_watched = not options.quiet and sys.stderr.isatty()
    columns: list[TableColumn] = []
    if options.create:
        with Waiting(sys.stderr, is_watched):
            columns = _columns(file, options.types)
        read = "as the file states" if file.form.kind in STATES_TYPES else "inferred"
        shown = ", ".join(map(str, columns))
        report(harmless(f"table {options.table}, {read} (--types says others): {shown}"))
    bar = Bar(sys.stderr, is_watched)
    with Connection(settings) as connection:
        run = Load(
            connection,
            file,
            options.table,
            resume=options.resume,
            at_once=options.at_once,
            write_concern=options.write_concern,
            on_progress=bar.show,
        )
        report(f"load {run.id}")
        try:
            if columns and not _create(connection, run, options.table, columns, report):
                return EXIT_REJECTED
            loaded = run.load_pieces()
        except DataError as error:
            if error.error_class:  # a server's error
                return _failed(error, run.id, bar, report)
            raise ValueError(error.message) from error
        except Error as error:
            return _failed(error, run.id, bar, report)
        except KeyboardInterrupt:
            bar.end()
            report(f"go on with --resume {run.id}")
            return EXIT_INTERRUPTED
    bar.end()
    report(_summary(loaded, bar.seconds))
    return 0


def _columns(file: LoadFile, types: str | None) -> list[TableColumn]:
    """Return the columns of the table to create; ValueError if the file does not show them."""
    try:
        return table_of(file, stated_types(types))
    except DataError as error:
        raise ValueError(error.message) from error


def _create(
    connection: Connection,
    run: Load,
    table: str,
    columns: list[TableColumn],
    report: Report,
) -> bool:
    """Create the table; repeated in the same load, it is one request. Raises Error.

    An existing table with the same columns is accepted. Returns False if the ring rejected the
    statement, which is final for this load.
    """
    statement = create_statement(table, columns)
    try:
        connection.execute(statement, request_id=f"{run.id}.create", age_s=run.age_s)
    except DatabaseError as error:
        if error.sqlstate != TABLE_EXISTS and error.outcome is Outcome.REJECTED:
            output.write_error(error, "table", sys.stderr, full=False)
            return False
        if error.sqlstate != TABLE_EXISTS:
            raise
        question = f"SELECT * FROM {table_name(table)} LIMIT 0"
        there = connection.execute(question, consistency="linearizable").fetch_arrow_table()
        if differs := differences(columns, of_result(there.schema)):
            raise DataError(
                f"{table} exists and has other columns: {'; '.join(differs)}. Give the table's "
                "types with --types, or load without --create"
            ) from error
        report(f"table {table} exists, with these columns")
    return True


def _failed(error: Error, load_id: str, bar: Bar, report: Report) -> int:
    bar.end()
    first, _, _ = error.message.partition("\n")
    print(f"haclient: {harmless(first)}", file=sys.stderr)
    report(f"go on with --resume {load_id}")
    return exit_code(error)


def _summary(loaded: Loaded, seconds: float) -> str:
    rate = _rate(loaded, seconds)
    skipped = f" · {loaded.skipped} of {loaded.pieces} pieces were there" if loaded.skipped else ""
    return f"{loaded.rows} rows · {_size(loaded.bytes)} in {seconds:.1f} s · {rate}{skipped}"


def _rate(loaded: Loaded, seconds: float) -> str:
    return f"{_size(int(loaded.bytes / max(seconds, 0.001)))}/s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


class Bar:
    """A line on the terminal that shows the progress of a load; nothing without a terminal."""

    def __init__(self, out: TextIO, shown: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._line = Line(out, shown)
        self._now = now
        self._began = now()

    @property
    def seconds(self) -> float:
        """Return the seconds since the load began."""
        return self._now() - self._began

    def show(self, loaded: Loaded) -> None:
        """Show how much has been loaded."""
        share = loaded.bytes / loaded.size if loaded.size else 1.0
        full = int(share * BAR_WIDTH)
        line = (
            f"[{'#' * full}{'.' * (BAR_WIDTH - full)}] {share:4.0%} · {loaded.rows} rows · "
            f"{_size(loaded.bytes)} · {_rate(loaded, self.seconds)}"
        )
        if 0 < share < 1:
            line += f" · {self.seconds / share - self.seconds:.0f} s left"
        self._line.write(line)

    def end(self) -> None:
        """Remove the line from the terminal."""
        self._line.end()
