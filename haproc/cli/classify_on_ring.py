"""``haproc classify --server|--ring``: asks a running ring what would become of statements."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final

import aiohttp

from haproc.classify.rules import Rules
from haproc.cli import output
from haproc.cli.report import lines_of, under
from haproc.failure import ErrorClass
from haproc.ring.access import token_file
from haproc.ring.errors import RingError
from haproc.ring.local import LocalRing

_PATH: Final = "/api/ha/classify"
_AT_ONCE: Final = 8
"""Statements of a file that are under way. Chosen: a HAProc reads as many at a time."""
_ANSWER_S: Final = 120.0


class UnansweredError(Exception):
    """No server of the ring answers; the message says why."""


def classify(options: argparse.Namespace, statements: Sequence[str], rules: Rules | None) -> int:
    """Print what the ring tells; 3 if any statement is refused or wrong, 4 if none answers.

    ``rules``: in place of the ring's own.
    """
    about = {"catalog": options.catalog, "schema": options.schema}
    about["tree"] = options.tree or options.file is None
    try:
        servers, token = servers_of(options)
        found = asyncio.run(shown(servers, token, statements, about))
    except (RingError, OSError) as error:
        output.error(str(error))
        return output.USAGE
    except UnansweredError as error:
        output.error(f"{error}; is the ring up, and HACLIENT_TOKEN a user's token?")
        return output.FAILED
    if rules is not None:
        found = [under(each, rules, options.user) for each in found]
    if options.json:
        output.dump(found[0] if options.file is None else found)
    else:
        print("\n\n".join(_text(each) for each in found))
    return output.NOT_READY if any("refused" in e or "error" in e for e in found) else 0


def _text(told: dict[str, Any]) -> str:
    tree = told.pop("tree", None)
    replaced = [
        f"{each['text']} at {each['start']}-{each['end']} by {each['literal']}"
        for each in told.pop("replaced", ())
    ]
    values = {**told, "replaced": replaced} if replaced else told
    lines = lines_of(values)
    return "\n".join(lines if tree is None else [*lines, "tree:", *(f"  {e}" for e in tree)])


def servers_of(options: argparse.Namespace) -> tuple[list[str], str | None]:
    """Return the client doors that the options name, and the token; raises RingError."""
    token = os.environ.get("HACLIENT_TOKEN") or None
    if options.ring is None:
        return [each.strip().rstrip("/") for each in options.server.split(",")], token
    ring = LocalRing.open(options.ring)
    if token is None and ring.config.users:
        token = (ring.folder / token_file(ring.config.users[0].name)).read_text().strip()
    return ring.urls.split(","), token


async def shown(
    servers: Sequence[str], token: str | None, statements: Sequence[str], about: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return what a ring tells of the statements, in their order; raises UnansweredError.

    ``about``: what else is said of each. One that is wrong has an ``error``.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    places = asyncio.Semaphore(_AT_ONCE)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:

        async def one(statement: str) -> dict[str, Any]:
            async with places:
                return await _ask(session, servers, {"statement": statement, **about})

        return list(await asyncio.gather(*map(one, statements)))


async def _ask(
    session: aiohttp.ClientSession, servers: Sequence[str], body: dict[str, Any]
) -> dict[str, Any]:
    why = ""
    for server in servers:
        try:
            async with session.post(server + _PATH, json=body) as response:
                told: dict[str, Any] = await response.json()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            why = f"{server} does not answer: {error or type(error).__name__}"
            continue
        if response.status == 200:
            return told
        if response.status in (400, 422):
            return {"statement": body["statement"], "error": told}
        why = f"{server}: {told.get('message', response.reason)}"
        if told.get("error_class") == ErrorClass.UNAUTHENTICATED:
            break
    raise UnansweredError(why)
