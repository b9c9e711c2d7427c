"""The prompt of `haclient sql`: statements over several lines, commands, completion, history.

Completion by Tab and the history need the extra ``cli`` (prompt_toolkit); without it plain lines
are read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import haclient
from haclient import statements
from haclient.exceptions import Error
from haclient.statements import reads_only, split

_QUIT: Final = ("quit", "exit", "\\q")
_HELP: Final = ("help", "?")
HELP: Final = """\
Statements end with ; and may take several lines. Those that end with \\G show each row's columns
one below another; wide rows are shown so by themselves. Tab completes tables, columns and words.
Ctrl-C cancels the statement that runs, or forgets what was typed. At the beginning of a statement:
  help  \\help       this text
  \\errors full      show all lines of errors, now those of the last one; \\errors short: the first
  quit  \\q  Ctrl-D  leave
A long result is shown by $PAGER (less -FRX); an empty $PAGER switches that off.
`haclient sql --help` shows the options, among them --format and --rows."""
NAMES_S: Final = 3.0
"""The time limit of a query for names: the user who pressed Tab waits for it. Chosen."""
NAMES_AGE_MAX_S: Final = 60.0
"""Names are asked for again after this time: another client may have made a table. Chosen."""


class Runs(Protocol):
    """What the prompt needs of the object that runs its statements."""

    connection: haclient.Connection
    full_errors: bool
    last_error: Error | None
    muted: bool

    def show(self, text: str) -> None:
        """Write a line for the user."""

    def show_error(self, error: Error) -> None:
        """Write an error for the user."""

    def run_and_show(self, statement: str, *, vertical: bool = False) -> bool:
        """Run one statement; return True if it succeeded."""


def run(runner: Runs) -> int:
    """Read statements that end with ``;`` and run them, until the input ends; return 0."""
    names = RingNames(runner)
    read_line = _reader(names, runner.show)
    servers = ", ".join(server.url for server in runner.connection.settings.servers)
    runner.show(f"{servers}\nEnd a statement with ; — quit with Ctrl-D, help with \\help.")
    text = ""
    while True:
        try:
            line = read_line("haclient> " if not text else "      ... ", text)
        except KeyboardInterrupt:
            text = ""
            continue
        except EOFError:
            return 0
        command = "" if text else line.strip().rstrip(";").strip().lower()
        if command in _QUIT:
            return 0
        if command.startswith("\\") or command in _HELP:
            _command(runner, command.split())
            continue
        parts = split(f"{text}\n{line}" if text else line)
        text = parts.rest
        for place, statement in enumerate(parts.statements):
            names.changed_by(statement)
            with suppress(KeyboardInterrupt):  # it had ended already
                runner.run_and_show(statement, vertical=place in parts.vertical)


def _command(runner: Runs, words: list[str]) -> None:
    r"""Run a command of the prompt, such as ``\errors full``; for an unknown one show the help."""
    if words not in (["\\errors", "full"], ["\\errors", "short"]):
        runner.show(HELP)
        return
    runner.full_errors = words[1] == "full"
    if runner.full_errors and runner.last_error is not None:
        runner.show_error(runner.last_error)


class RingNames:
    """The names of schemas, tables and columns in the ring; implements `statements.Names`."""

    def __init__(self, runner: Runs, now: Callable[[], float] = time.monotonic) -> None:
        self._runner = runner
        self._now = now
        self._known: dict[str, tuple[float, list[str]]] = {}

    def changed_by(self, statement: str) -> None:
        """Forget all names if this statement may change them."""
        if not reads_only(statement):
            self._known.clear()

    def schemas(self) -> list[str]:
        """Return the names of the schemas."""
        return self._asked("SHOW SCHEMAS", lambda cursor: [row[0] for row in cursor])

    def tables(self, schema: str) -> list[str]:
        """Return the names of a schema's tables; for an empty text of the session's schema."""
        within = f" IN {schema}" if schema else ""
        return self._asked(f"SHOW TABLES{within}", lambda cursor: [row[1] for row in cursor])

    def columns(self, table: str) -> list[str]:
        """Return the names of a table's columns."""
        return self._asked(
            f"SELECT * FROM {table} LIMIT 0",
            lambda cursor: [column.name for column in cursor.description or ()],
        )

    def _asked(self, question: str, read: Callable[[haclient.Cursor], list[str]]) -> list[str]:
        at, known = self._known.get(question, (None, []))
        if at is not None and self._now() - at < NAMES_AGE_MAX_S:
            return known
        self._runner.muted = True
        try:
            with self._runner.connection.cursor() as cursor:
                known = read(cursor.execute(question, timeout_s=NAMES_S))
        except Error:  # Tab offers less until the query succeeds
            return []
        finally:
            self._runner.muted = False
        self._known[question] = (self._now(), known)
        return known


def _reader(names: statements.Names, report: Callable[[str], None]) -> Callable[[str, str], str]:
    """Return a function that reads a line from the user.

    Its arguments are the prompt, and the statement's earlier lines, which the completion needs.
    """
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.history import FileHistory, InMemoryHistory
    except ImportError:
        return lambda prompt, before: input(prompt)

    class Tab(Completer):  # type: ignore[misc]
        """Completes the name before the text cursor."""

        before = ""

        def get_completions(self, document: Any, event: Any) -> Any:
            """Yield the names and words that can stand at the text cursor."""
            text = f"{self.before}\n{document.text_before_cursor}"
            want = statements.wanted(text, document.text_after_cursor)
            for each in statements.completions(want, names) if want is not None else ():
                yield Completion(each, start_position=-len(want.typed) if want else 0)

    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    file = Path(state) / "haclient" / "history"
    history: Any = InMemoryHistory()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)  # statements may contain secrets
        history = FileHistory(str(file))
    except OSError as error:
        report(f"the history is not kept: {file}: {error.strerror}")
    tab = Tab()
    session = PromptSession(
        history=history,
        completer=tab,
        complete_while_typing=False,
        complete_in_thread=True,
    )

    def read(prompt: str, before: str) -> str:
        tab.before = before
        return str(session.prompt(prompt))

    return read
