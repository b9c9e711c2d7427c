"""The differences between clusters that become a ring, and the reasons to refuse it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dmq import MemoryLog, MemoryStore, Record
from haproc.cli.adopt import first_operation, lacking_of, print_report
from haproc.cli.main import main
from haproc.replicate.records.operation import OPERATION
from haproc.ring.adopting import (
    Difference,
    Held,
    Holdings,
    Sort,
    compare,
    definition_of,
    table_of,
)

ROOT = Path(__file__).parents[2]
SCHEMA = Held(Sort.SCHEMA, "default", "{}")
ORDERS = Held(Sort.TABLE, "default.orders", "{}", "id INT", 2, "1f")
VIEW = Held(Sort.VIEW, "default.v", "SELECT 1")


def differences(*found: Held, source: tuple[Held, ...] = (SCHEMA, ORDERS, VIEW)) -> list[Any]:
    """Return the differences of a cluster with these objects from one with those of ``source``."""
    report = compare("a", {"a": Holdings(source), "b": Holdings(found)})
    return [(each.name, each.difference) for each in report.clusters["b"].differing]


def test_equal_clusters_with_an_object_that_cannot_be_copied_are_left_alone() -> None:
    parquet = Held(Sort.TABLE, "default.old", "not Delta", "id INT", 3, "2a")
    alike = Holdings((SCHEMA, ORDERS, parquet), (("default.old", "its format is parquet"),))
    report = compare("a", {"a": alike, "b": replace(alike, things=alike.things[::-1])})
    assert report.copies == report.refusals == []


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        (replace(ORDERS, content="1e"), Difference.ROWS),
        (replace(ORDERS, rows=3), Difference.ROWS),
        (replace(ORDERS, rows=None, content=""), Difference.ROWS),
        (replace(ORDERS, columns="id BIGINT", rows=3), Difference.COLUMNS),
        (replace(ORDERS, definition="{...}"), Difference.DEFINITION),
    ],
)
def test_differing_table_is_listed_with_its_kind_of_difference(
    found: Held, difference: Difference
) -> None:
    assert differences(SCHEMA, VIEW, found) == [("default.orders", difference)]


def test_object_that_only_one_cluster_has_is_listed() -> None:
    more = Held(Sort.FUNCTION, "default.f")
    assert differences(SCHEMA, ORDERS, VIEW, more) == [("default.f", Difference.EXTRA)]
    assert differences(SCHEMA, VIEW) == [("default.orders", Difference.MISSING)]
    table = Held(Sort.TABLE, VIEW.name, "{}", "id INT", 0, "0")
    assert differences(SCHEMA, ORDERS, table) == [
        (VIEW.name, Difference.EXTRA),
        (VIEW.name, Difference.MISSING),
    ]


def test_source_with_an_object_that_cannot_be_copied_is_refused_if_a_copy_is_needed() -> None:
    source = Holdings((SCHEMA, ORDERS), (("default.old", "its format is parquet, not delta"),))
    other = Holdings((SCHEMA,), (("default.mine", "it has a LOCATION"),))
    report = compare("a", {"a": source, "b": other})
    assert report.copies == ["b"]
    (why,) = report.refusals
    assert "a holds default.old" in why and "parquet" in why
    assert compare("b", {"a": source, "b": other}).refusals != []


def test_catalog_that_only_the_copy_has_is_refused() -> None:
    found = {"a": Holdings((SCHEMA,)), "b": Holdings((SCHEMA, Held(Sort.CATALOG, "lake")))}
    (why,) = compare("a", found).refusals
    assert "b has the catalog lake" in why


def sql_function(made: int, body: str = "x + 1", version: str = "2") -> dict[str, Any]:
    """Return a function in the plugin's form: in two pieces, the second one first."""
    text = json.dumps(
        {
            "sqlFunction.expression": body,
            "sqlFunction.createTime": str(made),
            "sqlConfig.spark.databricks.delta.lastCommitVersionInSession": version,
        }
    )
    pieces = [["file", f"001{text[20:]}"], ["file", f"000{text[:20]}"]]
    return {"schema": "default", "name": "f", "class": "sqlFunction.", "resources": pieces}


def test_function_definition_does_not_depend_on_its_creation_time() -> None:
    assert definition_of(sql_function(1)) == definition_of(sql_function(2, version="7"))
    assert definition_of(sql_function(1)) != definition_of(sql_function(1, "x + 2"))


