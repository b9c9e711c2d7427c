"""`haclient sql`: run one statement, a file of them, or a prompt.

Results go to standard output; which cluster answered, how long it took and every failover go to
standard error. Exit codes: 0 all went well, 1 a statement was rejected, 2 wrong usage, 3 no server
was available and nothing was done, 4 it is not known whether a write was carried out, 130
interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import haclient
from haclient import load_command, output, prompt, ring_commands
from haclient.exceptions import DatabaseError, Error, InterfaceError
from haclient.output import (
    EXIT_INTERRUPTED,
    EXIT_REJECTED,
    EXIT_USAGE,
    Report,
    Waiting,
    exit_code,
    harmless,
)
from haclient.settings import (
    LEVELS,
    VARIABLES,
    Failover,
    Settings,
    make_settings,
    parse_servers,
    tls_options,
)
from haclient.statements import Split, split

DEFAULT_SERVERS = "http://127.0.0.1:8080"
TABLE_ROWS_MAX = 1000
"""How many rows the table format shows by default: a table is built in memory."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line of `haclient`."""
    main = argparse.ArgumentParser(prog="haclient", description="SQL on a ring of HAProcs.")
    main.add_argument("--version", action="version", version=f"haclient {version('haproc')}")
    main.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "tcsh"),
        action=PrintCompletion,
        help="print a script that has this shell complete haclient's words",
    )
    commands = main.add_subparsers(dest="command", required=True)

    def command(name: str, summary: str, description: str | None) -> argparse.ArgumentParser:
        plain = argparse.RawDescriptionHelpFormatter
        return commands.add_parser(
            name, help=summary, description=description, formatter_class=plain
        )

    _add_sql(command("sql", "run statements", __doc__))
    job = command("submit", "run a program as a job", ring_commands.SUBMIT)
    ring_commands.add_submit_arguments(job)
    job.add_argument(
        "--request-id", metavar="ID", help="idempotency key: asked again, it is the same job"
    )
    _add_ring(job, wait_s=10.0)
    file = command("load", "load a file", load_command.LOAD)
    load_command.add_load_arguments(file)
    _add_ring(file, wait_s=30.0)
    jobs = command("jobs", "the ring's jobs", ring_commands.JOBS)
    for action in ring_commands.add_jobs_arguments(jobs):
        _add_ring(action, wait_s=10.0)
    status = command("status", "show the ring's clusters", ring_commands.STATUS)
    ring_commands.add_status_arguments(status)
    _add_ring(status, wait_s=10.0)
    return main


def _add_sql(sql: argparse.ArgumentParser) -> None:
    """Add the arguments of `haclient sql`."""
    add = sql.add_argument
    add("statement", nargs="?", help="one or several, separated by ';'; none: a prompt, or stdin")
    _add_ring(sql, wait_s=10.0)
    add("--file", type=Path, metavar="FILE", help="run the statements of a file; - is stdin")
    add("--format", choices=output.FORMATS, help="table (default), vertical, csv, json or jsonl")
    add("--json", action="store_true", help="same as --format json: one document per statement")
    add(
        "--rows",
        type=int,
        metavar="N",
        help=f"show N rows at most; 0: all (table: {TABLE_ROWS_MAX})",
    )
    add("--catalog", help="where unqualified names are looked up")
    add("--schema", help="likewise")
    add("--timeout", type=float, default=300.0, metavar="S", help="each statement's deadline (300)")
    add("--class", dest="operation_class", metavar="CLASS", help="override the statement's class")
    add("--fanout", choices=("serial", "parallel"), help="of synchronous operations")
    add("--consistency", choices=LEVELS, help="how fresh a query's answer must be")
    add("--acceptable-offset-lag", type=int, metavar="N", help="records that bounded may lack")
    add("--write-concern", choices=("one", "majority", "all"), help="of writes")
    add("--request-id", metavar="ID", help="idempotency key (with one statement)")
    add("--errors", choices=("short", "full"), default="short", help="short: the first line only")
    add("--keep-going", action="store_true", help="go on after a statement that failed")


