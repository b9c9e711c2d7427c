"""Tests of the delivery of results at the statements door: in chunks, by links, truncated, kept,
spilled."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from haproc.classify.model import OperationClass
from haproc.config.sections import Limits, User
from haproc.doors.apps import REGISTRY
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column
from tests.unit.canned import ONE, Canned, chunks_of
from tests.unit.door_rig import STATEMENTS, door, until

NUMBERS = [pa.table({"n": pa.array(range(i * 100, i * 100 + 100), pa.int64())}) for i in range(3)]


@pytest.mark.parametrize("format", ["JSON_ARRAY", "ARROW_STREAM"])
async def test_inline_result_is_delivered_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr("haproc.statements.store.CHUNK_BYTES", 1)
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(statement="MANY", request_id="r", format=format)
        manifest = answer["manifest"]
        assert (manifest["total_chunk_count"], manifest["total_row_count"]) == (3, 300)
        assert [c["row_offset"] for c in manifest["chunks"]] == [0, 100, 200]
        assert manifest["schema"]["columns"][0]["type_text"] == "bigint"
        result, values = answer["result"], []
        while True:
            values += read_chunk(result, format)
            link = result.get("next_chunk_internal_link")
            if link is None:
                break
            result = await rig.get(link)
        assert values == list(range(300))
        await rig.get(f"{STATEMENTS}/r/result/chunks/3", 404)
        await rig.get(f"{STATEMENTS}/r/result/chunks/x", 404)


def read_chunk(result: dict[str, Any], format: str) -> list[int]:
    if format == "JSON_ARRAY":
        return [int(row[0]) for row in result["data_array"]]
    data = base64.b64decode(result["attachment"])
    return list(pa.ipc.open_stream(data).read_all()["n"].to_pylist())


@pytest.mark.parametrize("format", ["JSON_ARRAY", "ARROW_STREAM"])
async def test_small_chunks_of_a_result_are_combined(tmp_path: Path, format: str) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(statement="MANY", format=format)
        assert answer["manifest"]["total_chunk_count"] == 1
        assert read_chunk(answer["result"], format) == list(range(300))


@pytest.mark.parametrize("format", ["JSON_ARRAY", "ARROW_STREAM"])
async def test_external_links_of_a_result_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setattr("haproc.statements.store.CHUNK_BYTES", 1)
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(statement="MANY", format=format, disposition="EXTERNAL_LINKS")
        values: list[int] = []
        links = answer["result"]["external_links"]
        for link in links:
            async with rig.http.get(link["external_link"]) as response:
                assert response.status == 200
                data = await response.read()
                assert len(data) == link["byte_count"]
                if format == "JSON_ARRAY":
                    values += [int(row[0]) for row in await response.json()]
                else:
                    values += pa.ipc.open_stream(data).read_all()["n"].to_pylist()
            assert link["expiration"].endswith("Z")
        assert values == list(range(300)) and len(links) == 3
        one = await rig.get(f"{STATEMENTS}/{answer['statement_id']}/result/chunks/1")
        assert one["external_links"][0]["chunk_index"] == 1
        wrong = links[0]["external_link"].rsplit("/", 2)[0] + "/" + "x" * 32 + "/0"
        async with rig.http.get(wrong) as response:
            assert response.status == 404


@pytest.mark.parametrize(
    ("limit", "rows", "truncated"),
    [
        ({"row_limit": 150}, 150, True),
        ({"row_limit": 300}, 300, False),
        ({"row_limit": 100}, 100, True),
        ({"row_limit": 1}, 1, True),
        ({"row_limit": 5000}, 300, False),
        ({"byte_limit": 1}, 0, True),
        ({"byte_limit": 100}, 12, True),
        ({"byte_limit": 10_000_000}, 300, False),
    ],
)
async def test_result_is_truncated_at_the_limits(
    tmp_path: Path, limit: dict[str, int], rows: int, truncated: bool
) -> None:
    async with door(tmp_path) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(statement="MANY", **limit)
        assert answer["manifest"]["truncated"] is truncated
        assert read_chunk(answer["result"], "JSON_ARRAY") == list(range(rows))
        assert all(stream.closed.is_set() for stream in rig.service.streams)


async def test_too_large_inline_result_is_refused_with_a_hint(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(inline_bytes_max=100)) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        answer = await rig.post(413, statement="MANY")
        assert answer["error_class"] == "HAPROC_RESULT_TOO_LARGE"
        assert "EXTERNAL_LINKS" in answer["hint"]
        assert rig.service.streams[0].closed.is_set()
        linked = await rig.post(statement="MANY", disposition="EXTERNAL_LINKS")
        assert linked["status"]["state"] == "SUCCEEDED"


async def test_result_that_breaks_off_is_a_failure(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        lost = EngineError(ErrorKind.AVAILABILITY, "connection lost")
        rig.service.table["MANY"] = Canned([*chunks_of(*NUMBERS), lost])
        answer = await rig.post(503, statement="MANY")
        assert (answer["kind"], answer["outcome"]) == ("availability", "NOT_SENT")
        rig.service.table["W"] = Canned([lost], OperationClass.ASYNCHRONOUS)
        assert (await rig.post(503, statement="W", request_id="r"))["outcome"] == "UNKNOWN"
        wrong = EngineError(ErrorKind.APPLICATION, "1/0", error_class="DIVIDE_BY_ZERO")
        rig.service.table["MANY"] = Canned([*chunks_of(*NUMBERS), wrong])
        failed = await rig.post(statement="MANY")
        assert failed["status"]["error"]["error_class"] == "DIVIDE_BY_ZERO"


async def test_link_to_a_result_needs_no_token_and_opens_nothing_else(tmp_path: Path) -> None:
    async with door(tmp_path, users=(User("ann", "ann-token"), User("bob", "bob-token"))) as rig:
        body = {"statement": "SELECT 1", "disposition": "EXTERNAL_LINKS"}
        headers = {"Authorization": "Bearer ann-token"}
        _, answer = await rig.ask("post", STATEMENTS, json=body, headers=headers)
        link = answer["result"]["external_links"][0]["external_link"]
        for shown in ({}, {"Authorization": "Bearer bob-token"}):
            async with rig.http.get(link, headers=shown) as response:
                assert (response.status, await response.json()) == (200, [["1"]])
        guessed = link.rsplit("/", 2)[0] + "/guessed/0"
        for other, status in ((guessed, 404), (rig.url + STATEMENTS + "/x", 401)):
            async with rig.http.get(other) as response:
                assert response.status == status


async def test_kept_results_expire(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(results_kept_s=0.2)) as rig:
        linked = await rig.post(statement="SELECT 1", request_id="r1", disposition="EXTERNAL_LINKS")
        store = rig.app[REGISTRY].store
        assert store.bytes_used > 0
        await until(lambda: store.bytes_used == 0)
        await rig.get(f"{STATEMENTS}/r1", 404)
        async with rig.http.get(linked["result"]["external_links"][0]["external_link"]) as expired:
            assert expired.status == 404


async def test_kept_results_are_limited_and_fetched_ones_are_dropped_first(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(results_kept_bytes_max=20_000)) as rig:
        data = pa.table({"s": ["x" * 6000]})
        rig.service.table["BIG"] = Canned(chunks_of(data))
        links = {"disposition": "EXTERNAL_LINKS"}
        for name in ("one", "two"):
            await rig.post(statement="BIG", request_id=name, **links)
        full = await rig.post(503, statement="BIG", request_id="three", **links)
        assert full["error_class"] == "HAPROC_RESULTS_FULL"
        assert (await rig.post(statement="INSERT"))["status"]["state"] == "SUCCEEDED"
        link = (await rig.get(f"{STATEMENTS}/one"))["result"]["external_links"][0]
        async with rig.http.get(link["external_link"]) as response:
            assert response.status == 200
        await rig.post(statement="BIG", request_id="three", **links)
        await rig.get(f"{STATEMENTS}/one", 404)
        await rig.get(f"{STATEMENTS}/two", 200)


async def test_kept_results_spill_to_files_that_are_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results" / "a"
    folder.mkdir(parents=True)
    (folder / "left-behind").write_text("by an earlier process")
    async with door(tmp_path) as rig:
        assert not list(folder.parent.rglob("*behind"))
        monkeypatch.setattr(rig.app[REGISTRY].store, "_memory_bytes_max", 10)
        monkeypatch.setattr("haproc.statements.store.CHUNK_BYTES", 1)
        rig.service.table["MANY"] = Canned(chunks_of(*NUMBERS))
        await rig.post(statement="MANY", request_id="r")
        assert len(list(folder.iterdir())) == 1
        values: list[int] = []
        for index in range(3):
            result = await rig.get(f"{STATEMENTS}/r/result/chunks/{index}")
            values += read_chunk(result, "JSON_ARRAY")
        assert values == list(range(300))
    assert not folder.exists()


async def test_manifest_types_have_the_names_of_databricks(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        columns = (Column("d", "decimal(10,2)", False), Column("i", "interval day to second"))
        rig.service.table["T"] = Canned(ONE.chunks, columns=columns)
        described = (await rig.post(statement="T"))["manifest"]["schema"]["columns"]
        assert described[0] == {
            "name": "d",
            "type_name": "DECIMAL",
            "type_text": "decimal(10,2)",
            "type_precision": 10,
            "type_scale": 2,
            "position": 0,
            "nullable": False,
        }
        assert described[1]["type_interval_type"] == "DAY TO SECOND"
