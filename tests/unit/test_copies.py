"""The parts of a table's copy: its files, and one commit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from haproc.engine.copies import (
    OPERATION,
    Begun,
    CopyFile,
    CopyTable,
    Inventory,
    check_state,
    commit,
    files_of,
    line_of,
    located,
    vector_path,
)
from haproc.engine.errors import EngineError

TABLE = CopyTable("sales", "orders", "file:/w/sales.db/orders", 4, "a5eacab3", 2, 100)
VECTOR = "}33YYA869CZr87uK-@<v"
"""As Delta 4.4 wrote it for the file below."""


def add(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "size": 10, "partitionValues": {}, **more}


def test_deletion_vector_file_is_found_by_its_coded_name() -> None:
    name = "deletion_vector_f905fcea-704e-4cc5-bec9-856591773a86.bin"
    assert vector_path(VECTOR) == name
    assert vector_path("ab" + VECTOR) == f"ab/{name}"


def test_files_of_a_copy_are_data_files_and_deletion_vectors_each_once() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": VECTOR}
    inline = {"storageType": "i", "pathOrInlineDv": "xyz"}
    adds = [
        add("d=1/one.parquet", deletionVector=vector),
        add("two.parquet", deletionVector=vector),
        add("three.parquet", deletionVector=inline),
    ]
    assert files_of(adds) == [
        CopyFile("d=1/one.parquet", 10),
        CopyFile(vector_path(VECTOR), None),
        CopyFile("two.parquet", 10),
        CopyFile("three.parquet", 10),
    ]


@pytest.mark.parametrize(
    "other",
    [
        add("file:/w/sales.db/source/one.parquet"),
        add("one.parquet", deletionVector={"storageType": "p", "pathOrInlineDv": "s3://x/y.bin"}),
    ],
)
def test_files_of_another_table_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="a clone"):
        files_of([other])


def test_state_with_commits_outside_the_table_folder_is_refused() -> None:
    check_state([{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}])
    with pytest.raises(EngineError, match="catalogManaged"):
        check_state([{"protocol": {"writerFeatures": ["appendOnly", "catalogManaged"]}}])


def test_commit_has_the_state_of_the_donor_the_id_of_the_copy_and_the_marker() -> None:
    configuration = {
        "my.key": "1",
        "delta.inCommitTimestampEnablementVersion": "3",
        "delta.enableInCommitTimestamps": "true",
    }
    actions = [
        {"protocol": {"minReaderVersion": 3}},
        {"metaData": {"id": "a5eacab3", "configuration": configuration, "schemaString": "{}"}},
        {"domainMetadata": {"domain": "delta.clustering"}},
    ]
    lines = [json.loads(line) for line in commit(TABLE, "mine", actions, "ring.log", 7, 1234)]
    info, protocol, meta, domain, done = lines
    assert info["commitInfo"]["operation"] == OPERATION
    assert json.loads(info["commitInfo"]["operationParameters"]["source"]) == "a5eacab3@4"
    assert info["commitInfo"]["userMetadata"] == "haproc:ring.log:7"
    assert info["commitInfo"]["inCommitTimestamp"] == 1234
    assert protocol == actions[0] and domain == actions[2]
    assert meta["metaData"]["id"] == "mine"
    assert meta["metaData"]["configuration"] == {
        "my.key": "1",
        "delta.enableInCommitTimestamps": "true",
    }
    assert done == {"txn": {"appId": "ring.log", "version": 7, "lastUpdated": 1234}}
    assert configuration["delta.inCommitTimestampEnablementVersion"] == "3"


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("file:/data/b/sales.db/t", "s3a://bucket-b/sales.db/t"),
        ("file:/data/b/cold/t", "/mnt/cold/t"),  # the longest prefix counts
        ("file:/data/b", "s3a://bucket-b"),
        ("file:/data/bb/t", "file:/data/bb/t"),
        ("/data/b/t", "/data/b/t"),  # of another file system
        ("s3a://lake/x/t", "s3a://copy/x/t"),
        ("s3a://lake2/x/t", "s3a://lake2/x/t"),
        ("hdfs://nn/w/ü %/t", "hdfs://nn/w/ü %/t"),
    ],
)
def test_storage_location_is_found_by_the_longest_prefix(location: str, found: str) -> None:
    prefixes = (
        ("file:///data/b/", "s3a://bucket-b"),
        ("file:/data/b/cold", "/mnt/cold/"),
        ("s3a://lake", "s3a://copy"),
        ("hdfs://nn", "hdfs://other"),
    )
    assert located(location, prefixes) == found


def test_begun_copy_is_kept_for_the_same_state_or_the_same_record() -> None:
    table = replace(TABLE, request=3, marker=7)
    later, other = replace(table, marker=9), replace(table, id="of b", version=1)
    for done in (True, False):
        assert table.is_kept(Begun(table.source, done))
        assert later.is_kept(Begun(table.source, done))  # nothing has changed since
        assert not table.is_kept(Begun(replace(table, request=4).source, done))
        assert not replace(other, marker=9).is_kept(Begun(table.source, done))
        assert not TABLE.is_kept(Begun(replace(TABLE, version=5).source, done))
        assert TABLE.is_kept(Begun(TABLE.source, done))
    # Whole, it is what all clusters hold there; half-made it needs the same files.
    assert other.is_kept(Begun(table.source, done=True))
    assert not other.is_kept(Begun(table.source, done=False))


def test_commit_line_contains_one_newline() -> None:
    assert line_of({"add": {"path": "a\nb", "stats": "ü"}}).count(b"\n") == 1


def test_inventory_survives_json() -> None:
    inventory = Inventory(
        ({"name": "sales", "comment": "", "properties": {}},),
        ({"schema": "sales", "name": "v", "text": "SELECT 1"},),
        (),
        (TABLE,),
        (("sales.raw", "its format is parquet, not delta"),),
    )
    assert msgspec.json.decode(msgspec.json.encode(inventory), type=Inventory) == inventory