class PrintCompletion(argparse.Action):
    """An option that prints the completion script for a shell, and exits."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> NoReturn:
        """Print the completion script and exit; argparse calls this."""
        try:
            import shtab
        except ImportError:
            parser.error("--print-completion needs shtab: pip install 'haproc[cli]'")
        for each in _actions(parser):
            if each.type is Path:
                each.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, values))
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options and arguments of a command and of all its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _add_ring(command: argparse.ArgumentParser, *, wait_s: float) -> None:
    """Add the options that every command has: servers, token, TLS, time limit."""
    add = command.add_argument
    add("--server", metavar="URLS", help="in order of preference (else $HACLIENT_SERVERS)")
    add("--token-file", type=Path, metavar="FILE", help="holds the token (else $HACLIENT_TOKEN)")
    for name, variable in VARIABLES.items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=Path, metavar="FILE", help=f"of TLS, PEM (else ${variable})")
    waits = f"how long to wait for a server ({wait_s:g})"
    add("--wait", type=float, default=wait_s, metavar="S", help=waits)
    add("--quiet", action="store_true", help="nothing on standard error but errors")


_BECAME = {
    "revoked": "taken back: it has no effect on any cluster",
    "committed": "too late: it was committed, and stands",
    "rejected": "it was rejected before that",
    "ended": "it had ended",
    "undecided": "not taken back: it goes on; ask again with its id",
}
"""The text that is shown for a cancelled statement, by what became of it."""


class Runner:
    """Runs the statements of `haclient sql` on one connection, and shows their results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.form: str = "json" if options.json else options.format or "table"
        self.quiet: bool = options.quiet
        limit = options.rows
        if limit is None and self.form == "table":
            limit = TABLE_ROWS_MAX
        self.rows_max: int | None = limit or None
        self.options = options
        self.full_errors: bool = options.errors == "full"
        self.last_error: Error | None = None
        self.muted = False
        """True while the prompt itself asks the ring for names: then nothing is shown."""
        self.code = 0
        self._waiting: Waiting | None = None
        self._shown: set[str] = set()
        self.connection = haclient.connect(
            _servers(options, self.show),
            token=_token(options.token_file),
            **tls_options(os.environ, vars(options)),
            catalog=options.catalog,
            schema=options.schema,
            timeout_s=options.timeout,
            outage_s=options.wait,
            consistency=options.consistency,
            acceptable_offset_lag=options.acceptable_offset_lag,
            on_failover=self._failover,
        )

    def show(self, text: str) -> None:
        """Write a line on standard error, unless the user wants it quiet."""
        if self.quiet or self.muted:
            return
        if self._waiting is not None:
            self._waiting.print_line(text)
        else:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def _wait(self) -> Iterator[None]:
        """While the block runs, show on the terminal how long the statement has been running."""
        with Waiting(sys.stderr, not self.quiet and sys.stderr.isatty()) as self._waiting:
            try:
                yield
            finally:
                self._waiting = None

    def _failover(self, event: Failover) -> None:
        same = event.failed == event.next
        onward = "asked again" if same else f"→ {event.next}"
        line = f"failover: {event.failed} {onward} ({event.message})"
        if line not in self._shown:  # a request may go to the same servers again and again
            self._shown.add(line)
            self.show(line)

    def run_and_show(self, statement: str, *, vertical: bool = False) -> bool:
        """Run one statement; return True if it succeeded. ``vertical``: it ended with ``\\G``."""
        cursor = self.connection.cursor()
        begun = time.monotonic()
        self._shown.clear()
        try:
            with self._wait():
                cursor.execute(
                    statement,
                    request_id=self.options.request_id,
                    operation_class=self.options.operation_class,
                    fanout=self.options.fanout,
                    write_concern=self.options.write_concern,
                )
            executed_s = time.monotonic() - begun
            shown = self._write(cursor, "vertical" if vertical else self.form)
            self.show(_summary(cursor, shown, self.rows_max, executed_s))
            return True
        except Error as error:
            self.code = max(self.code, exit_code(error))
            self.last_error = error
            self.show_error(error)
        except KeyboardInterrupt:
            self.code = EXIT_INTERRUPTED
            self._interrupt(cursor)
        finally:
            cursor.close()
        return False

    def _write(self, cursor: haclient.Cursor, form: str) -> int:
        """Write the result. On a terminal, a long one in a form for people goes through the pager.

        Returns the number of rows that were shown.
        """
        out = sys.stdout
        if form not in output.FOR_PEOPLE or not out.isatty():
            shown = output.write_result(cursor, form, out, self.rows_max)
            out.flush()
            return shown
        drawn = io.StringIO()
        columns_max = None if self.options.format else shutil.get_terminal_size().columns
        shown = output.write_result(cursor, form, drawn, self.rows_max, columns_max)
        output.show(drawn.getvalue(), out)
        return shown

    def show_error(self, error: Error) -> None:
        """Show an error: on standard output if the results are JSON, else on standard error."""
        out = sys.stdout if self.form in ("json", "jsonl") else sys.stderr
        output.write_error(error, self.form, out, full=self.full_errors)

    def _interrupt(self, cursor: haclient.Cursor) -> None:
        try:
            with self._wait():
                became = cursor.cancel()
        except Error as error:
            self.show(f"not cancelled: {harmless(error.message)}")
        except KeyboardInterrupt:
            self.show(f"not known whether it was cancelled · request {cursor.request_id}")
        else:
            self.show(f"{_BECAME.get(became, 'cancelled')} · request {cursor.request_id}")

    def run_all(self, parts: Split) -> int:
        """Run the statements until one fails; with --keep-going run all. Return the exit code."""
        statements = [*parts.statements, *([parts.rest] if parts.rest else [])]
        for place, statement in enumerate(statements):
            done = self.run_and_show(statement, vertical=place in parts.vertical)
            if not done and (self.code == EXIT_INTERRUPTED or not self.options.keep_going):
                break
        return self.code


