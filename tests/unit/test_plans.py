"""Tests of the reading of real plans, which PySpark's client has made."""

from __future__ import annotations

from typing import Any

import pyspark.sql.connect.functions as F
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from haproc import protos
from haproc.classify.bounds import COLUMNS_MAX
from haproc.classify.model import Kind
from haproc.classify.plans import parsing, relations
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import Does, Mode
from haproc.failure import ErrorClass
from tests.unit.recorded_plans import Program, read, recorded, refused

TWO = StructType().add("a", IntegerType()).add("b", StringType())


@pytest.mark.parametrize(
    "program",
    [
        lambda s: s.range(10).withColumn("a", F.col("id") + 1).filter("a > 2").collect(),
        lambda s: s.table("a.b").groupBy("x").agg(F.sum("y")).limit(3).toPandas(),
        lambda s: s.createDataFrame([(1, "a")], TWO).collect(),
        lambda s: s.table("a").join(s.table("b"), "x").show(),
        lambda s: s.range(3).write.format("noop").mode("overwrite").save(),
        lambda s: s.catalog.listTables(),
        lambda s: s.range(3).mapInPandas(lambda rows: rows, TWO).collect(),
    ],
)
def test_read_plan_that_only_reads_is_a_query(program: Program) -> None:
    assert read(program).does is Does.QUERIES


def test_read_plan_of_a_query_returns_tables_and_texts() -> None:
    reading = read(
        lambda s: (
            s.table("`A.x`.b")
            .join(s.sql("select * from t"), "id")
            .join(s.read.table("c"))
            .collect()
        )
    )
    assert reading.names == {("A.x", "b"), ("c",)}
    assert [part.text for part in reading.sqls] == ["select * from t"]


def test_read_plan_of_files_returns_their_paths() -> None:
    reading = read(lambda s: s.read.option("basePath", "/y").parquet("/x").collect())
    assert reading.paths == {"/x", "/y"}
    assert not reading.names_known


def test_read_plan_of_a_sql_text_returns_it_with_its_arguments() -> None:
    reading = read(lambda s: s.sql("insert into t values (:a)", args={"a": 1}))
    assert reading.does is Does.RUNS_SQL
    assert reading.sql is not None
    assert reading.sql.text == "insert into t values (:a)"
    assert [(name, value.literal.integer) for name, value in reading.sql.named] == [("a", 1)]


def test_read_plan_of_a_sql_text_with_dataframes_includes_their_tables() -> None:
    reading = read(lambda s: s.sql("insert into t select * from {df}", df=s.table("x.y")))
    assert reading.sql is not None
    assert reading.sql.text.startswith("insert into t select * from ")
    assert reading.names == {("x", "y")}


def test_read_plan_of_a_view_changes_the_session() -> None:
    reading = read(lambda s: s.table("a").createOrReplaceTempView("v"))
    assert (reading.does, reading.kind) == (Does.CHANGES_SESSION, Kind.TEMPORARY_VIEW)
    assert (reading.target, reading.names) == (("v",), {("a",)})


def test_read_plan_of_a_function_changes_the_session() -> None:
    reading = read(lambda s: s.udf.register("f", lambda x: x, IntegerType()))
    assert (reading.does, reading.target, reading.user_code) == (
        Does.CHANGES_SESSION,
        ("f",),
        True,
    )


def test_read_plan_of_a_merge_returns_target_and_source() -> None:
    reading = read(
        lambda s: (
            s.table("a")
            .mergeInto("c.d", F.expr("id = k"))
            .withSchemaEvolution()
            .whenMatched()
            .delete()
            .whenNotMatched()
            .insertAll()
            .merge()
        )
    )
    assert (reading.does, reading.kind, reading.target) == (Does.WRITES, Kind.MERGE, ("c", "d"))
    assert (reading.names, reading.expressions, reading.evolves) == ({("a",)}, ("id = k",), True)


def test_read_plan_of_a_local_checkpoint_holds_something() -> None:
    assert read(lambda s: s.range(1).localCheckpoint()).does is Does.HOLDS


