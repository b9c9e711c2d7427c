"""The command ``haproc``: its arguments, and the module of each subcommand.

Exit codes: 0 done; 1 failed; 2 wrong usage or configuration; 3 not (all) ready; 4 and 5 see
`haproc.node.node.ExitCode`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from haproc import __version__
from haproc.cli import (
    adopt,
    backups,
    clients,
    cluster,
    logs,
    nodes,
    queue,
    rings,
    tools,
    usage,
)

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="haproc", description="High availability for Spark: a ring of independent clusters."
    )
    parser.add_argument("--version", action="version", version=f"haproc {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _node_commands(commands)
    _queue_commands(commands)
    _cluster_commands(commands)
    _backup_commands(commands)
    _drain_commands(commands)
    _session_commands(commands)
    _job_commands(commands)
    _tool_commands(commands)
    usage.add_command(commands)
    _log_commands(commands)
    rings = _ring_commands(commands)
    _adopt_command(rings)
    _found_command(rings)
    return parser


def _node_commands(commands: Commands) -> None:
    serve = commands.add_parser("serve", help="run one HAProc in the foreground")
    start = commands.add_parser("start", help="start one HAProc in the background")
    stop = commands.add_parser("stop", help="stop one HAProc, letting it finish what it has")
    status = commands.add_parser("status", help="show every HAProc of the ring")
    for command in (serve, start, stop):
        command.add_argument("--config", type=Path, required=True, help="the ring's YAML file")
    for command in (serve, start, stop):
        command.add_argument("--cluster", required=True, help="the cluster's name")
    _where_or_here(status)
    start.add_argument(
        "--wait-s", type=float, default=30.0, help="how long to wait until it answers (30)"
    )
    start.add_argument("--ready", action="store_true", help="wait until it serves clients")
    stop.add_argument(
        "--grace-s", type=float, default=None, help="then it is killed (timeouts.drain_s + 10)"
    )
    _json(status)
    serve.set_defaults(run=nodes.serve)
    start.set_defaults(run=nodes.start)
    stop.set_defaults(run=nodes.stop)
    status.set_defaults(run=nodes.status)


def _where(command: argparse.ArgumentParser, config: str = "the ring's YAML file") -> None:
    where = command.add_mutually_exclusive_group(required=True)
    where.add_argument("--config", type=Path, help=config)
    where.add_argument("--folder", type=Path, help="where a local ring lives")


def _where_or_here(command: argparse.ArgumentParser) -> None:
    """Add the options that name the ring; the default is the local ring in the working folder."""
    where = command.add_mutually_exclusive_group()
    where.add_argument("--config", type=Path, help="the ring's YAML file")
    where.add_argument(
        "--folder", type=Path, default=Path(".ring"), help="where a local ring lives (.ring)"
    )


def _queue_commands(commands: Commands) -> None:
    actions = commands.add_parser(
        "queue", help="a cluster's queue: what is in it, and what keeps failing"
    ).add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show what is in the queue, from its head on")
    show = actions.add_parser("show", help="show one operation, and what could be done about it")
    retry = actions.add_parser("retry", help="try an operation that fails now")
    skip = actions.add_parser("skip", help="pass over an operation that cannot be applied")
    revoke = actions.add_parser("revoke", help="have the ring take back an operation, for all")
    verify = commands.add_parser("verify", help="compare what the tables of all clusters hold")
    for command, ask in (
        (listing, queue.list_queue),
        (show, queue.show),
        (retry, queue.retry),
        (skip, queue.skip),
        (revoke, queue.revoke),
        (verify, queue.verify),
    ):
        _where(command)
        command.add_argument("--cluster", required=command not in (verify, revoke), help="its name")
        command.set_defaults(run=queue.run, ask=ask)
    listing.add_argument("--start", type=int, default=0, help="begin at this offset")
    listing.add_argument("--limit", type=int, default=50, help="how many (50)")
    for command in (show, retry, skip):
        command.add_argument("--offset", type=int, required=True)
    revoke.add_argument("offset", type=int, help="where it stands in the log")
    for command in (skip, revoke):
        command.add_argument("--reason", default="", help="kept in the log")
        command.add_argument("--yes", action="store_true", help="do not ask")
    revoke.add_argument(
        "--without", default="", help="members that are away and did not apply it, by commas"
    )
    verify.add_argument("--trust", default="", metavar="NAME", help="whose tables are right")
    verify.add_argument("--wait-s", type=float, default=600.0, help="at most (600)")
    for command in (listing, show, verify):
        _json(command)


def _cluster_commands(commands: Commands) -> None:
    actions = commands.add_parser(
        "cluster", help="the ring's members: add, remove or rebuild one"
    ).add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="make a cluster a member of the ring")
    remove = actions.add_parser("remove", help="have the ring do without a cluster for good")
    for command, run in ((add, cluster.add), (remove, cluster.remove)):
        command.add_argument("name", help="the cluster's name")
        _where(command, "the ring's YAML file; it is changed")
        command.set_defaults(run=run)
    add.add_argument("--listen", help="host:port of its client door")
    add.add_argument("--peer", help="host:port of its operator door")
    add.add_argument("--connect", help="host:port of its Spark Connect door, if it has one")
    add.add_argument("--spark", help="sc://host:port of its Spark")
    add.add_argument("--advertise", help="URL for clients, if it is not that of --listen")
    token = add.add_mutually_exclusive_group()
    token.add_argument("--spark-token-env", help="variable that holds the token for its Spark")
    token.add_argument("--spark-token-file", help="file that holds it")
    add.add_argument("--spark-ca-file", help="file that its Spark's certificate is checked with")
    rebuild = actions.add_parser(
        "rebuild", help="replace a cluster's tables with those of another one, and go on from there"
    )
    rebuild.add_argument("cluster", metavar="NAME", help="the cluster's name")
    rebuild.add_argument("--from", dest="donor", default="", help="the cluster to copy (any)")
    rebuild.add_argument(
        "--way",
        choices=("storage", "stream"),
        default="",
        help="storage: its Spark reads the donor's files; stream: through the HAProcs "
        "(storage, if the configuration has it for the donor)",
    )
    rebuild.add_argument(
        "--tables",
        metavar="GLOB",
        help="only tables schema.table like this (* and ? are any characters), at their place in "
        "the log; waits for it",
    )
    rebuild.add_argument(
        "--withdraw", action="store_true", help="take the request back: no donor was found yet"
    )
    rebuild.add_argument("--wait", action="store_true", help="until it serves; else exit 3")
    rebuild.add_argument("--timeout-s", type=float, default=86_400.0, help="of --wait (a day)")
    _where(rebuild)
    rebuild.set_defaults(run=queue.run, ask=cluster.rebuild)
    tables = commands.add_parser("table", help="one table of a cluster: repair it").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    repair = tables.add_parser(
        "repair",
        help="replace a table on one cluster with another cluster's, in its place in the log",
    )
    repair.add_argument("table", help="as schema.table; * and ? are any characters")
    repair.add_argument(
        "--on", dest="cluster", metavar="NAME", required=True, help="the cluster to mend"
    )
    repair.add_argument("--from", dest="donor", default="", help="the cluster to copy (any)")
    repair.add_argument("--timeout-s", type=float, default=86_400.0, help="else exit 3 (a day)")
    _where(repair)
    repair.set_defaults(run=queue.run, ask=cluster.repair)
    for command in (remove, rebuild, repair):
        command.add_argument("--yes", action="store_true", help="do not ask")


def _backup_commands(commands: Commands) -> None:
    backup = commands.add_parser("backup", help="copy what the ring holds to another storage")
    backup.add_argument("destination", metavar="DEST", help="path or URL that Spark can write to")
    backup.add_argument("--cluster", help="whose Spark makes it (one that serves)")
    _json(backup)
    restore = commands.add_parser("restore", help="make a new ring hold what a backup does")
    restore.add_argument("source", metavar="SOURCE", help="the backup: every Spark must read it")
    restore.add_argument("--offset", type=int, help="which one, if there are several (the newest)")
    restore.add_argument("--verify", action="store_true", help="compare all rows' checksums")
    for command, ask in ((backup, backups.backup), (restore, backups.restore)):
        _where(command)
        command.add_argument("--timeout-s", type=float, default=86_400.0, help="at most (a day)")
        command.set_defaults(run=queue.run, ask=ask)
    restore.set_defaults(cluster=None)


def _drain_commands(commands: Commands) -> None:
    drain = commands.add_parser(
        "drain", help="keep clients away from a cluster; it stays a member of the ring"
    )
    undrain = commands.add_parser("undrain", help="let clients come to a drained cluster again")
    for command, ask in ((drain, clients.drain), (undrain, clients.undrain)):
        command.add_argument("cluster", metavar="NAME", help="the cluster's name")
        _where(command)
        command.add_argument("--timeout-s", type=float, default=300.0, help="of --wait (300)")
        command.set_defaults(run=queue.run, ask=ask)
    drain.add_argument(
        "--wait", action="store_true", help="until clients have nothing left there; else exit 3"
    )
    undrain.add_argument("--wait", action="store_true", help="until it serves; else exit 3")
    drain.add_argument("--force", action="store_true", help="even if no other cluster serves")
    drain.add_argument("--undo", action="store_true", help="as haproc undrain")


def _session_commands(commands: Commands) -> None:
    actions = commands.add_parser("sessions", help="clients' sessions in the ring").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    listing = actions.add_parser("list", help="show the open sessions, and which HAProc has them")
    close = actions.add_parser("close", help="close a session for good")
    for command, ask in ((listing, clients.list_sessions), (close, clients.close)):
        _where(command)
        command.add_argument("--cluster", help="whose HAProc to ask (the first that answers)")
        command.set_defaults(run=queue.run, ask=ask)
    listing.add_argument("--start", type=int, default=0, help="pass over so many")
    listing.add_argument("--limit", type=int, default=100, help="how many (100)")
    _json(listing)
    close.add_argument("session", help="its id")
    close.add_argument("--user", default="anonymous", help="whose it is (anonymous)")


def _job_commands(commands: Commands) -> None:
    actions = commands.add_parser("jobs", help="the ring's batch jobs").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    listing = actions.add_parser("list", help="show the jobs, of all users")
    show = actions.add_parser("show", help="show one job")
    log = actions.add_parser("log", help="print what is kept of its output")
    kill = actions.add_parser("kill", help="end it")
    for command, ask in (
        (listing, clients.list_jobs),
        (show, clients.show),
        (log, clients.log),
        (kill, clients.kill),
    ):
        _where(command)
        command.add_argument("--cluster", help="whose HAProc to ask (the first that answers)")
        command.set_defaults(run=queue.run, ask=ask)
    for command in (show, log, kill):
        command.add_argument("job", type=int, help="its id")
    listing.add_argument("--start", type=int, default=0, help="pass over so many")
    listing.add_argument("--limit", type=int, default=100, help="how many (100)")
    _json(listing)
    _json(show)


def _tool_commands(commands: Commands) -> None:
    config = commands.add_parser("config", help="work on a configuration file")
    check = config.add_subparsers(dest="action", required=True).add_parser(
        "check", help="read the file and say everything that is wrong with it"
    )
    check.add_argument("file", type=Path)
    _json(check)
    check.set_defaults(run=tools.check_config)
    classify = commands.add_parser("classify", help="show a statement's class, tables and rule")
    classify.add_argument("statement", nargs="?", help="one statement; none with --file")
    classify.add_argument("--file", type=Path, help="a file with one statement a line")
    asked = classify.add_mutually_exclusive_group()
    asked.add_argument("--server", help="ask this ring's client doors (URLs, by commas)")
    asked.add_argument("--ring", type=Path, help="ask the local ring in this folder")
    classify.add_argument("--tree", action="store_true", help="a ring's: trees with --file, too")
    classify.add_argument("--rules", type=Path, help="a rules file over the defaults")
    classify.add_argument("--catalog", default="spark_catalog")
    classify.add_argument("--schema", default="default")
    classify.add_argument("--user", default="anonymous")
    _json(classify)
    classify.set_defaults(run=tools.classify)
    token = commands.add_parser("token", help="make a user's token, and its entry for users_file")
    token.add_argument("name", help="the user's name")
    token.add_argument(
        "--role", action="append", choices=["reader", "writer", "operator"], help="again for more"
    )
    token.add_argument("--table", action="append", help="a pattern of tables; again for more (*)")
    token.set_defaults(run=tools.token)
    plugin = commands.add_parser(
        "spark-jar", help="print the jar of HAProc's Spark plugin, and the settings that load it"
    )
    _json(plugin)
    plugin.set_defaults(run=tools.spark_jar)


def _ring_commands(
    commands: Commands,
) -> Commands:
    ring = commands.add_parser("ring", help="a local ring: clusters and HAProcs on this machine")
    actions = ring.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", help="start it; made first if its folder is empty")
    up.add_argument("--clusters", type=int, help="how many (3)")
    up.add_argument("--base-port", type=int, help="first of the ports; free ones otherwise")
    up.add_argument("--memory", help="of each Spark server (1g)")
    up.add_argument("--cores", type=int, help="of each Spark server (2)")
    up.add_argument(
        "--conf",
        type=_setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of each Spark server; may be repeated",
    )
    up.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME",
        help="a user with a token, and TLS for all doors; may be repeated (anybody may use it)",
    )
    up.add_argument("--jobs", action="store_true", help="take jobs (needs bubblewrap)")
    up.add_argument("--log", choices=("sqlite", "kafka"), help="what the log is kept in (sqlite)")
    up.add_argument("--brokers", type=int, help="run so many Kafka brokers for it (1)")
    up.add_argument(
        "--bootstrap-servers", default="", help="use this Kafka instead: host:port,host:port"
    )
    up.add_argument("--replication-factor", type=int, help="copies of the topic there (3)")
    down = actions.add_parser("down", help="stop it; its data stay")
    status = actions.add_parser("status", help="show its processes and states")
    kill = actions.add_parser("kill", help="kill -9 a part of it")
    restart = actions.add_parser("restart", help="start what does not run of a cluster again")
    roll = actions.add_parser(
        "roll", help="restart it under load: one cluster after another, drained"
    )
    roll.add_argument("name", nargs="*", help="the clusters' names (all)")
    roll.add_argument("--what", choices=("haproc", "spark", "both"), default="both", help="(both)")
    roll.add_argument("--timeout-s", type=float, default=300.0, help="of each wait (300)")
    for command in (kill, restart):
        command.add_argument("name", help="the cluster's name, or a broker's (broker1)")
    kill.add_argument("--what", choices=("haproc", "spark", "both"), default="both", help="(both)")
    for command in (up, down, status, kill, restart, roll):
        command.add_argument(
            "--folder", type=Path, default=Path(".ring"), help="where the ring lives (.ring)"
        )
    _json(status)
    for command, run in (
        (up, rings.up),
        (down, rings.down),
        (status, rings.status),
        (kill, rings.kill),
        (restart, rings.restart),
        (roll, rings.roll),
    ):
        command.set_defaults(run=run)
    return actions


def _adopt_command(actions: Commands) -> None:
    command = actions.add_parser(
        "adopt", help="make a ring of clusters that have tables already, on any machines"
    )
    command.add_argument(
        "--from", dest="source", required=True, metavar="NAME", help="whose tables all are to have"
    )
    _where_or_here(command)
    command.add_argument("--dry-run", action="store_true", help="only show what would be done")
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.add_argument("--timeout-s", type=float, default=86_400.0, help="of the copies (a day)")
    _json(command)
    command.set_defaults(run=adopt.adopt)


def _found_command(actions: Commands) -> None:
    command = actions.add_parser(
        "found", help="begin anew on one cluster's tables, after the log was lost"
    )
    command.add_argument(
        "--on", dest="founder", required=True, metavar="NAME", help="whose tables are right"
    )
    _where(command)
    command.add_argument("--dry-run", action="store_true", help="only show what would be lost")
    command.add_argument("--force", action="store_true", help="also if another one has more")
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.set_defaults(run=logs.run_found)


def _log_commands(commands: Commands) -> None:
    actions = commands.add_parser(
        "log", help="move the log of a ring that is stopped to another file or Kafka"
    ).add_subparsers(dest="action", required=True, metavar="ACTION")
    export = actions.add_parser("export", help="write the log into a file, and leave it")
    bring = actions.add_parser("import", help="make the new log what the file says")
    reopen = actions.add_parser("reopen", help="go on with a log that was exported, after all")
    for command, act in (
        (export, logs.export),
        (bring, logs.import_),
        (reopen, logs.reopen),
    ):
        _where(command)
        command.set_defaults(run=logs.run, act=act)
    for command in (export, bring):
        command.add_argument("file", type=Path, help="the file")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print JSON, for machines")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (None: of this process); return the exit code."""
    options = _parser().parse_args(arguments)
    # Files that the command, or a server that it starts, makes may hold users' data or secrets.
    os.umask(0o077)
    try:
        code: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
