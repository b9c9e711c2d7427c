"""``haproc config check``, ``haproc classify``, here or on a ring, and ``haproc spark-jar``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import ssl
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from haproc.classify.names import Context
from haproc.classify.rights import Role
from haproc.classify.rules import Rules, RulesError, load_rules
from haproc.cli import output
from haproc.cli.output import lines_of, report, under
from haproc.config.check import NAME
from haproc.config.load import load
from haproc.config.sections import digest_of
from haproc.config.tls import CertificateError, client_context
from haproc.config.tree import ConfigError
from haproc.engine import server
from haproc.failure import ErrorClass
from haproc.pipeline.ring import RingError as PipelineError
from haproc.pipeline.ring import tls_context
from haproc.ring import runtime
from haproc.ring.local import LocalRing
from haproc.ring.making import token_file
from haproc.ring.runtime import RuntimeMissingError
from haproc.ring.settings import EXTENSIONS, RingError

# ``haproc classify --server|--ring``: statements as a running ring classifies them.


_PATH: Final = "/api/ha/classify"
_AT_ONCE: Final = 8
"""The number of statements of a file that are sent at the same time. Chosen: a HAProc reads as many
at a time."""
_ANSWER_S: Final = 120.0
TOKEN_BYTES: Final = 32
"""The bytes of a new token: it cannot be guessed, not even from a fast hash."""


class UnansweredError(Exception):
    """No client door of the ring answers; the message names the reason."""


def classify_by_ring(
    options: argparse.Namespace, statements: Sequence[str], rules: Rules | None
) -> int:
    """Print how a running ring classifies the statements; return the exit code.

    Returns 3 if any statement is refused or wrong, or no HAProc answers; 2 if the doors' access is
    wrong. ``rules``: in place of the ring's own.
    """
    about = {"catalog": options.catalog, "schema": options.schema}
    about["tree"] = options.tree or options.file is None
    try:
        found = asyncio.run(shown(access_of(options), statements, about))
    except (RingError, PipelineError, CertificateError, OSError) as error:
        output.error(str(error))
        return output.USAGE
    except UnansweredError as error:
        output.error(f"{error}; is the ring up, and HACLIENT_TOKEN a user's token?")
        return output.NOT_READY
    if rules is not None:
        found = [under(each, rules, options.user) for each in found]
    if options.json:
        output.dump(found[0] if options.file is None else found)
    else:
        print("\n\n".join(_text(each) for each in found))
    return output.NOT_READY if any("refused" in e or "error" in e for e in found) else 0


def _text(answer: dict[str, Any]) -> str:
    tree = answer.pop("tree", None)
    replaced = [
        f"{each['text']} at {each['start']}-{each['end']} by {each['literal']}"
        for each in answer.pop("replaced", ())
    ]
    values = {**answer, "replaced": replaced} if replaced else answer
    lines = lines_of(values)
    return "\n".join(lines if tree is None else [*lines, "tree:", *(f"  {e}" for e in tree)])


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """The client doors that a command uses, with the token and TLS for them."""

    servers: Sequence[str]
    token: str | None
    tls: ssl.SSLContext | bool


def access_of(options: argparse.Namespace) -> ServerAccess:
    """Return the client doors that the options name, with the token and TLS for them.

    Raises RingError, CertificateError.
    """
    token = os.environ.get("HACLIENT_TOKEN") or None
    if options.ring is None:
        servers = [each.strip().rstrip("/") for each in options.server.split(",")]
        return ServerAccess(servers, token, tls_context())
    ring = LocalRing.open(options.ring)
    if token is None and ring.config.users:
        token = (ring.folder / token_file(ring.config.users[0].name)).read_text().strip()
    return ServerAccess(ring.urls.split(","), token, client_context(ring.config.tls))


async def shown(
    access: ServerAccess, statements: Sequence[str], about: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return how a running ring classifies the statements, in their order.

    ``about``: further fields of each request. A wrong statement has an ``error``. Raises
    UnansweredError.
    """
    servers = access.servers
    headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    connector = aiohttp.TCPConnector(ssl=access.tls)
    permits = asyncio.Semaphore(_AT_ONCE)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:

        async def one(statement: str) -> dict[str, Any]:
            async with permits:
                return await _ask(session, servers, {"statement": statement, **about})

        return list(await asyncio.gather(*map(one, statements)))


