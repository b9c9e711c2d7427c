"""Recognises the statements that change a session, and refuses settings that no session may change.

Which a session may change says `haproc.classify.session_settings`. What only reads a setting is let
through for every name: Spark itself redacts the values that hold secrets.
"""

from __future__ import annotations

import re
from typing import Final

from haproc.classify.model import Kind
from haproc.classify.names import refuse_global
from haproc.classify.reader import Reader, Recognised, unknown
from haproc.classify.session_settings import refusal
from haproc.classify.tokens import TokenKind

_ASSIGNS: Final = re.compile(
    r"\s*SET\s+(?P<quote>`?)(?P<key>[\w.:-]+)(?P=quote)\s*=(?P<value>[^;`'\"]*);?\s*",
    re.IGNORECASE | re.ASCII,
)


def _check_setting(reader: Reader) -> None:
    """Refuse a setting that no session may change; the reader is at its name."""
    if (error := refusal(_setting_key(reader))) is not None:
        raise error


def _setting_key(reader: Reader) -> str:
    """Return the setting's name: everything up to the first equals sign."""
    tokens = reader.tokens[reader.at :]
    if tokens and tokens[0].kind is TokenKind.QUOTED_NAME:
        return tokens[0].text[1:-1].replace("``", "`")
    return "".join(token.text for token in tokens).partition("=")[0]


def assigned(sql: str) -> tuple[str, str] | None:
    """Return the setting and the value of ``SET name=value``; None for anything else."""
    match = _ASSIGNS.fullmatch(sql)
    return None if match is None else (match["key"], match["value"].strip())


def recognise_set(reader: Reader) -> Recognised:
    """``SET …``: a setting, a variable, the catalog, the time zone."""
    reader.take("SET")
    word, following = reader.word(), reader.word(1)
    assigns = reader.is_symbol("=", 1) or reader.is_symbol(".", 1)
    if word in ("VAR", "VARIABLE") and not assigns:
        return reader.recognised(Kind.TEMPORARY_VIEW)
    if word == "CATALOG" and not assigns:
        return reader.recognised(Kind.USE)
    if (word, following) == ("TIME", "ZONE"):
        return reader.recognised(Kind.SET)
    if word == "PATH" or (word in ("ROLE", "COLLATION") and not assigns):
        return unknown(f"SET {word} is not recognised")
    if "=" in reader.sql:
        _check_setting(reader)
    return reader.recognised(Kind.SET)


def recognise_reset(reader: Reader) -> Recognised:
    """``RESET [key]``."""
    reader.take("RESET")
    if reader.at < reader.end:
        _check_setting(reader)
    return reader.recognised(Kind.RESET)


def recognise_use(reader: Reader) -> Recognised:
    """``USE [CATALOG|SCHEMA|…] name``."""
    reader.take("USE")
    return reader.recognised(Kind.USE) if reader.is_name() else unknown("USE names nothing")


def recognise_declare(reader: Reader) -> Recognised:
    """``DECLARE [OR REPLACE] [VARIABLE] name …``."""
    reader.take("DECLARE")
    reader.take("OR", "REPLACE")
    reader.take_one("VARIABLE", "VAR")
    if not reader.is_name() or reader.word(1) in ("CONDITION", "CURSOR", "HANDLER"):
        return unknown("this form of DECLARE belongs into a script")
    reader.own_name()
    while reader.is_symbol(","):
        reader.at += 1
        reader.own_name()
    return reader.recognised(Kind.TEMPORARY_VIEW)


def recognise_cache(reader: Reader) -> Recognised:
    """``CACHE [LAZY] TABLE …``, ``UNCACHE TABLE …``, ``CLEAR CACHE``."""
    if reader.take("CLEAR", "CACHE"):
        return reader.recognised(Kind.CACHE)
    if reader.take("UNCACHE", "TABLE"):
        reader.take("IF", "EXISTS")
        refuse_global(reader.parts())
        return reader.recognised(Kind.CACHE)
    if reader.take("CACHE", "LAZY", "TABLE") or reader.take("CACHE", "TABLE"):
        return _cache_table(reader)
    return unknown("this form of CACHE is not recognised")


def _cache_table(reader: Reader) -> Recognised:
    start = reader.at
    refuse_global(reader.parts())
    if reader.take("OPTIONS"):
        reader.skip_parentheses()
    if reader.at < reader.end:  # a query's
        reader.at = start
        reader.own_name()
    return reader.recognised(Kind.CACHE)
