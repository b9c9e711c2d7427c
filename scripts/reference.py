"""Write the documents in docs/reference from the code.

Usage: python -m scripts.reference [--check]. With --check it writes nothing, prints the names of
the documents that differ from the code, and ends with exit code 1 if there is one.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from haclient import exceptions
from haclient.failover import Reason
from haproc.classify import session_settings
from haproc.config import load
from haproc.config.check import LIMITS_IN_ORDER
from haproc.config.model import Config
from haproc.doors.connect import errors as connect_errors
from haproc.doors.http import statuses
from haproc.engine.interface import EngineAddress
from haproc.failure import ErrorClass, FailureKind, WriteOutcome
from haproc.metrics import ALL
from haproc.reading import known
from scripts.reference_http import ROOT, Api, code, page, prose, table

FOLDER: Final = ROOT / "docs" / "reference"


# -- what the code says ------------------------------------------------------------------------


@cache
def _docstrings(file: Path) -> Mapping[str, Mapping[str, str]]:
    """Return the docstring below each field or enum member, by class name and field name."""
    found: dict[str, dict[str, str]] = {}
    for kind in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(kind, ast.ClassDef):
            found[kind.name] = dict(_described(kind))
    return found


def _described(kind: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for node, below in zip(kind.body, kind.body[1:], strict=False):
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        target = node.targets[0] if isinstance(node, ast.Assign) else target
        text = below.value if isinstance(below, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(text, ast.Constant):
            yield target.id, _markdown(str(text.value))


def described(kind: type, name: str) -> str:
    """Return the docstring below a dataclass's field or an enum's member, by its ``name``."""
    file = sys.modules[kind.__module__].__file__
    assert file is not None
    return _docstrings(Path(file))[kind.__name__].get(name, "")


def _markdown(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


# -- configuration -----------------------------------------------------------------------------

_SECTIONS: Final = {
    "clusters[]": "One entry for each cluster.",
    "users[]": "One entry for each user ([Users and roles](../operate/guide.md#users-and-roles)).",
    "oidc": "The OpenID Connect provider whose signed tokens the doors take.",
    "limits": "What one HAProc accepts at once, keeps, and holds in memory.",
    "tls": "TLS of all doors, and between the HAProcs "
    "([Security](../operate/guide.md#security)). Without a certificate the doors speak plain HTTP.",
    "timeouts": "Deadlines and intervals, in seconds.",
    "membership": "How HAProcs notice that one of them is gone.",
    "reads": "How fresh answers are. The [read levels](../guide/sql.md#how-fresh-an-answer-is).",
    "writes": "Which clusters must have a write before it is answered.",
    "trim": "When old records of the log are deleted ([Trimming](../operate/guide.md#trimming)).",
    "archive": "Who may read what was applied ([jobs](../guide/jobs.md)).",
    "cache": "Which answers are kept ([Kept answers](../guide/sql.md#kept-answers)).",
    "optimize": "Which tables' small files the ring compacts "
    "([Small files](../operate/guide.md#small-files)).",
    "connect": "The doors for [PySpark](../guide/pyspark.md).",
    "jobs": "Users' programs that run beside the HAProcs ([jobs](../guide/jobs.md)).",
    "redis": "Needed with `state: redis` "
    "([State shared through Redis](../operate/guide.md#state-shared-through-redis)).",
    "kafka": "For a log in Kafka ([A log in Kafka](../operate/guide.md#a-log-in-kafka)).",
}
_TYPES: Final = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "`true`, `false`",
    "Path": "path",
    "Address": "`host:port`",
}
_READ_BY_HAND: Final = {
    "clusters[].spark.url": (
        "URL",
        "required",
        "The cluster's Spark Connect server: `sc://host:port`, with `/;use_ssl=true` for TLS. "
        "The port is 15002 without one.",
    ),
    "clusters[].spark.token": ("secret", "none", "Sent to Spark as a bearer token."),
    "clusters[].spark.ca_file": (
        "path",
        "none",
        "Certificates (PEM) that may have signed Spark's own, with `use_ssl=true`. "
        "Without it: those that gRPC trusts.",
    ),
}
"""The type, default and meaning of keys that have no field of their own.

`haproc.config.load` reads an EngineAddress by separate code.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration as a row of a table: its path, type, default and meaning."""

    path: str
    kind: str
    default: str
    meaning: str

    @property
    def section(self) -> str:
        """The first part of the path, which names the key's section; empty for a key at the top."""
        whole = self.path.replace(".spark.", ".")
        top = whole.split(".")[0]
        return top if "." in whole else ""


