"""The settings of the pipeline's programs, and their access to the ring.

The settings are environment variables:

- ``SPARK_REMOTE``: the ``sc://`` URL of the PySpark doors: all of them before the slash, in order;
- ``HACLIENT_SERVERS``: the client doors' URLs, separated by commas;
- ``HACLIENT_TOKEN``: the user's token; by default the token in ``SPARK_REMOTE``, as in a job;
- ``HACLIENT_CA_FILE``, ``HACLIENT_CERTIFICATE_FILE``, ``HACLIENT_KEY_FILE``: for doors with TLS.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import haclient
from haclient.settings import tls_files, tls_options

ANSWER_S: Final = 120.0
"""The longest wait for an answer: a page after a HAProc's restart takes seconds of a core."""
OUTAGE_S: Final = 60.0
"""Seconds for which all client doors are tried again and again, as haclient does."""
PAUSE_S: Final = 0.5


class RingError(Exception):
    """No HAProc answered, or one refused the request; the message says what to do.

    ``status``: the HTTP status of the refusal; None without an answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An HTTP answer's body, and its headers."""

    body: bytes
    headers: http.client.HTTPMessage

    def number(self, name: str) -> int:
        """Return the number that the header ``name`` has."""
        return int(self.headers[name])


@dataclass(slots=True)
class ClientDoors:
    """The ring's client doors; the one that answered last is asked first."""

    servers: Sequence[str]
    token: str = field(default="", repr=False)
    answer_s: float = ANSWER_S
    """The longest wait for one answer, in seconds."""
    tls: ssl.SSLContext | None = None
    """TLS with files of its own; None: the system's certificates are trusted."""
    at: int = 0

    def next(self) -> None:
        """From now on, begin with the door after the present one."""
        self.at = (self.at + 1) % len(self.servers)

    def ask(self, path: str, body: object = None) -> HttpAnswer:
        """Send a GET, or a POST of ``body`` as JSON, to the doors in turn; return the first answer.

        It may be sent several times. A door that is away, or cannot answer now, is passed over.
        Raises RingError if a door refuses the request, or none has answered after OUTAGE_S seconds.
        """
        until, why = time.monotonic() + OUTAGE_S, ""
        while True:
            for _ in self.servers:
                try:
                    return self._ask(self.servers[self.at], path, body)
                except urllib.error.HTTPError as error:
                    why = _message(error)
                    if error.code < 500 and error.code not in (409, 429):
                        raise RingError(why, error.code) from error
                except (OSError, http.client.HTTPException) as error:
                    why = f"{self.servers[self.at]}: {error}"
                self.next()
            if time.monotonic() > until:
                raise RingError(f"no HAProc answers: {why}")
            time.sleep(PAUSE_S)

    def _ask(self, server: str, path: str, body: object) -> HttpAnswer:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        data = None if body is None else json.dumps(body).encode()
        if data is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(server.rstrip("/") + path, data, headers)
        with urllib.request.urlopen(request, timeout=self.answer_s, context=self.tls) as response:
            return HttpAnswer(response.read(), response.headers)


def _message(error: urllib.error.HTTPError) -> str:
    with error:
        try:
            return str(json.loads(error.read())["message"])
        except (ValueError, KeyError, TypeError):
            return f"answered {error.code}"


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a command-line parser with the options that all programs of the pipeline have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--remote",
        default=os.environ.get("SPARK_REMOTE", ""),
        help="sc:// URL of the ring's PySpark doors ($SPARK_REMOTE)",
    )
    parser.add_argument(
        "--servers",
        default=os.environ.get("HACLIENT_SERVERS", ""),
        help="URLs of its client doors, by commas ($HACLIENT_SERVERS)",
    )
    return parser


@contextmanager
def session(options: argparse.Namespace) -> Iterator[Any]:
    """Open a PySpark session on the ring for this context, with the read level ``linearizable``.

    Raises RingError if no address is given.
    """
    if not options.remote:
        raise RingError("--remote or SPARK_REMOTE is needed: sc://host:port of the PySpark doors")
    spark = haclient.spark(options.remote, **tls_options(os.environ))
    spark.conf.set("haproc.consistency", "linearizable")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        yield spark
    finally:
        spark.stop()


def doors(options: argparse.Namespace, answer_s: float = ANSWER_S) -> ClientDoors:
    """Return the client doors that the options name; raises RingError if they name none."""
    servers = [each.strip() for each in options.servers.split(",") if each.strip()]
    if not servers:
        raise RingError("--servers or HACLIENT_SERVERS is needed: URLs of the client doors")
    token = os.environ.get("HACLIENT_TOKEN", "") or token_in(options.remote)
    return ClientDoors(servers, token, answer_s, tls_context())


def tls_context(**files: Path | None) -> ssl.SSLContext:
    """Return a TLS context from these files, or from those that haclient's variables name.

    Raises RingError.
    """
    try:
        return tls_files(**tls_options(os.environ, files)).context()
    except haclient.InterfaceError as error:
        raise RingError(str(error)) from error


def token_in(remote: str) -> str:
    """Return the token that a PySpark URL (``sc://…;token=…``) has; empty: none."""
    for option in remote.split(";")[1:]:
        key, _, value = option.partition("=")
        if key == "token":
            return urllib.parse.unquote(value)
    return ""
