"""Recognises the statements that change a session, and knows the settings nobody may change.

A client's SET reaches HAProc's own sessions, because it is replicated with each of the client's
writes. So a setting is refused if it changes how a statement's text is read (HAProc reads it too,
and must read it as Spark does) or if HAProc itself works through it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import refuse_global
from haproc.classify.reader import Reader, Recognised, unknown
from haproc.failure import ErrorClass

_READING = "it changes how the text of a statement is read"
_NAMING = "it changes what a table's name means"
_MARKING = "HAProc marks its writes through it"
_RUNNING = "it names code that runs inside Spark"
_SHOWING = "it hides parts of what Spark makes of a statement"


@dataclass(frozen=True, slots=True)
class Reserved:
    """A setting that no client may change, or all that fit a pattern with ``*``."""

    key: str
    reason: str
    instead: str = "leave it as the cluster has it"


RESERVED_SETTINGS = (
    Reserved("spark.sql.parser.*", _READING),
    Reserved("spark.sql.ansi.doublequotedidentifiers", _READING, "quote names with backquotes"),
    Reserved("spark.sql.ansi.enforcereservedkeywords", _READING),
    Reserved("spark.sql.ansi.relationprecedence", _READING),
    Reserved("spark.sql.variable.substitute", _READING, "bind parameters instead of ${…}"),
    Reserved("spark.sql.legacy.literal.*", _READING),
    Reserved("spark.sql.legacy.exponentliteralasdecimal.*", _READING),
    Reserved("spark.sql.legacy.setopsprecedence.*", _READING),
    Reserved("spark.sql.legacy.consecutivestringliterals.*", _READING),
    Reserved("spark.sql.legacy.parser.*", _READING),
    Reserved("spark.sql.legacy.parametersubstitution.*", _READING),
    Reserved("spark.sql.legacy.sqlscripting.*", _READING),
    Reserved("spark.sql.legacy.cteprecedencepolicy", _NAMING),
    Reserved("spark.sql.legacy.inlinectesincommands", _NAMING),
    Reserved("spark.sql.legacy.identifierclause.*", _NAMING),
    Reserved("spark.sql.casesensitive", _NAMING),
    Reserved("spark.sql.catalog.*", _NAMING),
    Reserved("spark.sql.defaultcatalog", _NAMING, "write USE catalog.schema"),
    Reserved("spark.sql.path.*", _NAMING),
    Reserved("spark.sql.extensions", _READING),
    Reserved("spark.databricks.delta.write.txn*", _MARKING, "give the request an id"),
    Reserved("spark.databricks.delta.commitinfo.*", _MARKING),
    Reserved("spark.databricks.delta.properties.defaults.*", _MARKING, "write TBLPROPERTIES"),
    Reserved("spark.databricks.delta.v2.*", "Delta's marks are honoured in the default mode only"),
    Reserved("spark.databricks.delta.stalenesslimit", "reads would show whatever is there by then"),
    Reserved("spark.sql.redaction.*", _SHOWING),
    Reserved("spark.redaction.*", _SHOWING),
    Reserved("spark.sql.sources.default", "it chooses the code behind tables", "write USING delta"),
    Reserved("spark.haproc.*", _MARKING),
    Reserved("*class", _RUNNING),
    Reserved("*class.*", _RUNNING),
    Reserved("*.impl", _RUNNING),
    Reserved("*.impl.*", _RUNNING),
)


def reserved(key: str) -> Reserved | None:
    """Return why a setting is reserved; None if a client may change it."""
    key = key.lower()
    for entry in RESERVED_SETTINGS:
        if fnmatchcase(key, entry.key):
            return entry
    return None


def _refuse_reserved(key: str) -> None:
    entry = reserved(key)
    if entry is not None:
        raise RefusedError(
            ErrorClass.RESERVED_SETTING,
            f"the setting {key} can't be changed: {entry.reason}",
            entry.instead,
        )


def _setting_key(reader: Reader) -> str:
    """Return the setting's name: everything up to the first equals sign."""
    text = "".join(token.text for token in reader.tokens[reader.at :])
    return text.partition("=")[0].strip("`")


def recognise_set(reader: Reader) -> Recognised:
    """``SET …``: a setting, a variable, the catalog, the time zone."""
    reader.take("SET")
    word, following = reader.word(), reader.word(1)
    assigns = reader.is_symbol("=", 1) or reader.is_symbol(".", 1)
    if word in ("VAR", "VARIABLE") and not assigns:
        reader.query()
        return reader.recognised(Kind.TEMPORARY_VIEW)
    if word == "CATALOG" and not assigns:
        return reader.recognised(Kind.USE)
    if (word, following) == ("TIME", "ZONE"):
        return reader.recognised(Kind.SET)
    if word == "PATH" or (word in ("ROLE", "COLLATION") and not assigns):
        return unknown(f"SET {word} is not recognised")
    _refuse_reserved(_setting_key(reader))
    return reader.recognised(Kind.SET)


def recognise_reset(reader: Reader) -> Recognised:
    """``RESET [key]``."""
    reader.take("RESET")
    _refuse_reserved(_setting_key(reader))
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
    reader.query()
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
    named_query = reader.take("AS") or reader.at < reader.end
    if not named_query:
        reader.at = start
        reader.read_table()
    reader.query()
    return reader.recognised(Kind.CACHE)
