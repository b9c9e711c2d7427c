"""Reads a ring's configuration: YAML text → plain values → dataclasses → contradictions."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from haproc.classify.rules import RulesError, load_rules
from haproc.config.check import LIMITS_IN_ORDER, check
from haproc.config.model import Address, ClusterConfig, Config, Prefixes
from haproc.config.sections import Limits, User
from haproc.config.tls import CertificateError, check_tls, read_contexts
from haproc.config.tree import ConfigError, Problem, Tree, join, parse
from haproc.engine.interface import EngineAddress

# From plain values to the dataclasses of `haproc.config.model`, driven by their fields.
#
# A field's type selects the reader of its key: text, numbers, booleans, paths, enums, tuples and
# further dataclasses. A text field that is hidden from ``repr`` is a secret, and is read only from
# the environment or a file. A key whose form in the file differs from the dataclass (an address, a
# Spark URL, ``fanout``) has its own reader in `_READERS` or `_FIELD_READERS`.


_SECRET_LENGTH_MIN = 8
_SPARK_PORT = 15002
_SECRET_FORM = "write {env: NAME} or {file: PATH}"


class Walker:
    """Reads the values of one YAML document; collects all problems in ``problems``."""

    def __init__(self, tree: Tree, folder: Path, environ: Mapping[str, str]) -> None:
        self.problems: list[Problem] = list(tree.problems)
        self._lines = tree.lines
        self._folder = folder
        self._environ = environ

    def problem(self, path: str, message: str) -> None:
        """Record a problem of the key at this path."""
        self.problems.append(Problem(path, message, self._lines.get(path)))

    def dataclass(self, kind: type, value: object, path: str) -> Any:
        """Return a ``kind`` made of a YAML mapping; None if a problem was found and recorded."""
        if not isinstance(value, dict):
            self._expected(path, "a mapping of keys", value)
            return None
        before = len(self.problems)
        keys = {_key(kind, field): field for field in dataclasses.fields(kind)}
        self._unknown(value, keys, path)
        hints = typing.get_type_hints(kind)
        given: dict[str, Any] = {}
        for key, field in keys.items():
            below = join(path, key)
            if key not in value:
                if _required(field):
                    self.problem(below, "missing")
                continue
            given[field.name] = self._field(kind, field, hints[field.name], value[key], below)
        return kind(**given) if len(self.problems) == before else None

    def absolute(self, file: Path, path: str) -> Path | None:
        """Return a file's absolute path; a relative one starts at the configuration's folder.

        None, with a problem of the key ``path`` recorded, if the text can be no path.
        """
        try:
            return Path(self._folder, file.expanduser()).resolve()
        except (ValueError, RuntimeError, OSError) as error:  # a NUL, ~nobody, links in a circle
            self.problem(path, f"{str(file)!r} can be no path: {error}")
            return None

    def _unknown(self, value: Mapping[str, object], keys: Mapping[str, Any], path: str) -> None:
        for key in value:
            if key not in keys:
                near = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(keys)}"
                self.problem(join(path, key), f"unknown key; {hint}")

    def _field(
        self, kind: type, field: dataclasses.Field[Any], hint: Any, value: object, path: str
    ) -> Any:
        reader = _FIELD_READERS.get((kind, field.name))
        if reader is not None:
            return reader(self, value, path)
        if hint is str and not field.repr:
            return self.secret(value, path)
        return self.value(hint, value, path)

    def value(self, hint: Any, value: object, path: str) -> Any:
        """Return the YAML value as the type ``hint``; None if a problem was found and recorded."""
        origin = typing.get_origin(hint)
        if origin is tuple:
            return self._items(typing.get_args(hint)[0], value, path)
        if origin in (typing.Union, types.UnionType):
            inner = [part for part in typing.get_args(hint) if part is not type(None)]
            return None if value is None else self.value(inner[0], value, path)
        reader = _READERS.get(hint)
        if reader is not None:
            return reader(self, value, path)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._enum(hint, value, path)
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return self.dataclass(hint, value, path)
        raise TypeError(f"no reader for {hint!r} at {path}")

    def text(self, value: object, path: str) -> str | None:
        """Read a text that must not be empty; None, with a problem recorded, if it is no text."""
        if not isinstance(value, str):
            self._expected(path, "text", value)
            return None
        if not value.strip():
            self.problem(path, "must not be empty")
        return value

    def settings(self, value: object, path: str) -> tuple[tuple[str, str], ...]:
        """Read Spark settings by name; a value is a text, a boolean or a number."""
        if not isinstance(value, dict):
            self._expected(path, "a mapping of Spark's settings", value)
            return ()
        found = []
        for name, given in value.items():
            if isinstance(given, bool):
                found.append((name, str(given).lower()))
            elif isinstance(given, str | int | float):
                found.append((name, str(given)))
            else:
                self._expected(join(path, name), "text, a number, true or false", given)
        return tuple(sorted(found))

    def prefixes(self, value: object, path: str) -> Prefixes:
        """Read prefixes of paths, each with its replacement."""
        if not isinstance(value, dict):
            self._expected(path, "a mapping of prefixes of paths", value)
            return ()
        return tuple((name, self.text(to, join(path, name)) or "") for name, to in value.items())

    def integer(self, value: object, path: str) -> int | None:
        """Read a whole number of at least 1: every such key is a bound or a count."""
        if isinstance(value, bool) or not isinstance(value, int):
            self._expected(path, "a whole number", value)
            return None
        if not 1 <= value < 1 << 53:
            self.problem(path, f"must be at least 1, not {value}")
        return value

    def number(self, value: object, path: str) -> float | None:
        """Read a number above 0: every such key is a duration."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._expected(path, "a number", value)
            return None
        if not (math.isfinite(value) and 0 < value <= 1e9):
            self.problem(path, f"must be above 0 and finite, not {value}")
        return float(value)

    def boolean(self, value: object, path: str) -> bool | None:
        """Read true or false."""
        if not isinstance(value, bool):
            self._expected(path, "true or false", value)
            return None
        return value

    def path(self, value: object, path: str) -> Path | None:
        """Read a path; a relative one starts at the configuration's folder."""
        text = self.text(value, path)
        return None if text is None else self.absolute(Path(text), path)

    def address(self, value: object, path: str) -> Address | None:
        """Read ``host:port`` (``[::1]:8080`` for IPv6)."""
        text = self.text(value, path)
        if text is None:
            return None
        found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):(\d{1,5})", text)
        if not found or not 1 <= int(found[3]) <= 65535:
            self.problem(path, f"{text!r} is not host:port with a port of 1 to 65535")
            return None
        return Address(found[1] or found[2], int(found[3]))

    def spark(self, value: object, path: str) -> EngineAddress | None:
        """Read the section ``spark`` of a cluster.

        Its form is ``{url: sc://host:port[/;use_ssl=true], token: …, ca_file: …}``.
        """
        if not isinstance(value, dict):
            self._expected(path, "a mapping with url and token", value)
            return None
        self._unknown(value, dict.fromkeys(("url", "token", "ca_file")), path)
        token = ""
        if "token" in value:
            token = self.secret(value["token"], join(path, "token")) or ""
        if "url" not in value:
            self.problem(join(path, "url"), "missing")
            return None
        ca_file = None
        if "ca_file" in value:
            ca_file = self.path(value["ca_file"], join(path, "ca_file"))
        found = self._spark_url(value["url"], token, join(path, "url"))
        return None if found is None else dataclasses.replace(found, ca_file=ca_file)

    def _spark_url(self, value: object, token: str, path: str) -> EngineAddress | None:
        text = self.text(value, path)
        if text is None:
            return None
        found = re.fullmatch(
            r"sc://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?/?((?:;[^;]*)*)", text
        )
        port = int(found[3] or _SPARK_PORT) if found else 0
        if not found or not 1 <= port <= 65535:
            self.problem(path, f"{text!r} is not sc://host:port, with ;use_ssl=true for TLS")
            return None
        tls = False
        for option in filter(None, found[4].split(";")):
            name, _, setting = option.partition("=")
            if name == "token":
                self.problem(path, f"a token must not stand in the URL: use token, {_SECRET_FORM}")
            elif name != "use_ssl" or setting not in ("true", "false"):
                self.problem(path, f"unknown option {option!r}; known is use_ssl=true")
            tls = tls or option == "use_ssl=true"
        return EngineAddress(found[1] or found[2], port, token, tls)

    def fanout(self, value: object, path: str) -> bool | None:
        """Read ``serial`` or ``parallel``, the value of ``fanout``; True for ``parallel``."""
        if value not in ("serial", "parallel"):
            self.problem(path, f"must be serial or parallel, not {_shown(value)}")
            return None
        return value == "parallel"

    def secret(self, value: object, path: str) -> str | None:
        """Read a secret from an environment variable or a file; no message contains its text.

        ``value``: the variable or the file. None, with a problem recorded, if there is none.
        """
        if isinstance(value, str):
            self.problem(path, f"a secret must not stand in this file: {_SECRET_FORM}")
            return None
        if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _SOURCES:
            self.problem(path, f"not a secret: {_SECRET_FORM}")
            return None
        [(source, name)] = value.items()
        if not isinstance(name, str) or not name:
            self.problem(join(path, source), "must be a name in plain text")
            return None
        found = _SOURCES[source](self, name, join(path, source))
        return None if found is None else self._fit_secret(found, join(path, source))

    def _fit_secret(self, secret: str, path: str) -> str | None:
        if not re.fullmatch(r"[\x21-\x7e]+", secret):
            self.problem(path, "the secret must be printable ASCII without spaces, in one line")
        elif len(secret) < _SECRET_LENGTH_MIN:
            self.problem(path, f"the secret is too short: {_SECRET_LENGTH_MIN} characters at least")
        else:
            return secret
        return None

    def _secret_from_environment(self, name: str, path: str) -> str | None:
        secret = self._environ.get(name, "")
        if not secret:
            state = "empty" if name in self._environ else "not set"
            self.problem(path, f"environment variable {name} is {state}")
            return None
        return secret

    def _secret_from_file(self, name: str, path: str) -> str | None:
        file = self.absolute(Path(name), path)
        if file is None:
            return None
        try:
            secret = file.read_text(encoding="utf-8").strip()
        except OSError as error:
            self.problem(path, f"{file} cannot be read: {error.strerror}")
            return None
        except UnicodeDecodeError:
            self.problem(path, f"{file} is not text")
            return None
        if not secret:
            self.problem(path, f"{file} is empty")
            return None
        return secret

    def _items(self, hint: Any, value: object, path: str) -> tuple[Any, ...] | None:
        if not isinstance(value, list):
            self._expected(path, "a list", value)
            return None
        return tuple(self.value(hint, item, f"{path}[{index}]") for index, item in enumerate(value))

    def _enum(self, hint: type[Enum], value: object, path: str) -> Enum | None:
        for member in hint:
            if member.value == value:
                return member
        known = " or ".join(str(member.value) for member in hint)
        self.problem(path, f"must be {known}, not {_shown(value)}")
        return None

    def _expected(self, path: str, what: str, value: object) -> None:
        hint = "; put it in quotes" if what == "text" and not isinstance(value, dict | list) else ""
        self.problem(path, f"expected {what}, found {_shown(value)}{hint}")


