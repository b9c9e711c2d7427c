"""Copies of tables over Spark Connect, by calls of HAProc's plugin."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from dmq import Json
from haproc import protos, wire
from haproc.classify.names import OWN_SCHEMAS
from haproc.engine.copies import (
    FILES_AT_ONCE,
    OPERATION,
    Begun,
    CopyTable,
    Inventory,
    Place,
    catalog_name,
    check_state,
    files_of,
)
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.remote import RemoteSession
from haproc.engine.statement import plugin_plan
from haproc.engine.table import CATALOG_CONFS, all_rows, catalogs

_COPY: Final = "haproc/copy"
_PUT: Final = "haproc/put"
_Packed: Final = type(protos.relations.Relation().extension)
_TIMEOUT_S: Final = 600.0
_TRANSFER_TIMEOUT_S: Final = 3600.0
"""The time limit of one transfer of `haproc.engine.backups.BATCH_BYTES`, or of one larger file.
Chosen."""
_SOURCE: Final = "haproc.copy"
"""The name of a table property: an empty table that becomes a copy has its `CopyTable.source`
there."""
_OUTSIDE_TABLE: Final = "path LIKE '%:%' OR deletionVector.storageType = 'p'"
"""A condition for files that may lie outside of their table, as those of a clone do."""


class SparkCopies:
    """Implements Copies over Spark Connect.

    ``ask`` makes a call that depends on no session's state.
    """

    def __init__(
        self, ask: Callable[[Callable[[RemoteSession], Awaitable[Any]]], Awaitable[Any]]
    ) -> None:
        self._ask = ask

    async def inventory(self) -> Inventory:
        """Return all objects that the cluster holds now."""
        confs = await self._ask(lambda own: own.confs_below(CATALOG_CONFS))
        answer = await self._json({"do": "inventory"})
        tables = [CopyTable(**each) for each in answer["tables"]]
        names = [each for each in catalogs(confs) if each != "spark_catalog"]
        others = [(f"{o['schema']}.{o['name']}".rstrip("."), o["why"]) for o in answer["others"]]
        others += [(name, "it is a catalog of its own") for name in names]
        return Inventory(
            tuple(s for s in answer["schemas"] if s["name"] not in OWN_SCHEMAS),
            tuple(v for v in answer["views"] if v["schema"] not in OWN_SCHEMAS),
            tuple(f for f in answer["functions"] if f["schema"] not in OWN_SCHEMAS),
            tuple(each for each in tables if each.schema not in OWN_SCHEMAS),
            tuple(each for each in others if each[0].split(".")[0] not in OWN_SCHEMAS),
        )

    async def state(self, table: CopyTable) -> Sequence[Json]:
        """Return Delta's actions that make up the table's state, without those that name files."""
        answer = await self._json(_at("state", table))
        actions = answer["actions"]
        ids = [each["metaData"]["id"] for each in actions if "metaData" in each]
        if ids != [table.id]:
            raise EngineError(
                ErrorKind.APPLICATION,
                f"{table.schema}.{table.name} is another table by now",
                error_class="TABLE_REPLACED",
            )
        check_state(actions)
        return list(actions)

    async def check(self, table: CopyTable) -> None:
        """Raise EngineError, of class NOT_COPIED, if the table cannot be copied."""
        await self.state(table)
        files_of(await self._files(table, _OUTSIDE_TABLE))

    async def files(self, table: CopyTable, after: str) -> Sequence[Json]:
        """Return the next ``add`` actions (one for each file) of a table, in the order of paths."""
        behind = after.replace("\\", "\\\\").replace("'", "\\'")
        return await self._files(table, f"path > '{behind}'")

    async def _files(self, table: CopyTable, condition: str) -> list[dict[str, Any]]:
        """Return the first FILES_AT_ONCE ``add`` actions that meet a condition, in path order.

        ``condition``: in SQL.
        """
        plan = protos.base.Plan()
        limit = plan.root.limit
        limit.limit = FILES_AT_ONCE
        sort = limit.input.sort
        sort.is_global = True
        order = sort.order.add()
        order.child.unresolved_attribute.unparsed_identifier = "path"
        order.direction = protos.expressions.Expression.SortOrder.SORT_DIRECTION_ASCENDING
        project = sort.input.project
        text = "to_json(struct(*), map('ignoreNullFields', 'false')) AS file"
        for expression in ("path", text):
            project.expressions.add().expression_string.expression = expression
        where = project.input.filter
        where.condition.expression_string.expression = condition
        asked = plugin_plan(_COPY, json.dumps(_at("files", table)).encode())
        where.input.CopyFrom(asked.root)
        rows = await self._rows(plan)
        return [_tidy(json.loads(row["file"])) for row in rows]

    async def table(self, schema: str, name: str, location: str) -> CopyTable | None:
        """Return the Delta table in a folder, even if no catalog has it; None if there is none."""
        answer = await self._json({"do": "table", "location": location})
        return CopyTable(schema, name, **answer) if answer else None

    async def names(self, location: str) -> Mapping[str, int]:
        """Return the names and sizes of the files directly in a folder."""
        answer: Mapping[str, int] = await self._json(
            {"do": "list", "location": location, "flat": True}
        )
        return answer

    async def transfer(self, source: str, target: str, paths: Sequence[str]) -> tuple[int, int]:
        """Copy files between folders; return the number of missing files, and their bytes."""
        asked: dict[str, Json] = {"from": source, "to": target, "paths": [*paths]}
        answer = await self._json({"do": "transfer", **asked}, _TRANSFER_TIMEOUT_S)
        return int(answer["files"]), int(answer["bytes"])

    async def read_file_part(
        self, location: str, path: str, offset: int, length: int
    ) -> tuple[int, bytes]:
        """Return a file's size, and ``length`` of its bytes from ``offset`` on."""
        asked: dict[str, Json] = {"do": "read", "location": location, "path": path}
        plan = plugin_plan(
            _COPY, json.dumps({**asked, "offset": offset, "length": length}).encode()
        )
        rows = await self._rows(plan)
        size, *parts = (bytes(*row.values()) for row in rows)
        return int(size), b"".join(parts)

    async def begun(self, tables: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Begun]:
        """Return the copies that earlier attempts began, by schema and name of the table."""
        found = {}
        for key in tables:
            try:
                detail = (await self._rows(f"DESCRIBE DETAIL {catalog_name(*key)}"))[0]
                newest = (await self._rows(f"DESCRIBE HISTORY {catalog_name(*key)} LIMIT 1"))[0]
            except EngineError as error:
                if error.kind is not ErrorKind.APPLICATION:
                    raise
                continue
            source = dict(detail.get("properties") or {}).get(_SOURCE)
            if newest["operation"] == OPERATION:
                found[key] = Begun(dict(newest["operationParameters"])["source"].strip('"'), True)
            elif source is not None and newest["version"] == 0:
                found[key] = Begun(source, False)
        return found

    async def clear(
        self, keep: Iterable[tuple[str, str]], only: Collection[tuple[str, str]] | None = None
    ) -> None:
        """Drop everything on the cluster, or ``only`` these tables; never what is in ``keep``."""
        if only is not None:
            for key in set(only) - set(keep):
                await self._rows(f"DROP TABLE IF EXISTS {catalog_name(*key)}")
            return
        kept, there = frozenset(keep), await self._json({"do": "inventory"})
        schemas = {schema for schema, _ in kept} | {"default"}
        for each in there["schemas"]:
            if each["name"] not in schemas | OWN_SCHEMAS:
                await self._rows(f"DROP SCHEMA IF EXISTS {catalog_name(each['name'])} CASCADE")
        for sort in ("view", "function", "table", "other"):
            for each in there[f"{sort}s"]:
                schema, name = each["schema"], each["name"]
                if schema not in schemas or not name or (schema, name) in kept:
                    continue
                what = "TABLE" if sort == "other" else sort.upper()
                await self._rows(f"DROP {what} IF EXISTS {catalog_name(schema, name)}")

    async def define(self, what: str, definition: Mapping[str, Json]) -> None:
        """Create a schema, view or function; ``what``: ``schema``, ``view`` or ``function``."""
        await self._json({"do": "define", what: dict(definition)})

    async def begin(self, table: CopyTable) -> Place:
        """Create an empty table for a copy, or find the one that was created before."""
        name = catalog_name(*table.key)
        await self._rows(
            f"CREATE TABLE IF NOT EXISTS {name} (haproc_copy INT) USING delta "
            f"TBLPROPERTIES ('{_SOURCE}' = '{table.source}')"
        )
        detail = (await self._rows(f"DESCRIBE DETAIL {name}"))[0]
        location = str(detail["location"])
        sizes = await self._json({"do": "list", "location": location})
        return Place(location, str(detail["id"]), sizes)

    async def put(self, location: str, path: str, offset: int, data: bytes, *, last: bool) -> int:
        """Write bytes of a file; return its size so far."""
        header = {"location": location, "path": path, "offset": offset, "last": last}
        head = json.dumps(header).encode()
        # In pieces: each nested message, and its bytes, would be one more copy of the data.
        asked = wire.within(_Packed(type_url=_PUT), "value", [len(head).to_bytes(4), head, data])
        asked = wire.within(protos.relations.Relation(), "extension", asked)
        plan = wire.within(protos.base.Plan(), "root", asked)
        rows = await self._rows(plan)
        return int(json.loads(str(*rows[0].values()))["size"])

    async def _json(self, asked: Mapping[str, Json], timeout_s: float = _TIMEOUT_S) -> Any:
        rows = await self._rows(plugin_plan(_COPY, json.dumps(asked).encode()), timeout_s)
        return json.loads(str(*rows[0].values()))

    async def _rows(self, query: Any, timeout_s: float = _TIMEOUT_S) -> list[dict[str, Any]]:
        """Return the rows of a query, given as SQL text or as a plan."""
        found: list[dict[str, Any]] = await self._ask(lambda own: all_rows(own, query, timeout_s))
        return found


def _at(do: str, table: CopyTable) -> dict[str, Json]:
    return {"do": do, "location": table.location, "version": table.version}


def _tidy(add: dict[str, Any]) -> dict[str, Any]:
    """Return an ``add`` action without unset fields; partition values may be null."""
    vector = add.get("deletionVector")
    if vector is not None:
        add["deletionVector"] = {k: v for k, v in vector.items() if v is not None}
    return {key: value for key, value in add.items() if value is not None}
