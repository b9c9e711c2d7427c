"""Tests of the class of plans: names completed, texts classified, operators' rules applied."""

from __future__ import annotations

from typing import Any

import pyspark.sql.connect.functions as F
import pytest

from haproc.classify.allowed import Paths
from haproc.classify.model import Classified, Kind, OperationClass, Recognised
from haproc.classify.names import Context
from haproc.classify.plans.classifying import classify_plan, unparsed
from haproc.classify.rules import Rule, Rules, parse_rules
from haproc.failure import ErrorClass
from tests.unit.recorded_plans import Program, read, refused

CONTEXT = Context("spark_catalog", "here")
INSERT = Recognised(Kind.INSERT, writes=frozenset({"spark_catalog.here.t"}))


def classified(program: Program, rules: Rules | None = None, *, there: bool = False) -> Classified:
    reading = read(program)
    parsed = {text: INSERT for text in unparsed(reading, CONTEXT) if text.startswith("insert")}
    return classify_plan(reading, CONTEXT, rules or Rules.builtin(), parsed=parsed, there=there)


def test_query_plan_has_its_own_table_names_completed() -> None:
    found = classified(
        lambda s: (
            s.table("A")
            .join(s.sql("select * from x.b"), "id")
            .filter(F.expr("id in (select id from c)"))
            .collect()
        )
    )
    assert (found.operation_class, found.sql) == (OperationClass.QUERY, "")
    assert found.reads == {"spark_catalog.here.a"}


def test_save_plan_is_synchronous_unless_it_appends_to_an_existing_table() -> None:
    def program(s: Any) -> Any:
        return s.table("a").write.mode("append").saveAsTable("t")

    assert classified(program).operation_class is OperationClass.SYNCHRONOUS
    found = classified(program, there=True)
    assert (found.kind, found.operation_class) == (Kind.INSERT, OperationClass.ASYNCHRONOUS)
    assert found.writes == {"spark_catalog.here.t"}


def test_plan_of_a_text_includes_the_tables_of_its_dataframes() -> None:
    found = classified(lambda s: s.sql("insert into t select * from {df}", df=s.table("x.y")))
    assert (found.kind, found.writes) == (Kind.INSERT, {"spark_catalog.here.t"})
    assert found.reads == {"spark_catalog.x.y"}
    assert found.sql.startswith("insert into t")


@pytest.mark.parametrize(
    ("program", "error_class"),
    [
        (lambda s: s.sql("delete from t").collect(), ErrorClass.NESTED_WRITE),
        (lambda s: s.sql("set a = b").limit(1).collect(), ErrorClass.NESTED_WRITE),
        (lambda s: s.sql("execute immediate 'x'").show(), ErrorClass.NESTED_WRITE),
        (lambda s: s.read.parquet("/x").collect(), ErrorClass.PATH),
        (lambda s: s.table("parquet.`/x`").collect(), ErrorClass.PATH),
        (lambda s: s.range(1).write.saveAsTable("delta.`/x`"), ErrorClass.PATH),
        (lambda s: s.range(1).write.option("path", "/x").saveAsTable("t"), ErrorClass.PATH),
        (lambda s: s.range(1).write.saveAsTable("haproc_warm_up.t"), ErrorClass.TABLE_NAME),
        (lambda s: s.table("haproc_staging.r_1_2_3").write.saveAsTable("t"), ErrorClass.TABLE_NAME),
        (lambda s: s.table("Haproc_Staging.rows").collect(), ErrorClass.TABLE_NAME),
        (lambda s: s.catalog.createTable("t", path="/x"), ErrorClass.PATH),
    ],
)
def test_plan_that_must_not_run_is_refused(program: Program, error_class: str) -> None:
    assert refused(classified, program) == error_class


def test_plan_of_files_that_the_operator_allows_is_a_query() -> None:
    rules = Rules(paths=Paths(("/data",)))
    assert classified(lambda s: s.read.parquet("/data/x").collect(), rules).kind is Kind.SELECT


def test_rule_that_refuses_a_table_stays_open_until_spark_has_read_the_plan() -> None:
    rules = parse_rules("rules: [{table: '*.secret', refuse: 'no'}]")
    for program in (
        lambda s: s.table("secret").collect(),
        lambda s: s.sql("select * from secret").limit(1).collect(),
        lambda s: s.range(1).filter("id in (select id from secret)").collect(),
        lambda s: s.table("secret").write.saveAsTable("t"),
        lambda s: s.sql("insert into t select * from {df}", df=s.table("secret")),
        lambda s: s.table("secret").createOrReplaceTempView("v"),
    ):
        found = classified(program, rules)
        assert [rule.refuse for rule in found.rules] == ["no"]
    assert not classified(lambda s: s.table("t").collect()).rules


def test_rule_cannot_make_a_query_of_a_plan_that_writes() -> None:
    for chosen in (OperationClass.QUERY, OperationClass.SESSION):
        rules = Rules((Rule("any", chosen, kinds=frozenset(Kind)),))
        assert (
            refused(classified, lambda s: s.table("a").writeTo("t").append(), rules)
            == ErrorClass.REFUSED_BY_RULE
        )


def test_rule_that_makes_queries_synchronous_refuses_queries_of_plans() -> None:
    rules = Rules((Rule("all", OperationClass.SYNCHRONOUS, kinds=frozenset({Kind.SELECT})),))
    assert refused(classified, lambda s: s.range(1).collect(), rules) == ErrorClass.REFUSED_BY_RULE
