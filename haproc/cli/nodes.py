"""``haproc serve|start|stop|status``: one HAProc as a process, and its program's log."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any

import aiohttp
import uvloop

from dmq import LogError
from haproc import audit, tracing
from haproc.cli import output, serving
from haproc.config.load import load
from haproc.config.model import Config
from haproc.config.tls import client_context, read_certificates
from haproc.config.tree import ConfigError
from haproc.doors.http.access import Access
from haproc.failure import message_of
from haproc.membership.state import SERVING
from haproc.node.node import ExitCode, Node
from haproc.ring.process import StartError, launch, process_of, wait_answering

# The log of ``haproc serve``, with the Kafka client's messages shortened.
#
# While no broker answers, the Kafka client reports each attempt with several errors and tracebacks,
# many a second; HAProc's own lines tell the effects. So the client's messages become one line in a
# while, with their number. At DEBUG all of them are written. The client's own DEBUG messages, which
# contain passwords, are never written: its logger stays at INFO or above.


logger = logging.getLogger(__name__)
AGAIN_AFTER_S = 60.0
_SHOWN_MAX = 300
"""The most characters of a Kafka client's message that are written; chosen, not measured."""


class KafkaInOneLine(logging.Filter):
    """Writes the Kafka client's warnings and errors as one short line, at most one a minute."""

    def __init__(self, again_after_s: float = AGAIN_AFTER_S) -> None:
        super().__init__()
        self._again_after_s = again_after_s
        self._last: float | None = None
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten a message of the Kafka client; return False if it is left out.

        Messages of other loggers are not changed.
        """
        if record.name.partition(".")[0] != "kafka":
            return True
        if self._last is not None and record.created - self._last < self._again_after_s:
            self._left_out += 1
            return False
        text = " ".join(record.getMessage().split())[:_SHOWN_MAX]
        error = record.exc_info[1] if record.exc_info else None
        more = f" ({self._left_out} more such messages since)" if self._left_out else ""
        cause = f": {type(error).__name__}: {error}" if error is not None else ""
        record.msg, record.args = f"the Kafka client reports: {text}{cause}{more}", None
        record.name, record.levelno, record.levelname = "dmq", logging.WARNING, "WARNING"
        record.exc_info = record.exc_text = record.stack_info = None
        self._last, self._left_out = record.created, 0
        return True


def set_up(level: str, form: str = "text") -> None:
    """Write this program's log to standard error; raises ValueError for a wrong ``level``.

    ``level``: such as ``INFO,haproc.operations=DEBUG``; ``form``: ``text`` or ``json``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(serving.formatter(form))
    root = logging.getLogger()
    by_logger = serving.levels(level)
    root.addHandler(handler)
    for name, each in by_logger.items():
        logging.getLogger(name).setLevel(each)
    if root.level > logging.DEBUG:
        handler.addFilter(KafkaInOneLine())
    kafka = logging.INFO if root.level <= logging.DEBUG else logging.WARNING
    logging.getLogger("kafka").setLevel(kafka)


def set_up_audit(file: Path | None) -> None:
    """Set up the audit log: limit its refusals, and write it to ``file`` if one is configured.

    Raises OSError. The file is opened again if it was moved, so it can be rotated.
    """
    audit.logger.addFilter(audit.Bounded())
    audit.logger.setLevel(logging.INFO)
    if file is None:
        return
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    handler = WatchedFileHandler(file, encoding="utf-8")
    handler.setFormatter(audit.Lines())
    audit.logger.addHandler(handler)
    audit.logger.propagate = False


def unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Write an unhandled error and its place to the program's log, without a client's texts."""
    error = context.get("exception")
    where = ""
    if isinstance(error, BaseException):
        frames = "".join(traceback.format_tb(error.__traceback__))
        where = f": {type(error).__name__}\n{frames}".rstrip()
    logging.getLogger("asyncio").error("%s%s", context.get("message", "an error"), where)


# ``haproc serve|start|stop|status``: one HAProc as a process.


_ANSWER_S = 2.0
FILES_MAX = 65_536
"""The number of open files, including sockets, that a HAProc requests from the system as its
limit."""
COLLECTED_AFTER = 10_000
"""The number of new objects after which the garbage collector runs, for about 2 ms."""


def config_file(options: argparse.Namespace) -> Path:
    """Return the configuration file that the options name, or that of the local ring."""
    file: Path = options.config or options.folder / "ring.yaml"
    return file


def read_config(path: Path, cluster: str | None = None) -> Config | None:
    """Read the configuration; None, after an error message, if it can't be used.

    ``cluster``: the name of a cluster that the ring must have.
    """
    try:
        config = load(path, os.environ)
    except ConfigError as error:
        output.error(str(error))
        return None
    if cluster is not None:
        try:
            config.cluster(cluster)
        except KeyError:
            names = ", ".join(c.name for c in config.clusters)
            output.error(f"the ring has no cluster {cluster!r}; it has {names}")
            return None
    return config


def serve(options: argparse.Namespace) -> int:
    """Run one HAProc in this process until SIGTERM or SIGINT; return the exit code."""
    config = read_config(options.config, options.cluster)
    if config is None:
        return output.USAGE
    try:
        set_up(
            os.environ.get("HAPROC_LOG_LEVEL", "INFO"), os.environ.get("HAPROC_LOG_FORMAT", "text")
        )
    except ValueError as error:
        output.error(str(error))
        return output.USAGE
    if (end_tracing := _begin_tracing(config.ring, options.cluster)) is None:
        return output.USAGE
    config.state_dir.mkdir(parents=True, exist_ok=True)
    prepare_process()
    try:
        set_up_audit(config.audit_file)
        return int(uvloop.run(_serve(config, options.cluster, options.config)))
    except (OSError, LogError) as error:
        output.error(f"{options.cluster}: {error}")
        return ExitCode.FAILED
    finally:
        end_tracing()


def _begin_tracing(ring: str, cluster: str) -> Callable[[], None] | None:
    """Begin to send traces if the environment asks for it; return the function that stops it.

    None, after an error message, if traces cannot be sent.
    """
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "none")
    if exporter == "none":
        return lambda: None
    if exporter != "otlp":
        output.error(f"OTEL_TRACES_EXPORTER is {exporter!r}; HAProc knows otlp and none")
        return None
    try:
        from haproc.otel import OtelTracing
    except ImportError as error:
        output.error(f"OTEL_TRACES_EXPORTER is otlp, which needs haproc[otel]: {error}")
        return None
    taken = OtelTracing(ring, cluster)
    tracing.use(taken)
    return taken.shutdown


def prepare_process() -> None:
    """Set up this process for a HAProc: its open files, memory, threads, garbage collector."""
    _allow_files()
    serving.leave_pandas_out()
    serving.give_back_blocks()
    # The log's threads must get their turn beside a busy event loop (measured: at the default of 5
    # ms, reads beside a loop about 80 % busy took seconds).
    sys.setswitchinterval(0.0005)
    # Imported objects stay, so the collector need not check them again and again (measured: sending
    # the log to the archive takes a quarter less). Remembered and waiting requests are no cycles,
    # so it need not check them often (measured, at the default of 700: checks took a fifth of the
    # time of draining 40,000 INSERTs, up to 0.1 s at once; a third with 1,000 clients).
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)


def _allow_files() -> None:
    """Raise the limit of open files: the usual 1024 is less than two full doors need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(config: Config, cluster: str, file: Path) -> ExitCode:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(unhandled)
    access, certificates = Access(config), read_certificates(config.tls)

    one_by_one = threading.Lock()

    def read_again() -> None:
        with one_by_one:
            if certificates is not None:
                certificates.reload()
            read_users(access, file)

    # On a thread: the system's certificates take 0.15 s, in which heartbeats would be missed.
    loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, read_again)
    while True:
        node = Node(config, cluster, access=access, certificates=certificates)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, node.stop)
        code = await node.run()
        if code is not ExitCode.AGAIN:
            return code


def read_users(access: Access, file: Path) -> None:
    """Read the users in a HAProc's configuration again; if anything is wrong, keep the old ones."""
    try:
        # Without the certificates: a broken one must not prevent the removal of a user.
        config = load(file, os.environ, with_files=False)
        access.take_users(config)
    except (ConfigError, ValueError) as error:
        logger.error("the users stay as they were: %s", error)
    else:
        logger.info("the users were read again: %d", len(config.users))


