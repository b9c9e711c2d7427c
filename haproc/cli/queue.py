"""``haproc queue`` and ``haproc verify``: a cluster's queue, and the comparison of tables.

The commands use the operator door of a HAProc, with the operator's token or the ring's secret.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp

from dmq import Json
from haproc.cli import output
from haproc.cli.nodes import ask_all, commit_text, config_file, read_config
from haproc.config.model import Config
from haproc.config.tls import client_context
from haproc.membership.state import SERVING
from haproc.replicate.agree.findings import Finding

_ANSWER_S: Final = 60.0
"""The time limit of an answer: longer than it takes to revoke an operation, or to find out that
this is not possible."""
_POLL_S: Final = 0.5
_TABLES_MAX: Final = 3
_FATES: Final = {
    "revoked": "is taken back: no cluster applies it",
    "committed": "is not taken back, it was too late: it stands on every cluster",
    "rejected": "was rejected before that",
    "undecided": "is not taken back",
}


class AskError(Exception):
    """A HAProc refused a command's request, or did not answer.

    ``error_class``: the reason of a refusal, otherwise empty. ``code``: the exit code of the
    command.
    """

    def __init__(self, message: str, code: int, error_class: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.error_class = error_class


class Asker:
    """Sends requests to the operator doors of HAProcs; use it with ``async with``."""

    def __init__(self, config: Config) -> None:
        self._config = config
        # With an operator's own token the audit log names the operator.
        token = os.environ.get("HAPROC_TOKEN") or config.secret
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=client_context(config.tls)),
            timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
            headers={"Authorization": f"Bearer {token}"},
        )

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def ask(
        self, cluster: str, method: str, path: str, body: Mapping[str, Json] | None = None
    ) -> dict[str, Any]:
        """Send a request to a cluster's HAProc and return its answer; raises AskError."""
        url = self._config.peer_url(cluster) + path
        try:
            async with self._session.request(method, url, json=body) as response:
                status, text = response.status, await response.text()
                answer: dict[str, Any] = json.loads(text)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            what = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise AskError(f"{cluster} at {url}: {what}", output.NOT_READY) from error
        if status != 200:
            hint = f" ({answer['hint']})" if answer.get("hint") else ""
            text = f"{cluster}: {answer.get('message', status)}{hint}"
            raise AskError(text, output.FAILED, str(answer.get("error_class", "")))
        return answer


Command = Callable[[Asker, argparse.Namespace], Awaitable[int]]


def run(options: argparse.Namespace) -> int:
    """Run the command ``options.ask``, which sends requests to HAProcs; return the exit code."""
    config = read_config(config_file(options), options.cluster)
    if config is None:
        return output.USAGE
    options.ring = config
    try:
        return asyncio.run(_with_asker(config, options))
    except AskError as error:
        output.error(str(error))
        return error.code


async def _with_asker(config: Config, options: argparse.Namespace) -> int:
    async with Asker(config) as asker:
        command: Command = options.ask
        return await command(asker, options)


async def ask_any(
    asker: Asker,
    options: argparse.Namespace,
    method: str,
    path: str,
    body: Mapping[str, Json] | None = None,
) -> dict[str, Any]:
    """Send a request to the cluster that the options name, else to each until one answers.

    Returns the answer; raises AskError if it is refused or none answers.
    """
    names = [options.cluster] if options.cluster else [c.name for c in options.ring.clusters]
    last: AskError | None = None
    for name in names:
        try:
            return await asker.ask(name, method, path, body)
        except AskError as error:
            if error.code != output.NOT_READY:
                raise
            last = error
    assert last is not None
    raise last


# -- the queue -------------------------------------------------------------------------------