def test_view_definition_does_not_depend_on_its_owner_and_creation_time() -> None:
    def view(text: str = "SELECT 1", **properties: str) -> dict[str, Any]:
        marks = {"view.sqlConfig.spark.databricks.delta.lastCommitVersionInSession": "1"}
        return {"name": "v", "text": text, "properties": {**properties, **marks}}

    ansi = {"view.sqlConfig.spark.sql.ansi.enabled": "false"}
    assert definition_of(view(transient_lastDdlTime="1")) == definition_of(view(owner="ann"))
    assert definition_of(view()) != definition_of(view("SELECT 2"))
    assert definition_of(view()) != definition_of(view(**ansi))


def table(physical: str, comment: str = "", **configuration: str) -> list[dict[str, Any]]:
    """Return the state of a table whose column has another name in the files."""
    metadata = {"delta.columnMapping.physicalName": physical, "comment": comment}
    field = {"name": "id", "type": "integer", "nullable": True, "metadata": metadata}
    meta = {
        "id": physical,
        "createdTime": 1,
        "schemaString": json.dumps({"type": "struct", "fields": [field]}),
        "partitionColumns": [],
        "configuration": {"delta.rowTracking.materializedRowIdColumnName": physical}
        | configuration,
    }
    clustering = {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[["id"]]}'}
    return [{"protocol": {}}, {"metaData": meta}, {"domainMetadata": clustering}]


def test_table_definition_does_not_depend_on_names_that_delta_chose() -> None:
    assert table_of(table("col-1")) == table_of(table("col-2"))


def test_tables_with_other_properties_or_comments_are_different() -> None:
    plain, columns = table_of(table("col"))
    assert table_of(table("col", **{"delta.appendOnly": "true"})) != (plain, columns)
    assert table_of(table("col", **{"delta.columnMapping.mode": "id"})) != (plain, columns)
    assert table_of(table("col", comment="of the shop")) != (plain, columns)
    assert table_of(table("col")[:2])[0] != plain


def test_cluster_that_will_become_a_copy_need_not_serve() -> None:
    report = compare("a", {name: Holdings((ORDERS,) if name != "b" else ()) for name in "abc"})
    copying = {"a": {"state": "READY"}, "b": {"state": "COPYING"}, "c": {"state": "READ_ONLY"}}
    assert lacking_of(report, copying) == []
    assert lacking_of(report, {**copying, "b": {"state": "-", "error": "no answer"}}) == ["b"]
    assert lacking_of(report, {**copying, "c": {"state": "RECOVERING"}}) == ["c"]


async def test_first_operation_of_a_log_without_operations_is_none() -> None:
    log = MemoryLog(MemoryStore())
    assert await first_operation(log) is None
    await log.append([Record("claim", "a"), Record("copy", "b")])
    assert await first_operation(log) is None
    await log.append([Record("claim", "a"), Record(OPERATION, "x")])
    assert await first_operation(log) == 3
    await log.trim(4)
    assert await first_operation(log) == 0


def test_adopt_report_lists_the_objects_that_would_be_lost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {
        "a": Holdings((SCHEMA, ORDERS)),
        "b": Holdings((SCHEMA, Held(Sort.TABLE, "default.mine", rows=7))),
        "c": Holdings((SCHEMA, ORDERS)),
    }
    print_report(compare("a", found))
    output = capsys.readouterr().out
    assert "What only b has is lost: default.mine." in output
    rows = [line.split() for line in output.splitlines()]
    assert ["b", "table", "default.mine", "only", "there", "7,", "source", "-"] in rows
    assert ["b", "table", "default.orders", "missing", "-,", "source", "2"] in rows
    assert ["c", "1", "0", "0", "2", "equal:", "is", "not", "touched"] in rows


def test_adopt_report_in_json_lists_each_difference() -> None:
    report_json: Any = compare("a", {"a": Holdings((ORDERS,)), "b": Holdings()}).json()
    b = report_json["clusters"]["b"]
    assert (report_json["source"], report_json["refusals"], b["becomes_copy"], b["rows"]) == (
        "a",
        [],
        True,
        0,
    )
    assert b["differing"] == [
        {
            "sort": "table",
            "name": "default.orders",
            "difference": "missing",
            "rows": None,
            "source_rows": 2,
        }
    ]


def test_wrong_arguments_of_ring_adopt_are_refused_before_any_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAPROC_SECRET", "s" * 32)
    monkeypatch.setenv("HAPROC_SPARK_TOKEN", "t" * 32)
    words = ["ring", "adopt", "--config", str(ROOT / "conf" / "ring.local.yaml"), "--json"]
    assert main([*words, "--from", "nobody"]) == 2
    assert "no cluster 'nobody'" in capsys.readouterr().err
    assert main([*words, "--from", "a"]) == 2
    assert "--json goes with --dry-run" in capsys.readouterr().err