def _summary(cursor: haclient.Cursor, shown: int, rows_max: int | None, seconds: float) -> str:
    parts = [f"cluster {cursor.ha.get('cluster', '?')}"]
    if cursor.rowcount >= 0:
        parts.append(f"{cursor.rowcount} affected")
    elif cursor.description:
        more = rows_max is not None and shown == rows_max and cursor.fetchone() is not None
        parts.append(f"the first {shown} rows (--rows 0: all)" if more else _rows(shown))
    outcomes = cursor.ha.get("outcomes") or {}
    if outcomes:
        parts.append(", ".join(f"{name} {outcome}" for name, outcome in outcomes.items()))
    return " · ".join([*parts, f"{seconds:.3f} s"])


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _servers(options: argparse.Namespace, report: Report) -> str:
    """Return the servers' URLs from the options; report each port or scheme that is assumed.

    A scheme that is given also holds for the servers behind it.
    """
    given = str(options.server or os.environ.get("HACLIENT_SERVERS") or DEFAULT_SERVERS)
    texts = [text.strip() for text in given.split(",") if text.strip()]
    scheme_known = False
    for text, server in zip(texts, parse_servers(given), strict=True):
        scheme_known = scheme_known or "://" in text
        lacks = [
            what
            for what, known in (("scheme", scheme_known), ("port", f":{server.port}" in text))
            if not known
        ]
        if lacks:
            report(f"server {text} has no {' and no '.join(lacks)}: taken as {server.url}")
    return given


def _token(file: Path | None) -> str | None:
    if file is not None:
        return file.read_text().strip()
    return os.environ.get("HACLIENT_TOKEN") or None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `haclient` with these arguments; return the exit code."""
    options = parser().parse_args(arguments)
    try:
        code = _run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as head, has stopped reading
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_REJECTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    match options.command:
        case "submit":
            return _beside_sql(options, ring_commands.submit)
        case "jobs":
            return _beside_sql(options, ring_commands.jobs)
        case "status":
            return _beside_sql(options, ring_commands.status)
        case "load":
            own = {"catalog": options.catalog, "schema": options.schema}
            return _beside_sql(options, load_command.load, timeout_s=options.timeout, **own)
    try:
        given = _given_text(options)
        runner = Runner(options)
    except (OSError, InterfaceError) as error:
        print(f"haclient: {error}", file=sys.stderr)
        return EXIT_USAGE
    with runner.connection:
        if given is None:
            return prompt.run(runner)
        parts = split(given)
        if options.request_id and len(parts.statements) + bool(parts.rest) > 1:
            print("haclient: --request-id names one statement", file=sys.stderr)
            return EXIT_USAGE
        return runner.run_all(parts)


Command = Callable[[argparse.Namespace, Settings, Report], int]


def _beside_sql(options: argparse.Namespace, command: Command, **of_settings: Any) -> int:
    shown: set[str] = set()

    def show(text: str) -> None:
        if not options.quiet:
            print(text, file=sys.stderr, flush=True)

    def failover(event: Failover) -> None:
        line = f"failover: {event.failed} → {event.next} ({event.message})"
        if line not in shown:
            shown.add(line)
            show(line)

    try:
        settings = make_settings(
            _servers(options, show),
            token=_token(options.token_file),
            **tls_options(os.environ, vars(options)),
            outage_s=options.wait,
            on_failover=failover,
            **of_settings,
        )
        return command(options, settings, show)
    except BrokenPipeError:
        raise
    except (OSError, ValueError, InterfaceError) as error:
        print(f"haclient: {error}", file=sys.stderr)
        return EXIT_USAGE
    except DatabaseError as error:
        print(f"haclient: {harmless(error.message)}", file=sys.stderr)
        return exit_code(error)


def _given_text(options: argparse.Namespace) -> str | None:
    """Return the SQL text to run, from an argument, a file or standard input.

    None if there is none, so that the prompt must ask the user. Raises InterfaceError.
    """
    if options.statement is not None and options.file is not None:
        raise InterfaceError("give a statement or --file, not both")
    if options.statement is not None:
        return str(options.statement)
    if options.file is not None and str(options.file) != "-":
        return str(options.file.read_text())
    if options.file is None and sys.stdin.isatty():
        return None
    return sys.stdin.read()


if __name__ == "__main__":
    sys.exit(main())
