"""Reports on statements, and the settings that nobody may change."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pyspark
import pytest

from haproc.classify.model import OperationClass
from haproc.classify.names import Context
from haproc.classify.rules import Rules, parse_rules
from haproc.classify.session_settings import (
    RESERVED,
    TRAVELLING,
    Group,
    assigned,
    is_own,
    refusal,
    reserved,
    travels,
)
from haproc.classify.showing import described
from haproc.cli.output import report, under
from tests.readings.classified import classified

RULES = Rules.builtin()


def test_report_of_insert_contains_all_properties() -> None:
    shown = report("INSERT INTO t VALUES (1, 'a'), (2, NULL);", Context(), RULES)
    assert shown.as_dict() == {
        "statement": "INSERT INTO t VALUES (1, 'a'), (2, NULL)",
        "class": "asynchronous",
        "kind": "insert",
        "rule": "default for insert",
        "writes": ["spark_catalog.default.t"],
        "write_concern": None,
        "apply_budget_s": None,
        "cache": None,
        "combinable": {"rows": 2, "types": ["i", "s"]},
    }
    assert "class:         asynchronous" in shown.as_text()
    json.dumps(shown.as_dict())


def test_report_lists_the_rules_that_depend_on_the_plan_reading() -> None:
    text = """rules:
    - {name: secrets, table: spark_catalog.secret.*, refuse: secret}
    - {name: slowly, kind: delete, class: synchronous}
    """
    shown = report("SELECT * FROM t", Context(), parse_rules(text))
    assert shown.as_dict()["rule"] == "its plan reading decides: secrets"
    refused = report("INSERT INTO secret.t VALUES (1)", Context(), parse_rules(text)).refused
    assert refused is not None and refused.message == "secret"


def test_report_of_statement_that_spark_must_parse_points_to_the_ring_option() -> None:
    shown = report("DELETE FROM t", Context(), RULES)
    assert shown.as_dict()["kind"] is None and "--ring" in shown.as_text()


def test_report_of_a_ring_is_decided_by_other_rules() -> None:
    text = """rules:
    - {name: secrets, table: spark_catalog.secret.*, refuse: secret}
    - {name: slowly, kind: delete, class: synchronous}
    """
    described_statement = described(classified("DELETE FROM t"))
    assert under(described_statement, parse_rules(text), "ann")["rule"] == "slowly"
    assert under(described_statement, RULES, "ann") == described_statement
    secret = {**described_statement, "reads": ["spark_catalog.secret.t"], "tables_known": True}
    assert under(secret, parse_rules(text), "ann")["refused"]["reason"] == "secret"
    wrong = {"statement": "x", "error": {}}
    assert under(wrong, RULES, "ann") == wrong


def test_report_of_refused_statement_contains_the_reason() -> None:
    shown = report("SELECT 1; SELECT 2", Context(), RULES)
    assert shown.statement is None
    assert shown.as_dict()["refused"] == {
        "error_class": "HAPROC_MULTIPLE_STATEMENTS",
        "reason": "there is more than one statement in the text",
        "hint": "send them one by one, each as a request of its own",
    }
    assert "more than one statement" in shown.as_text()


def test_report_with_override_shows_it_or_its_refusal() -> None:
    parallel = OperationClass.SYNCHRONOUS_PARALLEL
    shown = report("INSERT INTO t VALUES (1)", Context(), RULES, parallel)
    assert shown.as_dict()["class"] == parallel.value
    assert report("SELECT 1", Context(), RULES, parallel).refused is not None


def test_report_of_long_statement_is_cut_in_text_but_not_in_json() -> None:
    shown = report(f"SELECT '{'x' * 5000}'", Context(), RULES)
    assert len(shown.as_text()) < 1000
    assert len(str(shown.as_dict()["statement"])) > 5000


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
    spark.sql.legacy.inlinecteincommands
    spark.sql.legacy.identifierclause
    spark.sql.casesensitive
    spark.sql.catalog.x
    spark.sql.defaultcatalog
    spark.sql.path.x
    spark.sql.extensions
    spark.databricks.delta.write.txnx
    spark.databricks.delta.commitinfo.x
    spark.databricks.delta.properties.defaults.x
    spark.databricks.delta.v2.x
    spark.databricks.delta.timetravel.x
    spark.sql.analyzer.singlepassresolver.enabled
    spark.sql.execution.arrow.uselargevartypes
    spark.sql.parquet.outputtimestamptype
    spark.sql.legacy.setcommandrejectssparkcoreconfs
    spark.sql.extendedexplainproviders
    spark.databricks.delta.stalenesslimit
    spark.sql.redaction.x
    spark.redaction.x
    spark.sql.sources.default
    spark.sql.functionResolution.sessionOrder
    spark.sql.planChangeLog.level
    spark.haproc.x
    spark.sql.xclass
    spark.sql.xclass.x
    spark.hadoop.fs.x.impl
    fs.x.impl.x
"""
"""They change the reading of texts, the meaning of names, HAProc's marks, or the code that runs."""


