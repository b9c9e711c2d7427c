"""``haproc cluster add|remove|rebuild`` and ``haproc table repair``.

To change the members, the command checks the new file, sends the change to any HAProc that is
READY, and replaces the file; the old file stays beside it with ``.bak``. Every step can be
repeated, so a command that failed half-way is simply repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haproc.cli import output
from haproc.cli.nodes import read_config
from haproc.cli.queue import Asker, AskError
from haproc.cli.rings import guarded, progress_since
from haproc.config.check import NAME
from haproc.config.edit import EditError, add_cluster, changed_as_meant, remove_cluster
from haproc.config.load import load_text
from haproc.config.model import Config
from haproc.config.tree import ConfigError
from haproc.membership.state import State
from haproc.ring.local import LocalRing
from haproc.ring.making import new_cluster

POLL_S: Final = 1.0
SHOW_S: Final = 10.0
"""The interval, in seconds, at which the progress of a copy is printed."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A configuration before and after a change of its file.

    ``text``: the file's new text; None if it need not be changed.
    """

    file: Path
    before: Config
    after: Config
    text: str | None

    def write(self) -> None:
        """Write the new text into the configuration file; the old file stays beside it."""
        if self.text is None:
            return
        shutil.copy2(self.file, self.file.with_name(self.file.name + ".bak"))
        temporary = self.file.with_name(self.file.name + ".new")
        temporary.write_text(self.text, encoding="utf-8")
        shutil.copymode(self.file, temporary)
        temporary.replace(self.file)


@guarded
async def add(options: argparse.Namespace) -> int:
    """Make a cluster a member of the ring; return the exit code.

    In a local ring, it is started, too.
    """
    local, name = options.folder is not None, options.name
    file = options.folder / "ring.yaml" if local else options.config
    config = read_config(file)
    if config is None:
        return output.USAGE
    try:
        made = None if name in _names(config) else _described(options, local)
        rewritten = _with(file, config, name, made)
    except (EditError, ConfigError) as error:
        output.error(str(error))
        return output.USAGE
    after = rewritten.after
    body = {"peer": str(after.cluster(name).peer), "client_url": after.client_url(name)}
    try:
        answer = await _append_change(config, name, "join", body)
    except AskError as error:
        output.error(str(error))
        return error.code
    rewritten.write()
    print(f"{name} is a member of the ring since offset {answer['since_offset']}")
    if local:
        await LocalRing.open(options.folder, progress_since(time.monotonic())).start(name)
        return 0
    print(
        f"{file} names it now: bring the file to the other hosts, then run\n"
        f"  haproc start --config {file} --cluster {name}\n"
        "on its host. The HAProcs that run know it already."
    )
    return 0


@guarded
async def remove(options: argparse.Namespace) -> int:
    """Remove a cluster from the ring for good; return the exit code.

    In a local ring, it is stopped, too.
    """
    local, name = options.folder is not None, options.name
    file = options.folder / "ring.yaml" if local else options.config
    config = read_config(file)
    if config is None:
        return output.USAGE
    try:
        rewritten = _without(file, config, name)
    except (EditError, ConfigError) as error:
        output.error(str(error))
        return output.USAGE
    print(
        f"The ring will go on without {name}: it gets no more writes, serves nobody, and its part "
        "of the log may be deleted. Then it can only come back with tables copied from another one."
    )
    if not options.yes and not confirmed():
        return output.FAILED
    try:
        answer = await _append_change(config, name, "leave", {})
    except AskError as error:
        output.error(str(error))
        return error.code
    if local and name in _names(config):
        ring = LocalRing.open(options.folder)
        await ring.stop_haproc(name)
        await ring.sparks[name].stop()
    rewritten.write()
    print(f"the members are {', '.join(answer['names'])} since offset {answer['since_offset']}")
    if not local:
        print(f"{file} does not name {name} any more: bring the file to the other hosts.")
    return 0


async def rebuild(asker: Asker, options: argparse.Namespace) -> int:
    """Make a cluster, or some of its tables, a copy of another one; or withdraw that request.

    Returns the exit code.
    """
    name, donor = options.cluster, options.donor
    if options.tables is not None:
        if options.way:
            output.error("tables come the configured way: leave out --way, or --tables")
            return output.USAGE
        options.table = options.tables
        return await repair(asker, options)
    if options.withdraw:
        await asker.ask(name, "POST", "/ha/v1/rebuild/withdraw", {"cluster": name})
        print(f"{name} goes on with what it holds: see haproc status")
        return 0
    print(
        f"All tables, views and functions of {name} will be dropped, and made anew as "
        f"{donor or 'another cluster'} has them. Clients use the other clusters meanwhile."
    )
    if not options.yes and not confirmed():
        return output.FAILED
    if options.wait:
        return await rebuild_one(asker, name, donor, options.timeout_s, options.way)
    await asker.ask(name, "POST", "/ha/v1/rebuild", _rebuild_body(name, donor, options.way))
    print(f"{name} is being rebuilt: see haproc status")
    return 0


def _rebuild_body(name: str, donor: str, way: str) -> dict[str, str]:
    return {"cluster": name, "donor": donor} | ({"way": way} if way else {})


async def rebuild_one(asker: Asker, name: str, donor: str, timeout_s: float, way: str = "") -> int:
    """Make the cluster ``name`` a copy of ``donor``, and wait until it serves.

    Prints the progress; returns the exit code. ``way``: how the files come: ``storage`` (Spark
    reads them) or ``stream`` (through the HAProcs). Raises AskError if the cluster refuses.
    """
    before = (await asker.ask(name, "GET", "/ha/v1/status"))["incarnation"]
    await asker.ask(name, "POST", "/ha/v1/rebuild", _rebuild_body(name, donor, way))
    end, shown, show_s = time.monotonic() + timeout_s, "", 0.0
    while time.monotonic() < end:
        await asyncio.sleep(POLL_S)
        try:
            status = await asker.ask(name, "GET", "/ha/v1/status")
        except AskError:
            continue  # it begins anew
        state, reason = status["state"], status["reason"]
        if status["incarnation"] == before:
            continue
        if state == State.READY.value:
            print(f"{name} serves")
            return 0
        if state == State.TOO_FAR_BEHIND.value:
            output.error(f"{name}: {reason}")
            return output.FAILED
        if state != shown or time.monotonic() >= show_s:
            shown, show_s = state, time.monotonic() + SHOW_S
            print(f"{name}: {state} {reason}".rstrip(), flush=True)
    output.error(f"{name} does not serve after {timeout_s} s")
    return output.NOT_READY


async def repair(asker: Asker, options: argparse.Namespace) -> int:
    """Replace damaged tables of a cluster (by name or pattern) by a donor's copies.

    Waits until that is done; returns the exit code.
    """
    name, donor, table = options.cluster, options.donor, options.table
    print(
        f"{table} on {name} will be replaced with that of {donor or 'another cluster'}. "
        f"{name} serves nobody meanwhile."
    )
    if not options.yes and not confirmed():
        return output.FAILED
    body = {"cluster": name, "table": table, "donor": donor}
    answer = await asker.ask(name, "POST", "/ha/v1/repair", body)
    offset = answer["offset"]
    print(f"copied at offset {offset}: {', '.join(answer['tables'])}")
    end, shown = time.monotonic() + options.timeout_s, ""
    while time.monotonic() < end:
        status = await asker.ask(name, "GET", "/ha/v1/status")
        failed = status["copy_failed"]
        if failed is not None and failed["offset"] == offset:
            output.error(f"{table} is not copied: {failed['message']}")
            return output.FAILED
        if status["cursor"] > offset and status["copy"] is None:
            print("done: run haproc verify to compare the clusters")
            return 0
        if status["copy"] is not None and shown != (shown := status["reason"]):
            print(shown, flush=True)
        await asyncio.sleep(POLL_S)
    output.error(f"{table} is not copied after {options.timeout_s} s")
    return output.NOT_READY


def _names(config: Config) -> list[str]:
    return [cluster.name for cluster in config.clusters]


def _described(options: argparse.Namespace, local: bool) -> dict[str, Any]:
    """Return the new cluster, from the command's options, in the configuration file's form."""
    if not NAME.fullmatch(options.name):
        raise EditError(f"{options.name!r} must be 1 to 63 letters, digits, '.', '_' or '-'")
    if local:
        return new_cluster(options.folder, options.name)
    missing = [name for name in ("listen", "peer", "spark") if getattr(options, name) is None]
    if missing:
        raise EditError("needed: " + ", ".join(f"--{name}" for name in missing))
    spark: dict[str, Any] = {"url": options.spark}
    if options.spark_token_env is not None:
        spark["token"] = {"env": options.spark_token_env}
    if options.spark_token_file is not None:
        spark["token"] = {"file": options.spark_token_file}
    if options.spark_ca_file is not None:
        spark["ca_file"] = options.spark_ca_file
    made = {"name": options.name, "listen": options.listen, "peer": options.peer, "spark": spark}
    more = {name: getattr(options, name) for name in ("connect", "advertise")}
    return made | {name: value for name, value in more.items() if value is not None}


def _with(file: Path, config: Config, name: str, made: Mapping[str, Any] | None) -> Rewritten:
    if made is None:
        return Rewritten(file, config, config, None)
    text = add_cluster(file.read_text(encoding="utf-8"), made)
    return _checked(file, config, text, added=name)


def _without(file: Path, config: Config, name: str) -> Rewritten:
    if name not in _names(config):
        return Rewritten(file, config, config, None)
    text = remove_cluster(file.read_text(encoding="utf-8"), _names(config).index(name))
    return _checked(file, config, text, removed=name)


def _checked(file: Path, config: Config, text: str, **change: str) -> Rewritten:
    """Return the configuration with its new text; EditError if more than the cluster changed."""
    after = load_text(text, file.absolute(), os.environ)
    if not changed_as_meant(config, after, **change):
        raise EditError(f"{file} cannot be changed without touching something else: do it by hand")
    return Rewritten(file, config, after, text)


async def _append_change(
    config: Config, name: str, what: str, body: Mapping[str, str]
) -> dict[str, Any]:
    """Send a change of the members to one HAProc after another until one appends it to the log.

    ``what``: ``join`` or ``leave``. Raises AskError if none does.
    """
    errors: list[str] = []
    code = output.FAILED
    async with Asker(config) as asker:
        for each in [*(c for c in _names(config) if c != name), *([name] * (what == "leave"))]:
            if each not in _names(config):
                continue
            try:
                return await asker.ask(each, "POST", f"/ha/v1/members/{name}/{what}", body)
            except AskError as error:
                errors.append(str(error))
                code = error.code
    raise AskError("\n".join(errors) or "there is no other cluster to ask", code)


def confirmed() -> bool:
    """Ask the user at the terminal to confirm; False if they do not, or there is no terminal."""
    if not sys.stdin.isatty():
        output.error("say --yes, or run it in a terminal")
        return False
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