def start(options: argparse.Namespace) -> int:
    """Start one HAProc in the background, unless it runs; return the exit code."""
    config = read_config(options.config, options.cluster)
    if config is None:
        return output.USAGE
    try:
        launch(config, options.config, options.cluster)
        asyncio.run(wait_answering(config, options.cluster, options.wait_s, ready=options.ready))
    except StartError as error:
        output.error(str(error))
        return output.NOT_READY
    return 0


def stop(options: argparse.Namespace) -> int:
    """Stop one HAProc, if it runs; return the exit code."""
    config = read_config(options.config, options.cluster)
    if config is None:
        return output.USAGE
    grace_s = options.grace_s if options.grace_s is not None else config.timeouts.drain_s + 10
    asyncio.run(process_of(config, options.cluster).stop(grace_s))
    return 0


def status(options: argparse.Namespace) -> int:
    """Print the state of every HAProc; return the exit code, 0 if all serve, otherwise 3."""
    path = config_file(options)
    if options.config is None and not path.exists():
        where = f"there is no ring in {options.folder.resolve()}"
        output.error(f"{where}: give --config FILE, or --folder of a local ring")
        return output.USAGE
    config = read_config(path)
    if config is None:
        return output.USAGE
    answers = asyncio.run(ask_all(config))
    if options.json:
        output.dump(answers)
    else:
        print_status(answers)
    served = [str(answer.get("state")) in SERVING for answer in answers.values()]
    return 0 if all(served) else output.NOT_READY


async def ask_all(config: Config) -> dict[str, dict[str, Any]]:
    """Return the answer to /clusterStatus of each HAProc; ``error`` in it: it does not answer."""
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    connector = aiohttp.TCPConnector(ssl=client_context(config.tls))
    urls = {cluster.name: config.url(cluster.peer) for cluster in config.clusters}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        answers = await asyncio.gather(*(_ask(session, url) for url in urls.values()))
    return dict(zip(urls, answers, strict=True))