async def _ask(
    session: aiohttp.ClientSession, servers: Sequence[str], body: dict[str, Any]
) -> dict[str, Any]:
    why = ""
    for url in servers:
        try:
            async with session.post(url + _PATH, json=body) as response:
                answer: dict[str, Any] = await response.json()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            why = f"{url} does not answer: {error or type(error).__name__}"
            continue
        if response.status == 200:
            return answer
        if response.status in (400, 422):
            return {"statement": body["statement"], "error": answer}
        why = f"{url}: {answer.get('message', response.reason)}"
        if answer.get("error_class") in (ErrorClass.UNAUTHENTICATED, ErrorClass.FORBIDDEN):
            break
    raise UnansweredError(why)


# ``haproc config check``, ``haproc classify`` and ``haproc spark-jar``.


def check_config(options: argparse.Namespace) -> int:
    """Print every problem of a configuration file; return the exit code."""
    try:
        config = load(options.file, os.environ)
    except ConfigError as error:
        if options.json:
            output.dump({"ok": False, "problems": [str(p) for p in error.problems]})
        else:
            output.error(str(error))
        return output.USAGE
    names = [cluster.name for cluster in config.clusters]
    if options.json:
        output.dump({"ok": True, "ring": config.ring, "clusters": names})
    else:
        print(f"{options.file}: ring {config.ring}, clusters {', '.join(names)}: correct")
    return 0


def token(options: argparse.Namespace) -> int:
    """Make a token for a user: print it once, with its entry for the configuration."""
    if not NAME.fullmatch(options.name):
        output.error(f"{options.name!r} must be 1 to 63 letters, digits, '.', '_' or '-'")
        return output.USAGE
    made = secrets.token_urlsafe(TOKEN_BYTES)
    entry: dict[str, Any] = {"name": options.name, "token_hash": digest_of(made)}
    entry["roles"] = options.role or [Role.READER.value, Role.WRITER.value]
    entry["tables"] = options.table or ["*"]
    print(f"the user's token, shown once: {made}", file=sys.stderr)
    print(f"- {json.dumps(entry)}")
    return 0


def spark_jar(options: argparse.Namespace) -> int:
    """Print the path of the Spark plugin's jar, built if needed, and the settings that load it."""
    try:
        jar = runtime.jar(lambda step: print(step, file=sys.stderr))
    except RuntimeMissingError as error:
        output.error(str(error))
        return output.FAILED
    settings = {
        "spark.jars": str(jar),
        server.EXTENSION_SETTING: EXTENSIONS,
        server.READER_SETTING: server.READER,
    }
    if options.json:
        output.dump({"jar": str(jar), "version": server.version(), "settings": settings})
    else:
        print(jar)
        print("\n".join(f"{key} {value}" for key, value in settings.items()))
    return 0


def classify(options: argparse.Namespace) -> int:
    """Print the classes of statements; return the exit code, 3 if any statement is refused."""
    try:
        rules = load_rules(options.rules) if options.rules else Rules.builtin()
        statements = _statements(options.statement, options.file)
    except (RulesError, OSError) as error:
        output.error(str(error))
        return output.USAGE
    if not statements:
        output.error("give a statement, or a file of them with --file")
        return output.USAGE
    if options.server or options.ring:
        return classify_by_ring(options, statements, rules if options.rules else None)
    context = Context(options.catalog, options.schema, options.user)
    reports = [report(sql, context, rules) for sql in statements]
    if options.json:
        shown = [each.as_dict() for each in reports]
        output.dump(shown[0] if options.file is None else shown)
    else:
        print("\n\n".join(each.as_text() for each in reports))
    return output.NOT_READY if any(each.refused for each in reports) else 0


def _statements(statement: str | None, file: Path | None) -> list[str]:
    if file is None:
        return [] if statement is None else [statement]
    text = sys.stdin.read() if str(file) == "-" else file.read_text()
    return [line for line in text.splitlines() if line.strip()]