@pytest.mark.parametrize("key", HARMFUL.split())
def test_harmful_setting_can_neither_be_set_nor_reset(key: str) -> None:
    for spelt in (key, key.upper()):
        refused = refusal(spelt)
        assert refused is not None and refused.error_class == "HAPROC_RESERVED_SETTING", spelt
        assert refused.hint


def names_of(groups: Iterable[Group]) -> list[str]:
    """Return a name for each table entry; an entry that ends with a dot gets a letter appended."""
    return [f"{name}x" if name.endswith(".") else name for group in groups for name in group.names]


def test_setting_is_either_travelling_reserved_or_of_the_session() -> None:
    for name in names_of(TRAVELLING):
        assert (travels(name), bool(reserved(name)), is_own(name)) == (True, False, False), name
    for name in names_of(RESERVED):
        assert (travels(name), bool(reserved(name)), is_own(name)) == (False, True, False), name
    for name in OWN.split():
        assert (travels(name), bool(reserved(name)), is_own(name)) == (False, False, True), name


OWN = """
    spark.sql.legacy.sizeOfNull
    spark.sql.legacy.nextYears
    spark.sql.optimizer.excludedRules
    spark.sql.execution.rangeExchange.sampleSizePerPartition
    spark.sql.parquet.mergeSchema
    spark.sql.parquet.int96RebaseModeInRead
    spark.sql.csv.parser.columnPruning.enabled
    spark.sql.sources.partitionColumnTypeInference.enabled
    spark.sql.analyzer.failAmbiguousSelfJoin
    spark.sql.function.concatBinaryAsString
    spark.sql.SHUFFLE.partitions.x
    spark.databricks.delta.stats.limitPushdown.enabled
    spark.databricks.delta.foo
"""
"""Common settings, and one that nothing lists."""


def test_refusal_of_each_reserved_setting_contains_its_reason() -> None:
    for group in RESERVED:
        for name in names_of((group,)):
            refused = refusal(name)
            assert refused is not None and group.reason in refused.message, name


@pytest.mark.parametrize("name", ["spark.my.own", "spark.myApp.batch-size", "spark.own"])
def test_setting_of_a_program_travels(name: str) -> None:
    assert travels(name)


@pytest.mark.parametrize(
    "name",
    [
        "spark.executor.memory",
        "spark.job.tags",
        "spark.hadoop.fs.defaultFS",
        "spark.pyspark.python",
        "spark.my.own.",
        "spark..own",
        "fs.defaultFS",
        "dfs.replication",
        "google.cloud.auth.type",
        "parquet.block.size",
    ],
)
def test_setting_that_reaches_the_server_or_the_storage_is_reserved(name: str) -> None:
    assert reserved(name)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SET spark.sql.x=1", ("spark.sql.x", "1")),
        ("set `spark.sql.x` = a b ;", ("spark.sql.x", "a b")),
        ("SET spark.sql.x", None),
        ("SET spark.sql.x = 'a'", None),
        ("SET spark.sql.x = a; SET b = c", None),
        ("RESET spark.sql.x", None),
    ],
)
def test_set_statement_reading_returns_its_assignment_or_none(
    sql: str, expected: tuple[str, str] | None
) -> None:
    assert assigned(sql) == expected


@pytest.mark.thorough
def test_no_string_in_the_classes_of_spark_looks_like_a_setting_of_a_program() -> None:
    """A constant of a class file is a mark, its length in two bytes, and its text."""
    constant = re.compile(rb"\x01..(spark\.[A-Za-z]\w*)[.\x00-\x1f]", re.DOTALL)
    found: set[str] = set()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as classes:
            for name in classes.namelist():
                if name.endswith(".class"):
                    found.update(text.decode() for text in constant.findall(classes.read(name)))
    assert len(found) > 50
    assert not {name for name in found if travels(f"{name}.x")}