async def list_queue(asker: Asker, options: argparse.Namespace) -> int:
    """Print a cluster's queue, with a mark at its first operation; return the exit code."""
    path = f"/ha/v1/queue?start={options.start}&limit={options.limit}"
    page = await asker.ask(options.cluster, "GET", path)
    if options.json:
        output.dump(page)
        return 0
    reason = f": {page['reason']}" if page["reason"] else ""
    print(f"{page['cluster']} is {page['state']}{reason}; cursor {page['cursor']}\n")
    rows = [_row(line) for line in page["operations"]]
    header = ("", "OFFSET", "STATE", "CLASS", "KIND", "TABLES", "ORIGIN", "AGE", "ERROR")
    output.table(header, rows)
    if page["more"]:
        print(f"\nmore: --start {page['operations'][-1]['offset'] + 1}")
    return 0


def _row(line: Mapping[str, Any]) -> tuple[object, ...]:
    state = line["position"]
    if line["blocked_by"] is not None:
        state += f" by {line['blocked_by']}"
    if line["attempts"]:
        state += f", {line['attempts']} attempts"
    if line["together"]:
        state += ", with {}-{}".format(*line["together"])
    tables = sorted({*line["writes"], *line["reads"]})
    shown = ", ".join(tables[:_TABLES_MAX]) + (" …" if len(tables) > _TABLES_MAX else "")
    age = "" if line["age_s"] is None else f"{line['age_s']} s"
    head = ">" if line["head"] else ""
    error = _brief(line["error"])
    places = (line["class"], line["kind"], shown, line["origin"], age)
    return (head, line["offset"], state, *places, error)


