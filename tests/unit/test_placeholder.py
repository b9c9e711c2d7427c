"""Plans with a placeholder: its place, its filling, and the relation around it."""

from __future__ import annotations

from typing import Any

import pytest

from haproc import protos
from haproc.engine.placeholder import (
    PLACEHOLDER,
    placeholder,
    plan_of_query,
    plan_with_rows,
    restored,
    rests_on_handles,
    sql_with_rows,
    with_rows,
    with_table,
)

VARCHAR = '{"__CHAR_VARCHAR_TYPE_STRING":"varchar(3)"}'
Kind = protos.data_types.DataType


def schema(*columns: tuple[str, Any]) -> bytes:
    found = Kind()
    for name, kind in columns:
        found.struct.fields.add(name=name, nullable=False).data_type.CopyFrom(kind)
    return bytes(found.SerializeToString())


def long() -> Any:
    kind = Kind()
    kind.long.SetInParent()
    return kind


def varchar() -> bytes:
    found = Kind()
    field = found.struct.fields.add(
        name="v", metadata='{"__CHAR_VARCHAR_TYPE_STRING":"varchar(3)"}'
    )
    field.data_type.string.SetInParent()
    return bytes(found.SerializeToString())


def parsed(plan: bytes) -> Any:
    return protos.base.Plan.FromString(plan)


def test_sql_with_rows_reads_them_under_the_column_names_of_its_query() -> None:
    plan = parsed(
        sql_with_rows("INSERT INTO t (a) -- so", schema(("a `b`", long()), ("c", long())))
    )
    statement = plan.root.with_relations
    assert statement.root.sql.query == (
        "INSERT INTO t (a) -- so\nSELECT c1 AS `a ``b```, c2 AS `c` FROM haproc_rows"
    )
    assert [each.subquery_alias.alias for each in statement.references] == ["haproc_rows"]


@pytest.mark.parametrize("name", ["haproc_rows", "`haproc_rows`", "s.HAPROC_ROWS"])
def test_sql_with_rows_uses_a_name_that_hides_no_table_of_the_statement(name: str) -> None:
    statement = parsed(sql_with_rows(f"INSERT INTO {name} ", schema(("a", long())))).root
    assert statement.with_relations.references[0].subquery_alias.alias == "haproc_rows_"


def test_with_rows_replaces_the_placeholder_inside_a_plan() -> None:
    plan = parsed(with_rows(sql_with_rows("INSERT INTO t ", schema(("a", long()))), b"rows"))
    source = plan.root.with_relations.references[0].subquery_alias.input.project.input.to_df
    assert source.input.local_relation.data == b"rows"
    assert list(source.column_names) == ["c1"]
    assert PLACEHOLDER.encode() not in plan.SerializeToString()


def test_with_table_reads_the_table_in_place_of_the_rows() -> None:
    template = protos.base.Plan()
    template.command.write_operation_v2.table_name = "t"
    template.command.write_operation_v2.input.CopyFrom(placeholder())
    found = plan_with_rows(template.SerializeToString(), schema(("a", long())))
    plan = parsed(with_table(found, "s.r"))
    project = plan.command.write_operation_v2.input.project
    assert project.input.to_df.input.read.named_table.unparsed_identifier == "s.r"
    assert project.expressions[0].alias.name == ["a"]


def test_query_that_reads_a_checkpoint_rests_on_a_handle() -> None:
    relation = protos.relations.Relation()
    relation.limit.input.cached_remote_relation.relation_id = "x"
    assert rests_on_handles(relation.SerializeToString())
    assert not rests_on_handles(placeholder().SerializeToString())
    assert parsed(plan_of_query(relation.SerializeToString())).root == relation


def test_with_rows_of_a_plan_without_a_placeholder_raises_an_error() -> None:
    plan = protos.base.Plan()
    plan.root.sql.query = "SELECT 1"
    with pytest.raises(ValueError, match="not enough values"):
        with_rows(plan.SerializeToString(), b"rows")


def test_restored_columns_keep_the_metadata_of_char_and_varchar() -> None:
    alias = restored(varchar(), ["v"]).project.expressions[0].alias
    assert alias.metadata == VARCHAR


def test_restored_types_allow_nulls_at_any_depth() -> None:
    inner = Kind()
    inner.struct.fields.add(name="x", nullable=False).data_type.CopyFrom(long())
    kind = Kind()
    kind.map.key_type.CopyFrom(long())
    kind.map.value_type.array.element_type.CopyFrom(inner)
    cast = restored(schema(("m", kind)), ["m"]).project.expressions[0].alias.expr.cast
    found = cast.type.map
    assert found.value_contains_null and found.value_type.array.contains_null
    assert found.value_type.array.element_type.struct.fields[0].nullable