WRITES: list[tuple[Program, Mode, Kind]] = [
    (lambda df: df.write.saveAsTable("c.d"), Mode.SAVE_ERROR, Kind.CREATE_TABLE_AS),
    (lambda df: df.write.mode("append").saveAsTable("c.d"), Mode.SAVE_APPEND, Kind.CREATE_TABLE_AS),
    (
        lambda df: df.write.mode("ignore").format("delta").partitionBy("a").saveAsTable("c.d"),
        Mode.SAVE_IGNORE,
        Kind.CREATE_TABLE_AS,
    ),
    (
        lambda df: df.write.mode("overwrite").clusterBy("a").saveAsTable("c.d"),
        Mode.SAVE_OVERWRITE,
        Kind.CREATE_TABLE_AS,
    ),
    (lambda df: df.write.insertInto("c.d"), Mode.INSERT, Kind.INSERT),
    (
        lambda df: df.write.insertInto("c.d", overwrite=True),
        Mode.INSERT_OVERWRITE,
        Kind.INSERT_OVERWRITE,
    ),
    (lambda df: df.writeTo("c.d").create(), Mode.CREATE, Kind.CREATE_TABLE_AS),
    (lambda df: df.writeTo("c.d").replace(), Mode.REPLACE, Kind.CREATE_TABLE_AS),
    (
        lambda df: df.writeTo("c.d").tableProperty("delta.appendOnly", "true").createOrReplace(),
        Mode.CREATE_OR_REPLACE,
        Kind.CREATE_TABLE_AS,
    ),
    (lambda df: df.writeTo("c.d").append(), Mode.APPEND, Kind.INSERT),
    (lambda df: df.writeTo("c.d").overwrite(F.col("a") > 1), Mode.OVERWRITE, Kind.INSERT_OVERWRITE),
    (
        lambda df: df.writeTo("c.d").overwritePartitions(),
        Mode.OVERWRITE_PARTITIONS,
        Kind.INSERT_OVERWRITE,
    ),
]


@pytest.mark.parametrize(("program", "mode", "kind"), WRITES)
def test_read_plan_of_a_write_returns_target_and_mode(
    program: Program, mode: Mode, kind: Kind
) -> None:
    reading = read(lambda s: program(s.table("a.b")))
    assert reading.does is Does.WRITES
    assert (reading.mode, reading.kind, reading.target) == (mode, kind, ("c", "d"))
    assert reading.names == {("a", "b")}


def test_read_plan_of_a_write_returns_functions_expressions_and_user_code() -> None:
    reading = read(
        lambda s: (
            s.table("a")
            .select(F.upper("x"), F.expr("rand() + 1"), F.udf(lambda x: x)("x"))
            .writeTo("t")
            .append()
        )
    )
    assert reading.functions == {"upper"}
    assert reading.expressions == ("rand() + 1",)
    assert reading.user_code


@pytest.mark.parametrize(
    ("program", "error_class"),
    [
        (lambda s: s.range(1).write.save("/x"), ErrorClass.PATH),
        (lambda s: s.range(1).write.parquet("/x"), ErrorClass.PATH),
        (lambda s: s.range(1).write.format("delta").option("path", "/x").save(), ErrorClass.PATH),
        (lambda s: s.range(1).write.jdbc("jdbc:x", "t"), ErrorClass.SOURCE),
        (lambda s: s.range(1).write.format("jdbc").saveAsTable("t"), ErrorClass.SOURCE),
        (
            lambda s: s.range(1).write.option("txnAppId", "1").saveAsTable("t"),
            ErrorClass.RESERVED_OPTION,
        ),
        (lambda s: s.range(1).writeTo("t").option("versionAsOf", "1").append(), ErrorClass.OPTION),
        (lambda s: s.read.format("jdbc").load().collect(), ErrorClass.SOURCE),
        (lambda s: s.readStream.table("t").writeStream.toTable("u"), ErrorClass.STREAMING),
        (lambda s: s.range(1).createGlobalTempView("v"), ErrorClass.GLOBAL_TEMPORARY),
        (lambda s: s.range(1).checkpoint(), ErrorClass.CHECKPOINT),
        (
            lambda s: s.range(1).select(F.reflect(F.lit("a"), F.lit("b"))).collect(),
            ErrorClass.UNCLASSIFIED,
        ),
        (lambda s: s.udf.registerJavaFunction("f", "a.B"), ErrorClass.JVM_CODE),
    ],
)
def test_read_plan_that_must_not_run_is_refused_with_a_hint(
    program: Program, error_class: str
) -> None:
    assert refused(read, program) == error_class


def test_expression_cannot_contain_a_relation() -> None:
    assert relations.bearing(protos.expressions.Expression.DESCRIPTOR) == ()


def test_plan_that_is_too_deep_is_refused_before_it_is_parsed() -> None:
    def filtered(steps: int) -> bytes:
        rows = protos.relations.Relation()
        rows.range.end = 1
        for _ in range(steps):
            outer = protos.relations.Relation()
            outer.filter.input.CopyFrom(rows)
            outer.filter.condition.literal.boolean = True
            rows = outer
        plan = protos.base.Plan()
        plan.root.CopyFrom(rows)
        return bytes(plan.SerializeToString())

    steps = parsing.DEPTH_MAX // 2 - 2
    deep = parsing.parse(protos.base.Plan, filtered(steps))
    assert read_plan(deep).does is Does.QUERIES and deep.SerializeToString() == filtered(steps)
    for more in (steps + 1, 1_500):
        error_class = refused(parsing.parse, protos.base.Plan, filtered(more))
        assert error_class == ErrorClass.STATEMENT_TOO_COMPLEX


