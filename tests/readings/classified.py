"""Statements in their classified form; recorded readings replace Spark's parser."""

from __future__ import annotations

from haproc.classify.bounds import Bounds
from haproc.classify.classifier import Unparsed, classify, decided
from haproc.classify.model import Classified, OperationClass, Recognised
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.engine.interface import Settings
from haproc.reading.summary import recognise
from haproc.reading.tree import read
from haproc.route.readings import Readings
from tests.readings.golden import recorded

_CONTEXT = Context()
_RULES = Rules.builtin()
_BOUNDS = Bounds()


def classified(
    sql: str,
    context: Context = _CONTEXT,
    rules: Rules = _RULES,
    override: OperationClass | None = None,
    bounds: Bounds = _BOUNDS,
) -> Classified:
    """Return a statement's class; raise RefusedError, LookupError if Spark cannot parse it."""
    found = classify(sql, context, rules, override, bounds)
    if isinstance(found, Unparsed):
        return decided(parsed_as(found.sql, context), found.sql, context, rules, override)
    return found


def parsed_as(sql: str, context: Context = _CONTEXT) -> Recognised:
    """Return Spark's parsing of a statement; raise errors as `classified` does."""
    entry = recorded(sql)
    if not (entry.data or entry.parsed):
        raise LookupError(f"{sql}: Spark says {entry.error}")
    return recognise(read(entry.data or entry.parsed, sql), context)


async def classified_by(readings: Readings, sql: str, settings: Settings) -> Classified:
    """Return a statement's class, as a Spark parses it; raise RefusedError, EngineError."""
    context = Context(settings.catalog, settings.schema)
    found = classify(sql, context, _RULES)
    if isinstance(found, Unparsed):
        recognised = await readings.recognised(found.sql, settings, "ann")
        return decided(recognised, found.sql, context, _RULES)
    return found
