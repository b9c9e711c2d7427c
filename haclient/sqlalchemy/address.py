"""An engine's URL as the options of `haclient.connect`."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError

from haclient.tls import VARIABLES

_TEXTS = frozenset({"catalog", "order", "consistency", "token", "user", "schema", *VARIABLES})
"""Options that are never a number, whatever they look like."""


def connect_options(url: URL, token: str | None) -> dict[str, Any]:
    """Return what ``haproc://[USER[:TOKEN]@]HOST[,HOST…][:PORT][/SCHEMA][?OPTION=VALUE&…]`` says.

    SQLAlchemy reads one port, which is that of all hosts. A host with another port, or an IPv6
    address, is an option ``host``, which may be repeated. ``tls=true``: speak HTTPS.
    ``token``: used if the URL has none. All other options are those of `haclient.connect`, which
    checks them.
    """
    options: dict[str, Any] = {}
    further: list[str] = []
    scheme = "http"
    for name, value in url.query.items():
        if name == "host":
            further += [value] if isinstance(value, str) else value
        elif not isinstance(value, str):
            raise ArgumentError(f"the option {name} stands more than once in the engine's URL")
        elif name == "tls":
            if value not in ("true", "false"):
                raise ArgumentError(f"tls is true or false in the engine's URL, not {value!r}")
            scheme = "https" if value == "true" else "http"
        else:
            options[name] = _typed(name, value)
    hosts = [*(each for each in (url.host or "").split(",") if each), *further]
    given = {
        "user": url.username or None,
        "token": url.password or token or None,
        "schema": url.database or None,
    }
    return {
        "servers": [f"{scheme}://{_with_port(each, url.port)}" for each in hosts],
        **options,
        **{name: value for name, value in given.items() if value is not None},
    }


def _with_port(host: str, port: int | None) -> str:
    has_port = ":" in host.rpartition("]")[2]
    return host if has_port or port is None else f"{host}:{port}"


def _typed(name: str, value: str) -> Any:
    if name in _TEXTS:
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
