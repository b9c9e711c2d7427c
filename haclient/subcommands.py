"""`haclient load` and `haclient submit`: a file into a table, a Python program as a job."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

from haclient.exceptions import DataError, Error
from haclient.files import PIECE_BYTES, FileKind, Loaded, LoadFile, form_of
from haclient.protocol import JobFile
from haclient.screen import Line
from haclient.settings import Settings
from haclient.sync.connection import Connection
from haclient.sync.jobs import Jobs
from haclient.sync.load import AT_ONCE, Load
from haclient.terminal import harmless

LOAD: Final = """\
Load a file into a table, in pieces of which each is acknowledged by itself.

What the file holds follows from its name (.csv, .tsv, .jsonl, .ndjson, each also .gz; .parquet,
.arrow, .feather) or --format. A load that broke off goes on with --resume ID: what is in the table
is passed over. Exit codes: 0 loaded, 1 a piece was rejected, 2 wrong usage, 3 no server was
available, 4 it is not known whether a piece is in the table, 130 interrupted.
"""
"""The text of `haclient load --help`."""
SUBMIT: Final = """\
Run a Python program as a job of the ring.

Its log goes to standard output, its id and its state to standard error. With --follow the exit code
is the job's: 0 for success, the program's own if that failed, else 1. Without, 0 once the job is
accepted. 2 wrong usage, 3 no server was available and nothing was done, 4 it is not known whether
the job was accepted, 130 interrupted: the job goes on.
"""
"""The text of `haclient submit --help`."""
BAR_WIDTH: Final = 30
EXIT_INTERRUPTED: Final = 130


def add_load_arguments(command: argparse.ArgumentParser) -> None:
    """Add what is this command's own."""
    add = command.add_argument
    add("file", type=Path, help="a file of this machine")
    add("--table", required=True, help="[catalog.][schema.]name")
    add("--format", choices=list(FileKind), help="what the file holds (else by its name)")
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


def load(
    options: argparse.Namespace,
    settings: Settings,
    report: Callable[[str], None],
    exit_code: Callable[[Error], int],
) -> int:
    """Run the command; return the exit code. Raises OSError and ValueError for wrong usage."""
    if options.at_once < 1:
        raise ValueError("--at-once must be at least 1")
    form = form_of(
        options.file,
        options.format,
        columns=options.columns,
        delimiter=options.delimiter,
        null=options.null,
        time_zone=options.time_zone,
    )
    file = LoadFile(options.file, form, PIECE_BYTES)
    bar = Bar(sys.stderr, not options.quiet and sys.stderr.isatty())
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
            loaded = run.run()
        except DataError as error:
            if error.error_class:  # a server's
                return _failed(error, run.id, bar, report, exit_code)
            raise ValueError(error.message) from error
        except Error as error:
            return _failed(error, run.id, bar, report, exit_code)
        except KeyboardInterrupt:
            bar.end()
            report(f"go on with --resume {run.id}")
            return EXIT_INTERRUPTED
    bar.end()
    report(_summary(loaded, bar.seconds))
    return 0


def _failed(
    error: Error,
    load_id: str,
    bar: Bar,
    report: Callable[[str], None],
    exit_code: Callable[[Error], int],
) -> int:
    bar.end()
    print(f"haclient: {error.message}", file=sys.stderr)
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
    """One line that shows how far a load is; nothing where nobody looks."""

    def __init__(self, out: TextIO, shown: bool, now: Callable[[], float] = time.monotonic) -> None:
        self._line = Line(out, shown)
        self._now = now
        self._began = now()

    @property
    def seconds(self) -> float:
        """The time for which it has been shown."""
        return self._now() - self._began

    def show(self, loaded: Loaded) -> None:
        """Show how far a load is."""
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
        """Take the line away."""
        self._line.end()


FINAL: Final = frozenset({"success", "dead", "killed", "error"})
POLL_S: Final = 0.5
EXIT_FAILED: Final = 1


def add_submit_arguments(command: argparse.ArgumentParser) -> None:
    """Add what is this command's own."""
    add = command.add_argument
    add("program", type=Path, help="a Python file of this machine")
    add("--py-files", metavar="FILES", default="", help="modules it imports, with commas")
    add("--files", metavar="FILES", default="", help="data for its working folder, with commas")
    add("--arg", action="append", default=[], metavar="TEXT", help="an argument; may be repeated")
    add("--name", help="what to call the job")
    add(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, such as haproc.restart=3; may be repeated",
    )
    add("--driver-memory", metavar="SIZE", help="what the program may take, such as 2g")
    add("--follow", action="store_true", help="show its log, and end as it ends")


def submit(
    options: argparse.Namespace,
    settings: Settings,
    report: Callable[[str], None],
    exit_code: Callable[[Error], int],
) -> int:
    """Run the command; return the exit code. Raises OSError and ValueError for wrong usage."""
    request, files = read_request(options)
    with Jobs(settings) as jobs:
        try:
            job = jobs.submit(request, files, options.request_id)
            report(f"job {job['id']}")
            return follow(jobs, int(job["id"]), report) if options.follow else 0
        except Error as error:
            print(f"haclient: {error.message}", file=sys.stderr)
            return exit_code(error)
        except KeyboardInterrupt:
            report("the job goes on")
            return 130


def read_request(options: argparse.Namespace) -> tuple[dict[str, Any], list[JobFile]]:
    """Return the request, and the files that go with it."""
    confs: dict[str, str] = {}
    for setting in options.conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--conf {setting!r} is not KEY=VALUE")
        confs[key] = value
    request: dict[str, Any] = {"args": options.arg, "conf": confs}
    if options.name:
        request["name"] = options.name
    if options.driver_memory:
        request["driverMemory"] = options.driver_memory
    named = [("file", options.program)]
    named += [("pyFiles", Path(each)) for each in options.py_files.split(",") if each]
    named += [("files", Path(each)) for each in options.files.split(",") if each]
    return request, [JobFile(part, path.name, path.read_bytes()) for part, path in named]


def follow(jobs: Jobs, job_id: int, report: Callable[[str], None]) -> int:
    """Show a job's log until it ends; return what the command ends with."""
    at, state, attempts = 0, "", 0
    while True:
        job = jobs.job(job_id)
        now, ours = str(job["state"]), job["haproc"]
        if (now, ours["attempts"]) != (state, attempts):
            state, attempts = now, ours["attempts"]
            report(f"{state} · attempt {attempts} on {ours['cluster']}")
        at = _show(jobs, job_id, at)
        if state in FINAL:
            return _ended(ours, report)
        time.sleep(POLL_S)


def _show(jobs: Jobs, job_id: int, at: int) -> int:
    """Print what is new in the log; return the number of the next line."""
    while True:
        page = jobs.log(job_id, at)
        lines = page["log"]
        if lines:
            print("\n".join(map(harmless, lines)), flush=True)
        at = max(at, int(page["from"]) + len(lines))
        if not lines or at >= page["total"]:
            return at


def _ended(ours: dict[str, Any], report: Callable[[str], None]) -> int:
    if ours["why"]:
        report(harmless(str(ours["why"])))
    if ours["outcome"] == "success":
        return 0
    code = ours["exit_code"]
    return code if isinstance(code, int) and 0 < code < 256 else EXIT_FAILED