def _key(kind: type, field: dataclasses.Field[Any]) -> str:
    return _KEYS.get((kind, field.name), field.name)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _shown(value: object) -> str:
    """Return the kind of a wrong value for a message; of a text also the start.

    The rest of the text may be a secret.
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else f"a {type(value).__name__}"


_SOURCES: dict[str, Callable[[Walker, str, str], str | None]] = {
    "env": Walker._secret_from_environment,
    "file": Walker._secret_from_file,
}
_READERS: dict[Any, Callable[[Walker, object, str], Any]] = {
    str: Walker.text,
    int: Walker.integer,
    float: Walker.number,
    bool: Walker.boolean,
    Path: Walker.path,
    Address: Walker.address,
    EngineAddress: Walker.spark,
}
_KEYS: dict[tuple[type, str], str] = {(Config, "fanout_parallel"): "fanout"}
_FIELD_READERS: dict[tuple[type, str], Callable[[Walker, object, str], Any]] = {
    (Config, "fanout_parallel"): Walker.fanout,
    (Config, "session_defaults"): Walker.settings,
    (ClusterConfig, "storage"): Walker.prefixes,
}


# The whole file. All problems are collected: one run shows everything that has to be changed.


__all__ = ["ConfigError", "Problem", "load", "load_text"]

_BYTES_MAX: Final = 1 << 20
"""The most bytes of a configuration file: it is a page of text; anything larger is the wrong
file."""


def load(path: Path | str, environ: Mapping[str, str], *, with_files: bool = True) -> Config:
    """Read a configuration file; raises ConfigError with every problem found.

    ``with_files``: read the certificate files that it names, too.
    """
    file = Path(path).expanduser().absolute()
    try:
        if file.stat().st_size > _BYTES_MAX:
            raise ConfigError(file, [Problem("", "larger than 1 MiB: not a configuration")])
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(file, [Problem("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(file, [Problem("", "not UTF-8 text")]) from error
    return load_text(text, file, environ, with_files=with_files)


def load_text(
    text: str, file: Path, environ: Mapping[str, str], *, with_files: bool = True
) -> Config:
    """Read a configuration from a text as if it were in ``file``; raises ConfigError.

    Relative paths start at the folder of ``file``.
    """
    tree = parse(text)
    walker = Walker(tree, file.parent, environ)
    config: Config | None = None
    if not tree.problems or tree.value is not None:
        config = walker.dataclass(Config, tree.value, "")
    if config is not None:
        config = dataclasses.replace(
            config,
            state_dir=walker.absolute(config.state_dir, "state_dir") or config.state_dir,
            log=_absolute_log(config.log, walker),
            limits=_fitted(config.limits, tree.value),
        )
        config = _with_users_file(config, walker, environ)
        for where, message in check(config):
            walker.problem(where, message)
        _check_rules(config, walker)
        if with_files:
            _check_files(config, walker)
    if walker.problems or config is None:
        raise ConfigError(file, walker.problems)
    return config


def _fitted(limits: Limits, content: object) -> Limits:
    """Return the limits after reducing each one that the file does not set to its bound.

    ``content``: the file's content. So an operator who sets one limit need not know which defaults
    it bounds. A limit that is set stays as it is.
    """
    given = content.get("limits") if isinstance(content, dict) else None
    for smaller, larger in LIMITS_IN_ORDER:
        bound = getattr(limits, larger)
        if smaller not in (given or {}) and getattr(limits, smaller) > bound:
            limits = dataclasses.replace(limits, **{smaller: bound})
    return limits


def _absolute_log(log: str, walker: Walker) -> str:
    """Return the ring's log URL with an absolute path, if it is a relative ``sqlite:queue.db``.

    Records a problem if the URL names no file.
    """
    if not log.startswith("sqlite:") or log.startswith("sqlite:///"):
        return log
    name = log.removeprefix("sqlite:")
    if not name or name.startswith("//"):
        walker.problem("log", f"{log!r} names no file: sqlite:///absolute/path, or sqlite:relative")
        return log
    file = walker.absolute(Path(name), "log")
    return log if file is None else f"sqlite://{file}"


@dataclass(frozen=True, slots=True)
class UsersFile:
    """The content of the file that ``users_file`` names."""

    users: tuple[User, ...]


def _with_users_file(config: Config, walker: Walker, environ: Mapping[str, str]) -> Config:
    """Return the configuration with the users of ``users_file`` after its own users."""
    if (file := config.users_file) is None:
        return config
    try:
        tree = parse(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        walker.problem("users_file", f"{file} cannot be read: {error}")
        return config
    there = Walker(tree, file.parent, environ)
    found = there.dataclass(UsersFile, tree.value, "")
    for each in there.problems:
        walker.problem("users_file", f"{file}: {each}")
    return (
        config if found is None else dataclasses.replace(config, users=config.users + found.users)
    )


def _check_files(config: Config, walker: Walker) -> None:
    """Record a problem for each certificate file that cannot be read.

    Later errors would not name the file.
    """
    named = [
        (f"clusters[{at}].spark.ca_file", c.spark.ca_file) for at, c in enumerate(config.clusters)
    ]
    for section in ("kafka", "redis"):
        for key in ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file"):
            named.append((f"{section}.{key}", getattr(getattr(config, section), key)))
    for path, file in named:
        try:
            if file is not None:
                file.read_bytes()
        except OSError as error:
            walker.problem(path, f"{file} cannot be read: {error.strerror}")
    if config.tls.enabled and not any(check_tls(config.tls)):
        try:
            read_contexts(config.tls)
        except CertificateError as error:
            walker.problem(f"tls.{error.key}", error.message)


def _check_rules(config: Config, walker: Walker) -> None:
    if config.rules is None:
        return
    try:
        load_rules(config.rules)
    except OSError as error:
        walker.problem("rules", f"{config.rules} cannot be read: {error.strerror}")
    except RulesError as error:
        walker.problem("rules", str(error))