def walk_keys(kind: type = Config, prefix: str = "") -> Iterator[Key]:
    """Yield every key of the configuration, in the order of the dataclasses' fields."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        path, hint = prefix + load._key(kind, field), hints[field.name]
        items = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None
        if hint is EngineAddress:
            for each in (f"{path}.url", f"{path}.token", f"{path}.ca_file"):
                yield Key(each, *_READ_BY_HAND[each])
            continue
        if dataclasses.is_dataclass(hint) and field.default is not dataclasses.MISSING:
            assert isinstance(hint, type)
            yield from walk_keys(hint, f"{path}.")
            continue
        yield Key(path, _type(field, hint), _default(field, path), _meaning(kind, field.name, path))
        if dataclasses.is_dataclass(items):
            assert isinstance(items, type)
            yield from walk_keys(items, f"{path}[].")


def _type(field: dataclasses.Field[Any], hint: Any) -> str:
    if field.name == "fanout_parallel":
        return "`serial`, `parallel`"
    if field.name == "session_defaults":
        return "settings by name"
    if field.name == "storage":
        return "paths by prefix"
    inner = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is tuple:
        name = getattr(inner[0], "__name__", "")
        return f"list of {_TYPES[name]}s" if name in _TYPES else "list"
    kind = inner[0] if inner else hint
    if kind is str and not field.repr:
        return "secret"
    if kind.__name__ in _TYPES:
        return _TYPES[kind.__name__]
    return code(member.value for member in kind)


def _default(field: dataclasses.Field[Any], path: str) -> str:
    if load._required(field):
        return "required"
    value = field.default
    if path == "fanout":
        return "`parallel`" if value else "`serial`"
    if value is None or value in ((), ""):
        return "none"
    if isinstance(value, tuple):
        return code(str(each) for each in value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:.12g}`" if isinstance(value, float) else f"`{value}`"


def _meaning(kind: type, name: str, path: str) -> str:
    text = re.sub(r" ?Chosen(:[^.]*|, not measured)\.", "", described(kind, name))
    larger = [f"limits.{high}" for low, high in LIMITS_IN_ORDER if path == f"limits.{low}"]
    return f"{text} At most {code(larger)}." if larger else text


def configuration() -> str:
    """Return the text of the page of configuration keys."""
    found = list(walk_keys())
    lines = [
        prose(
            "The configuration is one YAML file. The [operator's guide]"
            "(../operate/guide.md#configuration) has an example. A HAProc does not start with an "
            "unknown key or a contradiction, and names each with its path."
        ),
        "- Whole numbers are at least 1, numbers are above 0.",
        "- The unit ends the name: `_s` are seconds, `_bytes` and `_bytes_max` are bytes.",
        "- A relative path begins at the folder of the file.",
        "- A secret is not in the file: write `{env: NAME}` or `{file: PATH}`. It has at least",
        "  8 printable ASCII characters, without spaces.",
        "- `clusters[].name` is the key `name` of each entry of the list `clusters`.",
        "",
    ]
    for section in dict.fromkeys(key.section for key in found):
        intro = _SECTIONS.get(section, "") if section else "Keys of the whole ring."
        lines += [f"## {section.replace('[]', '') or 'The ring'}", "", intro, ""]
        rows = [
            (f"`{key.path}`", key.default, key.kind, key.meaning)
            for key in found
            if key.section == section
        ]
        lines += table(("key", "default", "type", "meaning"), rows)
    return page("Configuration", "`haproc/config/`", *lines)


# -- errors ------------------------------------------------------------------------------------

_CLIENT_ONLY: Final = {
    "HACLIENT_CANCELLED": "The request was cancelled in the client.",
    "HACLIENT_RESULT_BROKEN": "A server failed while it streamed a result: run the query again.",
}
_GROUP: Final = re.compile(r"^    # (.+)\.$", re.MULTILINE)


def _groups() -> Iterator[tuple[str, list[ErrorClass]]]:
    """Yield each group of error classes, under the comment that is its title in the enum."""
    source = (ROOT / "haproc" / "failure.py").read_text(encoding="utf-8")
    body = source.split("class ErrorClass")[1].split("\nclass ")[0]
    parts = _GROUP.split(body)
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        named = re.findall(r"^    ([A-Z_]+) = ", text, re.MULTILINE)
        yield title, [ErrorClass[name] for name in named]


def _statuses(error: ErrorClass) -> tuple[str, str]:
    status, code = statuses._STATUS_OF_CLASS.get(error), connect_errors._CODE_OF_CLASS.get(error)
    return str(status or ""), f"`{code}`" if code else ""


def errors() -> str:
    """Return the text of the page of error classes."""
    lines = [
        prose(
            "Each error has an `error_class`, a `kind`, an `outcome`, a `message` and a `hint`. "
            "Classes without `HAPROC_` are Spark's own, or gRPC codes. How an answer holds them is "
            "in the [SQL guide](../guide/sql.md#errors), what an operator does in the "
            "[runbooks](../operate/runbooks.md)."
        ),
        "## Kinds",
        "",
        *table(
            ("`kind`", "HTTP", "gRPC", "meaning"),
            (
                (
                    f"`{kind}`",
                    str(statuses._STATUS_OF_KIND[kind]),
                    f"`{connect_errors._CODE_OF_KIND[kind]}`",
                    described(FailureKind, kind.name),
                )
                for kind in FailureKind
            ),
        ),
        prose(
            "An answer says its kind, which decides the status where the tables below leave it "
            "empty. A failure "
            "of outcome `UNKNOWN` has status "
            f"{statuses.OUTCOME_UNKNOWN} if the request had no id of the client's own (gRPC: "
            "`ABORTED` instead of `UNAVAILABLE`): the request must not be repeated."
        ),
        "## Outcomes of a failed write",
        "",
        *table(
            ("`outcome`", "meaning"),
            ((f"`{each}`", described(WriteOutcome, each.name)) for each in WriteOutcome),
        ),
    ]
    for title, classes in _groups():
        lines += [f"## {title}", ""]
        rows = [
            (f"`{each}`", *_statuses(each), described(ErrorClass, each.name)) for each in classes
        ]
        lines += table(("`error_class`", "HTTP", "gRPC", "meaning, and what to do"), rows)
    client = {f"HACLIENT_{each.name}": described(Reason, each.name) for each in Reason}
    lines += [
        "## From haclient itself",
        "",
        *table(
            ("`error_class`", "meaning, and what to do"),
            ((f"`{name}`", text) for name, text in (client | _CLIENT_ONLY).items()),
        ),
        "## Exceptions of haclient",
        "",
        "The first rule that fits chooses the exception. They are those of PEP 249, in",
        "`haclient.exceptions`.",
        "",
        *table(("failure", "exception"), _exceptions()),
        "## Exceptions of PySpark",
        "",
        "An error from Spark keeps its own class. For others the first rule that fits counts.",
        "",
        *table(("failure", "Java class that PySpark maps to its exception"), _java()),
    ]
    source = "`haproc/failure.py`, `haclient/exceptions.py` and the doors' tables"
    return page("Error classes", source, *lines)


def _exceptions() -> Iterator[tuple[str, str]]:
    yield "kind `availability`", "`OperationalError`"
    for name, kind in exceptions._BY_ERROR_CLASS.items():
        yield f"`{name}`", f"`{kind.__name__}`"
    yield from _gathered("SQLSTATE {}…", exceptions._BY_SQLSTATE_CLASS)
    yield from _gathered("status {}", exceptions._BY_STATUS)
    yield "kind `refused`", "`NotSupportedError`"
    yield "all others", "`DatabaseError`"


def _gathered(form: str, table: Mapping[Any, type]) -> Iterator[tuple[str, str]]:
    for kind in dict.fromkeys(table.values()):
        named = ", ".join(form.format(key) for key, each in table.items() if each is kind)
        yield named, f"`{kind.__name__}`"


def _java() -> Iterator[tuple[str, str]]:
    table = connect_errors._CLASSES_OF_OURS
    for classes in dict.fromkeys(table.values()):
        yield code(name for name, each in table.items() if each == classes), f"`{classes[0]}`"
    yield "other classes `HAPROC_…` of kind `refused`", f"`{connect_errors._UNSUPPORTED[0]}`"
    for prefix, classes in connect_errors._CLASSES_OF_SQLSTATE:
        yield f"SQLSTATE {prefix}{'…' if len(prefix) < 5 else ''}", f"`{classes[0]}`"
    yield "all others", f"`{connect_errors._SPARK[0]}`"


# -- metrics -----------------------------------------------------------------------------------

_METRIC_GROUPS: Final = {
    "Requests and queries": ("requests", "request_", "planning", "queries", "read_", "results"),
    "The log and its application": (
        *(
            "operations",
            "batch",
            "cursor",
            "log_",
            "trim",
            "lag",
            "recovery",
            "copy",
            "high_",
            "in_sync",
        ),
        "write_concern",
    ),
    "State of this HAProc": (
        *("info", "state", "undecided", "verification", "foreign", "settings"),
    ),
    "Peers and their transport": ("peer", "transport", "redis"),
    "Kept answers": ("cache",),
    "Sessions, PySpark and jobs": ("sessions", "connect", "job"),
}


def metrics() -> str:
    """Return the text of the page of metrics."""
    grouped: dict[str, list[tuple[str, str, str, str]]] = {title: [] for title in _METRIC_GROUPS}
    for each in ALL:
        name, text, *labels = each.args
        kind = each.func.__name__.lower()
        shown = f"{name}_total" if kind == "counter" else name
        [title] = [
            title
            for title, begins in _METRIC_GROUPS.items()
            if name.removeprefix("haproc_").startswith(begins)
        ]
        grouped[title].append((f"`{shown}`", kind, code(labels[0]) if labels else "", text))
    lines = [
        prose(
            "`GET /metrics` on either door answers with Prometheus text. Which of these need an "
            "alert is in the [operator's guide](../operate/guide.md#logs-and-metrics)."
        ),
    ]
    for title, rows in grouped.items():
        lines += [f"## {title}", "", *table(("metric", "type", "labels", "meaning"), rows)]
    return page("Metrics", "`haproc/metrics.py`", *lines)


# -- statements --------------------------------------------------------------------------------

_STATEMENTS: Final = """\
The names are those of Spark's classes, as `haproc classify --server … --tree` shows them; of a
function it is the class that counts, however it is called. What stands in no list counts as
differing from cluster to cluster. How HAProc decides is in the
[architecture](../architecture.md).
"""
_VALUES: Final = "One value for the whole statement: it becomes a literal at its place in the text"
_ROWS: Final = (
    "Differs: the query that it stands in is replicated as its rows; elsewhere it is refused"
)
_NEVER: Final = "Not run at all"
_IF: Final = "The same everywhere under a condition; else as what differs"
_EXACT: Final = (
    "The same everywhere, under the conditions above where it is named there: it stands as it is"
)


def statements() -> str:
    """Return the text of the page of what a statement may contain."""
    values = {
        "the clock": known.CLOCK,
        "the session's user, catalog, schema and time zone": known.IDENTITY,
        "variables of the session": ["VariableReference"],
    }
    conditional = frozenset().union(*known.CONDITIONS.values())
    differing = {f"it {said}": found - conditional for said, found in known.REASONS.items()}
    exact = {"operators": known.OPERATORS, "expressions": known.EXPRESSIONS}
    lines = [
        _STATEMENTS,
        *_lists(_VALUES, values),
        *_lists(_ROWS, differing),
        *_lists(_NEVER, {"code outside SQL": known.FOREIGN}),
        *_lists(_IF, known.CONDITIONS),
        *_lists(_EXACT, exact),
    ]
    return page("What a statement may hold", "`haproc/reading/known.py`", *lines)


_SETTINGS: Final = """\
What they mean for a session is in the [guide](../guide/sql.md#what-a-session-may-set). A name with
a dot at its end stands for all names that begin so.
"""


def settings() -> str:
    """Return the text of the page of session settings: those that travel, the reserved ones."""
    kinds = {
        "Settings that travel": session_settings.TRAVELLING,
        "Reserved settings": session_settings.RESERVED,
    }
    lines = [_SETTINGS]
    for title, groups in kinds.items():
        rows = [(code(group.names), group.reason) for group in groups]
        lines += [f"## {title}", "", *table(("settings", "why"), rows)]
    return page("Settings of a session", "`haproc/classify/session_settings.py`", *lines)


def _lists(title: str, entries: Mapping[str, Iterable[str]]) -> Iterator[str]:
    yield from (f"## {title}", "")
    for said, classes in entries.items():
        text = f"- *{said}*: {', '.join(sorted(classes))}"
        yield from textwrap.wrap(text, 100, subsequent_indent="  ")
    yield ""


# ----------------------------------------------------------------------------------------------


def pages() -> dict[Path, str]:
    """Return the text of every document, by its file."""
    texts = {
        "http": Api().page(),
        "errors": errors(),
        "configuration": configuration(),
        "metrics": metrics(),
        "settings": settings(),
        "statements": statements(),
    }
    return {FOLDER / f"{name}.md": text for name, text in texts.items()}


def main() -> int:
    """Write the documents, or with --check only compare them; return the exit code."""
    if "--check" not in sys.argv[1:]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for file, text in pages().items():
            file.write_text(text, encoding="utf-8")
        return 0
    differing = [
        file
        for file, text in pages().items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    for file in differing:
        print(f"{file.relative_to(ROOT)} differs: run python -m scripts.reference", file=sys.stderr)
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
