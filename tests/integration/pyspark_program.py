"""A program that uses Spark through PySpark's own, unmodified client, in a separate process.

As a module it is that process: ``python -m tests.integration.pyspark_program TARGET`` reads lines
of Python from its input, runs each with ``spark`` and ``F``, and writes the results as JSON.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ANSWER_S = 120.0
"""A cold Spark on a busy machine takes many seconds for its first statement of a kind."""
_ANSWER = "answer "


class FailedError(Exception):
    """A line raised; ``kind`` is the exception's class.

    ``details``: its condition, SQLSTATE, parameters and places, if it has some.
    """

    def __init__(self, kind: str, message: str, details: Sequence[Any] = ()) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.details = details


class Program:
    """The process, seen from a test. ``target`` is an ``sc://`` URL, or gRPC's name of a list."""

    def __init__(self, target: str, environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.pyspark_program", target],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **(environment or {})},
        )
        self._rest = b""

    def send(self, line: str) -> None:
        """Let a line run, without waiting for its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def answer(self, timeout_s: float = ANSWER_S) -> Any:
        """Return the result of the line that was sent; raise FailedError if it failed."""
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                if line.startswith(_ANSWER.encode()):
                    break
                continue
            ready, _, _ = select.select([out], [], [], timeout_s)
            assert ready, f"no answer within {timeout_s} s"
            more = os.read(out, 1 << 16)
            assert more, "the program ended"
            self._rest += more
        answer = json.loads(line.decode().removeprefix(_ANSWER))
        if "error" in answer:
            raise FailedError(*answer["error"])
        return answer["value"]

    def run(self, line: str) -> Any:
        """Run a line and return its value: rows as lists, or None for a statement."""
        self.send(line)
        return self.answer()

    def end(self) -> None:
        """Close the program."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


def _session(target: str) -> Any:
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # as `pyspark --remote` does
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    if target.startswith("sc://"):
        return SparkSession.builder.remote(target).getOrCreate()

    class Listed(DefaultChannelBuilder):
        def toChannel(self) -> Any:
            return self._insecure_channel(target)

    builder: Any = SparkSession.builder
    return builder.channelBuilder(Listed("sc://localhost:1")).getOrCreate()


def _value(line: str, names: dict[str, Any]) -> Any:
    try:
        code = compile(line, "line", "eval")
    except SyntaxError:
        exec(compile(line, "line", "exec"), names)
        return None
    found = eval(code, names)
    return found if isinstance(found, str | int | float | list | None) else repr(found)


def _details(error: Exception) -> list[Any]:
    from pyspark.errors import PySparkException, QueryContextType

    if not isinstance(error, PySparkException):
        return []
    places = [
        [each.fragment(), each.startIndex(), each.stopIndex()]
        for each in error.getQueryContext()
        if each.contextType() is QueryContextType.SQL
    ]
    return [error.getCondition(), error.getSqlState(), error.getMessageParameters(), places]


def main() -> None:
    """Run lines until there are no more."""
    from pyspark.sql import functions

    names: dict[str, Any] = {"spark": _session(sys.argv[1]), "F": functions}
    for line in sys.stdin:
        try:
            answer: Any = {"value": _value(line.strip(), names)}
        except Exception as error:
            answer = {"error": [type(error).__name__, str(error), _details(error)]}
        print(f"{_ANSWER}{json.dumps(answer)}", flush=True)
    # A session that nobody stopped closes its channel as Python collects it at the very end, when
    # gRPC's threads are gone: that hung now and then, for good.
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    main()