async def _ask(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    try:
        async with session.get(url + "/clusterStatus") as response:
            body: dict[str, Any] = json.loads(await response.text())
            return body
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return {"state": "-", "error": f"no answer from {url}: {_why(error)}"}


def _why(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        refused = error.certificate_error
        return f"no TLS: {getattr(refused, 'verify_message', refused)}"
    if isinstance(error, aiohttp.ClientSSLError):
        return f"no TLS: {error}"
    if isinstance(error, aiohttp.ClientConnectorError) and (error.errno or 0) > 0:
        return os.strerror(error.errno or 0)  # the error's own text is about its arguments
    return message_of(error)


def print_status(answers: dict[str, dict[str, Any]]) -> None:
    """Print the answers of all HAProcs to `haproc status`: a line for each, then what is wrong."""
    rows = [
        (
            name,
            answer["state"],
            answer.get("cursor", ""),
            answer.get("lag", ""),
            _received_by(name, answers),
            _recovery(answer),
            answer.get("error") or _reason(answer),
        )
        for name, answer in answers.items()
    ]
    output.table(("CLUSTER", "STATE", "CURSOR", "LAG", "RECEIVED BY", "RECOVERY", "REASON"), rows)
    for name, answer in answers.items():
        if "in_sync" in answer:
            clusters = " ".join(answer["in_sync"]) or "none"
            print(f"in sync, as {name} sees it: {clusters}", end="")
            print(f"; high watermark {answer['high_watermark']}")
            break
    for line in [
        *_undecided(answers),
        *_foreign(answers),
        *_log_lines(answers),
        *_clients(answers),
        *_disagreements(answers),
        *_settings(answers),
    ]:
        print(line)


def _undecided(answers: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each HAProc that found clusters to differ, with no proof which is wrong."""
    found = {name: answer.get("undecided") for name, answer in answers.items()}
    return [
        f"UNDECIDED, as {name} found at offset {each['offset']} ({each['cause']}): {each['what']}"
        for name, each in found.items()
        if each
    ]


def _foreign(answers: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each cluster with commits that the ring did not make.

    Only commits that no verification has covered yet; the line names the newest one.
    """
    lines = []
    for name, answer in answers.items():
        commits = (answer.get("foreign") or {}).get("commits", ())
        found = [c for c in commits if c["changes_rows"] and c["verified_at"] is None]
        if found:
            newest = commit_text(found[-1])
            lines.append(
                f"{name}: tables were written past HAProc, the newest commit: {newest}; "
                "run haproc verify"
            )
    return lines


def commit_text(commit: dict[str, Any]) -> str:
    """Return a commit that the ring did not make, as a line for people."""
    by = commit["user"] or commit["engine"] or "an unknown user"
    change = f"{commit['table']} version {commit['version']}, {commit['operation']} by {by}"
    return output.harmless(f"{change}, {commit['at']}")


def _log_lines(answers: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line with the size of the ring's log, and what prevents its trimming.

    From the newest of the HAProcs' checks.
    """
    looks = [answer.get("trim") or {} for answer in answers.values()]
    looks = [look for look in looks if look.get("log_start") is not None]
    if not looks:
        return []
    look = max(looks, key=lambda each: (each["log_end"], each["log_start"]))
    # The check may be a minute old, the log's end is that of this moment.
    end = max(answer.get("log_end") or 0 for answer in (*answers.values(), look))
    line = f"log: {end - look['log_start']:,} records, from offset {look['log_start']:,} on"
    if not look["enabled"]:
        line += "; trimming is disabled"
    if look["held_by"]:
        line += f"; trim held back by {look['held_by']}, {look['held_records']:,} records"
    return ["", line]


def _clients(answers: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each Spark Connect door: its sessions and running PySpark statements."""
    lines = []
    for name, answer in answers.items():
        connect, sessions = answer.get("connect"), answer.get("sessions") or {}
        if connect is None:
            continue
        running = [f"{count} {does}" for does, count in connect["statements"].items() if count]
        line = (
            f"{name}: {sessions.get('here', 0)} sessions, {sessions.get('adopted', 0)} taken over"
        )
        line += f"; PySpark statements: {', '.join(running) or 'none'}"
        lines.append(f"{line}; results gone on with: {connect['resumed']}")
    return lines


def _disagreements(answers: dict[str, dict[str, Any]]) -> list[str]:
    found = {n: (answer.get("members") or {}).get("disagreement") for n, answer in answers.items()}
    return [f"{name}: {what}" for name, what in found.items() if what]


def _settings(answers: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each setting of a Spark server that is not as it should be."""
    lines = []
    for name, answer in answers.items():
        settings = answer.get("settings") or {}
        for each in settings.get("differing", []):
            others = ", ".join(each["clusters"])
            lines.append(f"{name}: its Spark has another {each['name']} than {others}")
        for unfit in settings.get("unfit", []):
            lines.append(f"{name}: {unfit} must have another value, see its log")
        for each in settings.get("overridden", []):
            value = settings["session_defaults"].get(each)
            lines.append(f"{name}: sessions have {each}={value}, whatever its Spark has")
    return lines


def _reason(answer: dict[str, Any]) -> str:
    """Return why a HAProc has its state, and why heartbeats don't go as configured."""
    transport = answer.get("transport") or {}
    reasons = [str(answer.get("reason", ""))]
    if transport.get("in_use") != transport.get("configured"):
        reasons.append(f"heartbeats go over the mesh: {transport.get('reason')}")
    return "; ".join(filter(None, reasons))


def _received_by(name: str, answers: dict[str, dict[str, Any]]) -> str:
    """Return the names of the HAProcs that say that they receive this one's heartbeats."""
    return " ".join(
        other
        for other, answer in answers.items()
        for seen in answer.get("clusters", [])
        if other != name and seen["name"] == name and seen.get("direct")
    )


def _recovery(answer: dict[str, Any]) -> str:
    recovery = answer.get("recovery") or {}
    if not recovery.get("remaining"):
        return ""
    copied = recovery.get("copy_s") if recovery.get("copy_is_faster") else None
    faster = "" if copied is None else f"; copying tables would take {copied:g} s"
    return (
        f"{recovery['applied']} of {recovery['applied'] + recovery['remaining']} records, "
        f"{recovery['rate_per_s']:g}/s, {recovery['seconds_left']:g} s left{faster}"
    )
