"""``haproc config check``, ``haproc classify`` and ``haproc spark-jar``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from haproc.classify.names import Context
from haproc.classify.rules import Rules, RulesError, load_rules
from haproc.cli import classify_on_ring, output
from haproc.cli.report import report
from haproc.config.errors import ConfigError
from haproc.config.load import load
from haproc.engine import plugin
from haproc.ring import plugin_jar
from haproc.ring.runtime import RuntimeMissingError
from haproc.ring.spark_settings import EXTENSIONS


def check_config(options: argparse.Namespace) -> int:
    """Say everything that is wrong with a configuration file."""
    try:
        config = load(options.file, os.environ)
    except ConfigError as error:
        if options.json:
            output.dump({"ok": False, "problems": [str(p) for p in error.problems]})
        else:
            output.error(str(error))
        return output.USAGE
    names = [cluster.name for cluster in config.clusters]
    if options.json:
        output.dump({"ok": True, "ring": config.ring, "clusters": names})
    else:
        print(f"{options.file}: ring {config.ring}, clusters {', '.join(names)}: correct")
    return 0


def spark_jar(options: argparse.Namespace) -> int:
    """Say where the Spark plugin's jar is, built if need be, and how a cluster loads it."""
    try:
        jar = plugin_jar.jar(lambda step: print(step, file=sys.stderr))
    except RuntimeMissingError as error:
        output.error(str(error))
        return output.FAILED
    settings = {
        "spark.jars": str(jar),
        plugin.EXTENSION_SETTING: EXTENSIONS,
        plugin.READER_SETTING: plugin.READER,
    }
    if options.json:
        output.dump({"jar": str(jar), "version": plugin.version(), "settings": settings})
    else:
        print(jar)
        print("\n".join(f"{key} {value}" for key, value in settings.items()))
    return 0


def classify(options: argparse.Namespace) -> int:
    """Show what statements are; 3 if any is refused."""
    try:
        rules = load_rules(options.rules) if options.rules else Rules.builtin()
        statements = _statements(options.statement, options.file)
    except (RulesError, OSError) as error:
        output.error(str(error))
        return output.USAGE
    if not statements:
        output.error("give a statement, or a file of them with --file")
        return output.USAGE
    if options.server or options.ring:
        return classify_on_ring.classify(options, statements, rules if options.rules else None)
    context = Context(options.catalog, options.schema, options.user)
    reports = [report(sql, context, rules) for sql in statements]
    if options.json:
        shown = [each.as_dict() for each in reports]
        output.dump(shown[0] if options.file is None else shown)
    else:
        print("\n\n".join(each.as_text() for each in reports))
    return output.NOT_READY if any(each.refused for each in reports) else 0


def _statements(statement: str | None, file: Path | None) -> list[str]:
    if file is None:
        return [] if statement is None else [statement]
    text = sys.stdin.read() if str(file) == "-" else file.read_text()
    return [line for line in text.splitlines() if line.strip()]