def test_plan_with_more_columns_than_spark_can_hold_is_refused() -> None:
    def selected(count: int) -> Program:
        return lambda s: (
            s.range(1).select(*[F.col("id")] * count).withColumn("a", F.lit(1)).collect()
        )

    assert read(selected(COLUMNS_MAX - 1)).does is Does.QUERIES
    assert refused(read, selected(COLUMNS_MAX)) == ErrorClass.STATEMENT_TOO_COMPLEX


def test_plan_with_an_unknown_field_is_refused() -> None:
    plan = recorded(lambda s: s.range(1).filter("id > 1").collect())
    inner = plan.root.filter.condition.SerializeToString() + b"\xfa\x7f\x01x"
    condition = protos.expressions.Expression.FromString(inner)
    plan.root.filter.condition.CopyFrom(condition)
    error_class = refused(parsing.parse, protos.base.Plan, plan.SerializeToString())
    assert error_class == ErrorClass.PLAN_UNKNOWN


CATALOG: list[tuple[Program, Does, Kind]] = [
    (lambda c: c.setCurrentDatabase("d"), Does.CHANGES_SESSION, Kind.USE),
    (lambda c: c.setCurrentCatalog("d"), Does.CHANGES_SESSION, Kind.USE),
    (lambda c: c.dropTempView("v"), Does.CHANGES_SESSION, Kind.TEMPORARY_VIEW),
    (lambda c: c.cacheTable("a.b"), Does.HOLDS, Kind.CACHE),
    (lambda c: c.clearCache(), Does.HOLDS, Kind.CACHE),
    (lambda c: c.refreshTable("a.b"), Does.HOLDS, Kind.CACHE),
    (lambda c: c.createTable("a.b", schema=TWO), Does.WRITES, Kind.CREATE_TABLE),
    (lambda c: c.recoverPartitions("a.b"), Does.WRITES, Kind.OTHER_DDL),
    (lambda c: c.dropTable("a.b"), Does.WRITES, Kind.DROP_TABLE),
    (lambda c: c.dropView("a.b"), Does.WRITES, Kind.DROP_VIEW),
    (lambda c: c.createDatabase("a"), Does.WRITES, Kind.CREATE_NAMESPACE),
    (lambda c: c.dropDatabase("a"), Does.WRITES, Kind.DROP_NAMESPACE),
    (lambda c: c.truncateTable("a.b"), Does.WRITES, Kind.TRUNCATE),
    (lambda c: c.analyzeTable("a.b"), Does.WRITES, Kind.ANALYZE),
    (lambda c: c.tableExists("a.b"), Does.QUERIES, Kind.SHOW),
    (lambda c: c.listColumns("a.b"), Does.QUERIES, Kind.SHOW),
]


@pytest.mark.parametrize(("call", "does", "kind"), CATALOG)
def test_read_plan_of_a_catalog_call_returns_its_effect_and_kind(
    call: Program, does: Does, kind: Kind
) -> None:
    reading = read(lambda s: call(s.catalog))
    assert (reading.does, reading.kind) == (does, kind)


def test_read_plan_of_a_catalog_call_below_another_relation_is_refused() -> None:
    plan = recorded(lambda s: s.catalog.dropTable("a.b"))
    nested = protos.base.Plan()
    nested.root.limit.input.CopyFrom(plan.root)
    assert refused(read_plan, nested) == ErrorClass.NESTED_WRITE


def model_command(kind: str) -> Any:
    plan = protos.base.Plan()
    getattr(plan.command.ml_command, kind).SetInParent()
    return plan


def test_read_plan_of_a_models_files_is_refused() -> None:
    for kind in ("read", "write"):
        assert refused(read_plan, model_command(kind)) == ErrorClass.MODEL_FILES


def test_read_plan_that_fits_a_model_holds_it_and_unknown_estimators_are_refused() -> None:
    plan = model_command("fit")
    fit = plan.command.ml_command.fit
    fit.dataset.read.named_table.unparsed_identifier = "t"
    fit.estimator.name = "org.apache.spark.ml.clustering.KMeans"
    reading = read_plan(plan)
    assert (reading.does, reading.names) == (Does.HOLDS, {("t",)})
    for name, error_class in (
        ("other.Estimator", ErrorClass.JVM_CODE),
        ("org.apache.spark.ml.feature.SQLTransformer", ErrorClass.HIDDEN_STATEMENT),
    ):
        fit.estimator.name = name
        assert refused(read_plan, plan) == error_class


def test_read_plan_with_a_model_returns_its_handle() -> None:
    plan = model_command("get_model_size")
    plan.command.ml_command.get_model_size.model_ref.id = "m"
    assert read_plan(plan).handles == {"m"}
    plan = protos.base.Plan()
    plan.root.ml_relation.transform.obj_ref.id = "m"
    plan.root.ml_relation.transform.input.range.end = 1
    assert read_plan(plan).handles == {"m"}
