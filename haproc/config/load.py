"""Reading a ring's configuration: YAML text → plain tree → dataclasses → contradictions.

All problems are collected, so that one run shows everything that has to be changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from haproc.classify.rules import RulesError, load_rules
from haproc.config.check import LIMITS_IN_ORDER, check
from haproc.config.errors import ConfigError, Problem
from haproc.config.limits import Limits
from haproc.config.model import Config
from haproc.config.tree import parse
from haproc.config.walk import Walker

__all__ = ["ConfigError", "Problem", "load", "load_text"]

_BYTES_MAX: Final = 1 << 20
"""A configuration is a page of text; anything larger is the wrong file."""


def load(path: Path | str, environ: Mapping[str, str]) -> Config:
    """Read the file; raises ConfigError with every problem found."""
    file = Path(path).expanduser().absolute()
    try:
        if file.stat().st_size > _BYTES_MAX:
            raise ConfigError(file, [Problem("", "larger than 1 MiB: not a configuration")])
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(file, [Problem("", f"cannot be read: {error.strerror}")]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(file, [Problem("", "not UTF-8 text")]) from error
    return load_text(text, file, environ)


def load_text(text: str, file: Path, environ: Mapping[str, str]) -> Config:
    """Read configuration text as if it stood in ``file`` (relative paths start at its folder)."""
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
        for where, message in check(config):
            walker.problem(where, message)
        _check_rules(config, walker)
        _check_files(config, walker)
    if walker.problems or config is None:
        raise ConfigError(file, walker.problems)
    return config


def _fitted(limits: Limits, said: object) -> Limits:
    """Return the limits with each that nobody set no larger than what bounds it.

    Whoever sets one need not know which defaults it bounds. One that is set stays as it is.
    """
    given = said.get("limits") if isinstance(said, dict) else None
    for smaller, larger in LIMITS_IN_ORDER:
        bound = getattr(limits, larger)
        if smaller not in (given or {}) and getattr(limits, smaller) > bound:
            limits = dataclasses.replace(limits, **{smaller: bound})
    return limits


def _absolute_log(log: str, walker: Walker) -> str:
    """Return the log's URL with an absolute path; ``sqlite:queue.db`` is relative."""
    if not log.startswith("sqlite:") or log.startswith("sqlite:///"):
        return log
    name = log.removeprefix("sqlite:")
    if not name or name.startswith("//"):
        walker.problem("log", f"{log!r} names no file: sqlite:///absolute/path, or sqlite:relative")
        return log
    file = walker.absolute(Path(name), "log")
    return log if file is None else f"sqlite://{file}"


def _check_files(config: Config, walker: Walker) -> None:
    """Certificates are read by gRPC and the clients of Kafka and Redis, whose errors don't tell."""
    for section in ("kafka", "redis", "connect"):
        for key in ("ssl_ca_file", "ssl_certificate_file", "ssl_key_file"):
            file: Path | None = getattr(getattr(config, section), key, None)
            try:
                if file is not None:
                    file.read_bytes()
            except OSError as error:
                walker.problem(f"{section}.{key}", f"{file} cannot be read: {error.strerror}")


def _check_rules(config: Config, walker: Walker) -> None:
    if config.rules is None:
        return
    try:
        load_rules(config.rules)
    except OSError as error:
        walker.problem("rules", f"{config.rules} cannot be read: {error.strerror}")
    except RulesError as error:
        walker.problem("rules", str(error))
