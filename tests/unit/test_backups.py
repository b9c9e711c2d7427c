"""The parts of a backup: commits, the manifest, and the comparison of files in their order."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.engine import backups
from haproc.engine.backups import Manifest, TableBackup
from haproc.engine.copies import CopyTable, Inventory

TABLE = CopyTable("s", "t", "file:/w/s.db/t", 7, "id-1", 2, 100)
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
METADATA = {"metaData": {"id": "id-1", "schemaString": "{}", "configuration": {}}}
BACKED_UP = TableBackup("s", "t", "id-1@7", "id-2", 3, 2, 100, 5, "5:00:ab")
MANIFEST = Manifest(
    "ring",
    "a",
    "ring.0123",
    12,
    "2026-01-01T00:00:00.000Z",
    Inventory(schemas=({"name": "s"},), views=({"schema": "s", "name": "v"},), tables=(TABLE,)),
    (BACKED_UP,),
)


def add(path: str, vector: str = "", **more: Any) -> dict[str, Any]:
    found = {"path": path, "partitionValues": {}, "size": 10, "dataChange": False, **more}
    return found | ({"deletionVector": {"storageType": "u", "id": vector}} if vector else {})


async def each(adds: Sequence[Mapping[str, Any]]) -> AsyncIterator[Mapping[str, Any]]:
    for one in adds:
        yield one


async def changes(new: Sequence[Any], old: Sequence[Any]) -> list[dict[str, Any]]:
    return [action async for action in backups.changes(each(new), each(old), 5)]


def replayed(adds: Sequence[Any], actions: Sequence[Any]) -> dict[tuple[str, str], Any]:
    """Return the files of a table after a commit, as Delta replays it: by path and vector."""
    found = {key(one): one for one in adds}
    seen = set()
    for action in actions:
        (action_kind, file), *_ = action.items()
        assert (action_kind, key(file)) not in seen
        seen.add((action_kind, key(file)))
        if action_kind == "add":
            found[key(file)] = file
        else:
            assert file["deletionTimestamp"] == 5
            del found[key(file)]
    return found


def key(file: Mapping[str, Any]) -> tuple[str, str]:
    return str(file["path"]), str(file.get("deletionVector", {}).get("id", ""))


FILES = st.dictionaries(
    st.text("ab%/é𝄞", min_size=1, max_size=3),
    st.tuples(st.sampled_from(["", "v", "w"]), st.sampled_from(["1", "2"])),
    max_size=8,
).map(lambda found: [add(p, v, stats=s) for p, (v, s) in sorted(found.items())])


@given(new=FILES, old=FILES)
async def test_changes_of_a_backup_produce_the_files_of_the_table(
    new: list[dict[str, Any]], old: list[dict[str, Any]]
) -> None:
    actions = await changes(new, old)
    found = replayed(old, actions)
    expected = {key(one): {**one, "dataChange": True} for one in new}
    assert {k: {**one, "dataChange": True} for k, one in found.items()} == expected
    assert await changes(new, new) == []


async def test_changed_deletion_vector_removes_the_file_with_the_old_one() -> None:
    removed, added = await changes([add("f", "new")], [add("f", "old")])
    assert removed["remove"]["deletionVector"]["id"] == "old"
    assert added["add"]["deletionVector"]["id"] == "new"


def test_first_backup_of_a_table_starts_with_its_state_under_another_id() -> None:
    lines = backups.backup_lines(TABLE, None, [PROTOCOL, METADATA], [], 12, 5)
    info, protocol, metadata = map(json.loads, lines)
    assert info["commitInfo"]["operation"] == backups.OPERATION
    assert info["commitInfo"]["operationParameters"] == {"source": '"id-1@7"', "offset": "12"}
    assert protocol == PROTOCOL
    assert metadata["metaData"]["id"] == backups.id_of(TABLE) != TABLE.id


def test_later_backup_keeps_its_id_and_removes_domains_that_are_gone() -> None:
    before = [{"domainMetadata": {"domain": "delta.clustering", "configuration": "{}"}}]
    backup = CopyTable("s", "t", "/b/tables/s/t", 3, "id-2", 2, 100)
    lines = backups.backup_lines(TABLE, backup, [PROTOCOL, METADATA], before, 12, 5)
    *_, metadata, domain = map(json.loads, lines)
    assert metadata["metaData"]["id"] == "id-2"
    assert domain["domainMetadata"] == {
        "domain": "delta.clustering",
        "configuration": "",
        "removed": True,
    }


def test_backup_commit_of_a_table_with_in_commit_timestamps_has_one() -> None:
    configuration = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "4",
    }
    metadata = {"metaData": {"id": "id-1", "configuration": configuration}}
    info, metadata_line = map(json.loads, backups.backup_lines(TABLE, None, [metadata], [], 12, 5))
    assert info["commitInfo"]["inCommitTimestamp"] == 5
    assert metadata_line["metaData"]["configuration"] == {"delta.enableInCommitTimestamps": "true"}


def test_manifest_survives_writing_and_reading() -> None:
    assert Manifest.of(MANIFEST.text()) == MANIFEST


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "ring": "r"}'])
def test_manifest_of_another_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Manifest.of(text.encode())


def test_manifests_are_found_among_other_files() -> None:
    names = [backups.manifest_name(12), backups.manifest_name(3), "manifest-4.json", "x"]
    assert backups.manifest_offsets(names) == [3, 12]


def test_differences_list_missing_and_extra_objects_of_a_cluster() -> None:
    assert backups.differences(MANIFEST, MANIFEST.inventory("/b")) == []
    found = Inventory(schemas=({"name": "s"}, {"name": "u"}), tables=(TABLE,))
    assert backups.differences(MANIFEST, found) == [
        "schema u is not in the backup",
        "view s.v is missing",
    ]


def test_files_are_copied_in_batches_of_limited_count_and_size() -> None:
    count = backups.BATCH_FILES + 1
    found = list(backups.batches(add(f"f{n}") for n in range(count)))
    assert [len(paths) for paths in found] == [backups.BATCH_FILES, 1]
    large = [add("f", size=backups.BATCH_BYTES), add("g")]
    assert list(backups.batches(large)) == [["f"], ["g"]]
    assert list(backups.batches([])) == []


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("/mnt/backups", True),
        ("s3a://bucket/backups", True),
        ("file:/mnt/x", True),
        ("backups", False),
        ("/mnt/a b", False),
        ("", False),
        ("/" + "x" * 600, False),
    ],
)
def test_place_of_a_backup_must_be_an_absolute_path_or_url(text: str, good: bool) -> None:
    assert backups.is_place(text) == good