def _brief(text: str, characters_max: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= characters_max else line[: characters_max - 1] + "…"


async def show(asker: Asker, options: argparse.Namespace) -> int:
    """Print one operation completely, and what can be done about it; return the exit code."""
    shown = await asker.ask(options.cluster, "GET", f"/ha/v1/queue/{options.offset}")
    if options.json:
        output.dump(shown)
    else:
        _print_operation(shown)
    return 0


def _print_operation(shown: Mapping[str, Any]) -> None:
    op = dict(shown["operation"])
    sql, rows = op.pop("sql", None), op.pop("rows", None)
    op.pop("sql_characters", None)
    values = {"offset": shown["offset"], **op, **(rows or {})}
    for name in ("position", "blocked_by", "together", "attempts", "error", "outcome"):
        values[f"here: {name.replace('_', ' ')}"] = shown[name]
    for name, value in values.items():
        if value not in (None, "", [], {}):
            print(f"{name + ':':<18} {value}")
    if sql is not None:
        print(f"sql:\n{sql}")
    for name in ("retry", "skip", "revoke"):
        print(f"\n{name}: {shown[name]['text']}")


async def retry(asker: Asker, options: argparse.Namespace) -> int:
    """Have a cluster try an operation again now; return the exit code."""
    path, body = f"/ha/v1/queue/{options.offset}/retry", {"cluster": options.cluster}
    print((await asker.ask(options.cluster, "POST", path, body))["done"])
    return 0


async def skip(asker: Asker, options: argparse.Namespace) -> int:
    """Have one cluster skip an operation, after a confirmation; return the exit code."""
    path = f"/ha/v1/queue/{options.offset}"
    shown = await asker.ask(options.cluster, "GET", path)
    if shown["skip"]["allowed"] and not options.yes:
        _print_operation(shown)
        question = f"\nSkip offset {options.offset} on {options.cluster}? [y/N] "
        if code := await _asked(question, "nothing was skipped"):
            return code
    body = {"cluster": options.cluster, "reason": options.reason}
    done = await asker.ask(options.cluster, "POST", path + "/skip", body)
    effects = {
        "applied": "was committed after all",
        "recorded": "will be skipped: it is in the log",
    }
    effect = effects.get(done["status"], "is skipped")
    reason = f": {done['reason']}" if done["reason"] else ""
    print(f"offset {done['offset']} {effect}; {done['cluster']} is {done['state']}{reason}")
    return 0


async def revoke(asker: Asker, options: argparse.Namespace) -> int:
    """Let the ring revoke an operation on all clusters, after a confirmation.

    Returns the exit code, 0 if it is revoked.
    """
    name = options.cluster or await serving(options.ring)
    path = f"/ha/v1/queue/{options.offset}"
    if not options.yes:
        _print_operation(await asker.ask(name, "GET", path))
        question = f"\nHave the ring take back offset {options.offset}? [y/N] "
        if code := await _asked(question, "nothing was taken back"):
            return code
    body = {"reason": options.reason, "without": options.without}
    done = await asker.ask(name, "POST", path + "/revoke", body)
    text = f": {done['text']}" if done["text"] else ""
    print(f"offset {options.offset} {_FATES.get(done['status'], done['status'])}{text}")
    return 0 if done["status"] == "revoked" else output.FAILED


async def _asked(question: str, otherwise: str) -> int:
    """Ask the user to confirm; return 0 if they do, otherwise an exit code after a message.

    ``otherwise``: the message.
    """
    if not sys.stdin.isatty():
        output.error(f"{otherwise}: give --yes")
        return output.USAGE
    if (await asyncio.to_thread(input, question)).lower() != "y":
        output.error(otherwise)
        return output.FAILED
    return 0


# -- verification ----------------------------------------------------------------------------


async def verify(asker: Asker, options: argparse.Namespace) -> int:
    """Compare all clusters' tables at one offset of the log; return 0 if they are equal.

    Otherwise returns another exit code.
    """
    config: Config = options.ring
    end = time.monotonic() + options.wait_s
    asked, marker = await _begin(asker, config, options.trust)
    found: dict[str, Any] = {}
    while not found.get("complete") and time.monotonic() < end:
        await asyncio.sleep(_POLL_S)
        try:
            found = await asker.ask(asked, "GET", f"/ha/v1/verify/{marker}")
        except AskError as error:
            if time.monotonic() >= end:
                raise
            if error.code == output.NOT_READY:  # it is away: the others know the result
                asked = await serving(config)
    if not found:
        raise AskError("no HAProc has read the marker in time", output.NOT_READY)
    if options.json:
        output.dump(found)
    else:
        _print_findings(found)
    names = [options.cluster] if options.cluster else list(found["clusters"])
    equal = all(found["clusters"][name]["finding"] == Finding.EQUAL for name in names)
    return 0 if equal else output.FAILED


async def _begin(asker: Asker, config: Config, trusted: str) -> tuple[str, int]:
    name, body = await serving(config), {"trusted": trusted} if trusted else None
    return name, int((await asker.ask(name, "POST", "/ha/v1/verify", body))["marker"])


async def serving(config: Config) -> str:
    """Return the first cluster that serves, else the first whose HAProc answers.

    Raises AskError if none answers.
    """
    answers = await ask_all(config)
    alive = [name for name, answer in answers.items() if "error" not in answer]
    serving = [name for name in alive if str(answers[name].get("state")) in SERVING]
    if not alive:
        raise AskError("no HAProc of the ring answers", output.NOT_READY)
    return (serving or alive)[0]


def _print_findings(found: Mapping[str, Any]) -> None:
    clusters = found["clusters"]
    trusted = f", which trusts {found['trusted']}" if found["trusted"] else ""
    print(f"verification at offset {found['marker']}, asked of {found['by']}{trusted}\n")
    rows = [
        (table, *(by[name] for name in clusters)) for table, by in sorted(found["tables"].items())
    ]
    total = ("all", *(each["finding"] for each in clusters.values()))
    output.table(("TABLE", *clusters), [*rows, total])
    for table, held in sorted(found["differing"].items()):
        print(f"\n{table} differs:")
        for name, what in held.items():
            print(f"  {name}: {what}")
    if found["differing"] and not any(
        each["finding"] == Finding.DIFFERENT for each in clusters.values()
    ):
        print(
            "\nno majority shows which of them is right, so all go on serving; "
            "haproc verify --trust NAME decides"
        )
    for name, each in clusters.items():
        if each["reason"]:
            print(f"{name}: {each['reason']}")
        for commit in each.get("foreign", ()):
            what = "written" if commit["changes_rows"] else "maintained"
            print(f"{name}: {what} past HAProc: {commit_text(commit)}")
    if not found["complete"]:
        print("not all clusters have reported their tables in time (--wait-s)")
