"""Reports on statements, and the settings that nobody may change."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pyspark
import pytest

from haproc.classify.allowed_settings import GROUPS, allowed
from haproc.classify.model import OperationClass
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.classify.settings import assigned
from haproc.cli.report import report

RULES = Rules.builtin()


def test_report_of_insert_says_all_about_it() -> None:
    made = report("INSERT INTO t VALUES (1, 'a'), (2, NULL);", Context(), RULES)
    assert made.as_dict() == {
        "statement": "INSERT INTO t VALUES (1, 'a'), (2, NULL)",
        "class": "asynchronous",
        "kind": "insert",
        "rule": "default for insert",
        "reads": [],
        "writes": ["spark_catalog.default.t"],
        "tables_known": True,
        "write_concern": None,
        "apply_budget_s": None,
        "cache": None,
        "combinable": {"rows": 2, "types": ["i", "s"]},
    }
    assert "class:         asynchronous" in made.as_text()
    json.dumps(made.as_dict())


def test_report_of_refused_statement_says_why() -> None:
    made = report("KILL 3", Context(), RULES)
    assert made.statement is None
    assert made.as_dict()["refused"] == {
        "error_class": "HAPROC_UNCLASSIFIED",
        "reason": "KILL begins no statement that HAProc knows",
        "hint": "correct the SQL, or have a rule with kind: unknown allow it if Spark takes it",
    }
    assert "KILL begins no statement" in made.as_text()


def test_report_with_override_shows_it_or_its_refusal() -> None:
    parallel = OperationClass.SYNCHRONOUS_PARALLEL
    assert report("DROP TABLE t", Context(), RULES, parallel).as_dict()["class"] == parallel.value
    assert report("SELECT 1", Context(), RULES, parallel).refused is not None


def test_report_of_long_statement_is_cut_for_people_only() -> None:
    made = report(f"SELECT '{'x' * 5000}'", Context(), RULES)
    assert len(made.as_text()) < 1000
    assert len(str(made.as_dict()["statement"])) > 5000


HARMFUL = """
    spark.sql.parser.x
    spark.sql.ansi.doublequotedidentifiers
    spark.sql.ansi.enforcereservedkeywords
    spark.sql.ansi.relationprecedence
    spark.sql.variable.substitute
    spark.sql.legacy.literal.x
    spark.sql.legacy.exponentliteralasdecimal.x
    spark.sql.legacy.setopsprecedence.x
    spark.sql.legacy.consecutivestringliterals.x
    spark.sql.legacy.parser.x
    spark.sql.legacy.parametersubstitution.x
    spark.sql.legacy.sqlscripting.x
    spark.sql.legacy.cteprecedencepolicy
    spark.sql.legacy.inlinectesincommands
    spark.sql.legacy.identifierclause.x
    spark.sql.casesensitive
    spark.sql.catalog.x
    spark.sql.defaultcatalog
    spark.sql.path.x
    spark.sql.extensions
    spark.databricks.delta.write.txnx
    spark.databricks.delta.commitinfo.x
    spark.databricks.delta.properties.defaults.x
    spark.databricks.delta.v2.x
    spark.databricks.delta.stalenesslimit
    spark.sql.redaction.x
    spark.redaction.x
    spark.sql.sources.default
    spark.haproc.x
    spark.sql.xclass
    spark.sql.xclass.x
    spark.hadoop.fs.x.impl
    fs.x.impl.x
"""
"""They change how texts are read or what names mean, HAProc's marks, or the code that runs."""


@pytest.mark.parametrize("key", HARMFUL.split())
def test_harmful_setting_can_neither_be_set_nor_reset(key: str) -> None:
    for sql in (
        f"SET {key} = x",
        f"SET {key.upper()}=x",
        f"set /* x */ `{key}` = `x`",
        f"RESET {key}",
        f"SET\n{key}==x",
    ):
        refused = report(sql, Context(), RULES).refused
        assert refused is not None and refused.error_class == "HAPROC_RESERVED_SETTING", sql
        assert refused.hint


def test_harmless_settings_are_the_clients() -> None:
    for name in (name for group in GROUPS for name in group.names):
        family = name.endswith(".")
        assert allowed(f"{name}x" if family else name)
        assert not allowed(name if family else f"{name}.x")
        assert not allowed(f"x.{name}")


@pytest.mark.parametrize("name", ["spark.my.own", "spark.myApp.batch-size", "spark.own"])
def test_a_programs_own_setting_is_its_own(name: str) -> None:
    assert allowed(name)


@pytest.mark.parametrize(
    "name",
    [
        "spark.executor.memory",
        "spark.job.tags",
        "spark.SQL.my.own",
        "spark.databricks.delta.foo",
        "spark.hadoop.fs.defaultFS",
        "spark.my.own.",
        "spark..own",
        "fs.defaultFS",
    ],
)
def test_what_spark_may_read_is_no_programs_own_setting(name: str) -> None:
    assert not allowed(name)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SET spark.sql.x=1", ("spark.sql.x", "1")),
        ("set `spark.sql.x` = a b ;", ("spark.sql.x", "a b")),
        ("SET spark.sql.x", None),
        ("SET spark.sql.x = 'a'", None),
        ("SET spark.sql.x = a; SET b = c", None),
        ("RESET spark.sql.x", None),
    ],
)
def test_what_a_set_assigns_is_told_or_nothing(sql: str, said: tuple[str, str] | None) -> None:
    assert assigned(sql) == said


@pytest.mark.thorough
def test_no_text_of_sparks_classes_begins_like_a_programs_own_setting() -> None:
    """A constant of a class file is a mark, its length in two bytes, and its text."""
    constant = re.compile(rb"\x01..(spark\.[A-Za-z]\w*)[.\x00-\x1f]", re.DOTALL)
    found: set[str] = set()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as classes:
            for name in classes.namelist():
                if name.endswith(".class"):
                    found.update(text.decode() for text in constant.findall(classes.read(name)))
    assert len(found) > 50
    assert not {name for name in found if allowed(f"{name}.x")}
