"""Beeline over the JDBC driver for Spark Connect; PySpark contains both."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from pathlib import Path

from haproc.ring import runtime
from haproc.ring.settings import MODULE_OPTIONS

DRIVER = "org.apache.spark.sql.connect.client.jdbc.SparkConnectDriver"
ANSWER_S = 120.0
_PROMPTS = ("0: ", ". . ")
"""Prompts, which beeline prints with its input even without a terminal."""


def driver_jars() -> list[Path]:
    """Return the driver's jars, which PySpark keeps separate from a server's."""
    return sorted((runtime.spark_home() / "jars" / "connect-repl").glob("spark-connect-client-*"))


class Beeline:
    """One beeline on one connection, which receives line after line."""

    def __init__(self, url: str, **environment: str) -> None:
        jars = [*map(str, driver_jars()), str(runtime.spark_home() / "jars" / "*")]
        command = [str(runtime.java()), *MODULE_OPTIONS, "-cp", os.pathsep.join(jars)]
        command += ["org.apache.hive.beeline.BeeLine", "-d", DRIVER, "-u", url, "-n", "", "-p", ""]
        command += ["--silent=true", "--outputformat=csv2", "--color=false"]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._count = 0

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))

    def say(self, *lines: str, timeout_s: float = ANSWER_S) -> list[str]:
        """Send lines, each a statement with its ``;`` or a command; return the output."""
        assert self._process.stdin is not None
        self._count += 1
        end = f"end-{self._count}"
        print(*lines, f"!sh echo {end}", sep="\n", file=self._process.stdin, flush=True)
        found: list[str] = []
        while True:
            line = self._lines.get(timeout=timeout_s)
            if line.strip() == end:
                return found
            if not line.startswith(_PROMPTS):
                found.append(line)

    def close(self) -> None:
        """End beeline."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(20)
        assert self._process.stdout is not None
        self._process.stdout.close()
