"""Tests of SQLAlchemy's dialect against servers that answer like HAProcs: the requests it sends."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import URL

import haclient
from haclient.sqlalchemy.dialect import HAProcDialect
from tests.unit.haclient_rig import servers
from tests.unit.haclient_server import Server, answering, failing

__all__ = ["servers"]

SCHEMA = answering(pa.table({"current_schema()": ["default"]}))


@pytest.fixture
def engine(servers: list[Server]) -> Iterator[sa.Engine]:
    hosts = [server.url.removeprefix("http://") for server in servers]
    servers[0].script.append(SCHEMA)
    made = sa.create_engine(URL.create("haproc", password="s", query={"host": hosts}))
    servers[0].token = "s"
    yield made
    made.dispose()


T = sa.Table(
    "t", sa.MetaData(), sa.Column("id", sa.Integer, index=True), sa.Column("name", sa.String)
)


def sent(server: Server) -> list[str]:
    """Return the statements after the query of the schema, which each engine sends once."""
    first, *rest = [" ".join(each["statement"].split()) for each in server.seen]
    assert first == "SELECT current_schema()"
    return rest


def test_many_parameter_sets_of_an_insert_are_one_statement(
    engine: sa.Engine, servers: list[Server]
) -> None:
    with engine.begin() as connection:
        connection.execution_options(preserve_rowcount=True)
        done = connection.execute(T.insert(), [{"id": n, "name": None} for n in range(20)])
        assert done.rowcount == 20
    assert sent(servers[0]) == ["INSERT INTO t (id, name) VALUES (?, ?)"]
    assert len(servers[0].seen[1]["parameter_rows"]) == 20


@pytest.mark.parametrize("method", [None, "multi"])
def test_pandas_writes_with_one_statement(
    engine: sa.Engine, servers: list[Server], method: str | None
) -> None:
    missing = failing(422, "application", "TABLE_OR_VIEW_NOT_FOUND", "42P01")
    with engine.connect() as connection:
        servers[0].script += [missing, answering(None)]
        pd.DataFrame({"id": range(5)}).to_sql("t", connection, method=method)
    described, created, inserted, *others = sent(servers[0])
    assert described == "DESCRIBE TABLE EXTENDED `t`"
    assert created == "CREATE TABLE t ( index BIGINT, id BIGINT ) USING delta"
    assert inserted.startswith("INSERT INTO t (index, id) VALUES (?, ?)")
    assert not any(each.startswith(("INSERT", "CREATE")) for each in others)


def test_row_with_the_count_of_an_update_is_no_result(
    engine: sa.Engine, servers: list[Server]
) -> None:
    """Delta answers UPDATE and DELETE with a row that contains the number of rows."""
    count = answering(pa.table({"num_affected_rows": [3]}), {"affected_rows": 3})
    with engine.connect() as connection:
        for statement in (T.update().values(name="x"), T.delete()):
            servers[0].script.append(count)
            done = connection.execute(statement)
            assert (done.rowcount, done.returns_rows) == (3, False)


def test_index_is_not_sent_and_a_rollback_undoes_nothing(
    engine: sa.Engine, servers: list[Server]
) -> None:
    with engine.connect() as connection:
        T.create(connection, checkfirst=False)
        connection.rollback()
        connection.execute(T.insert(), {"id": 1})
        connection.commit()
        for index in T.indexes:
            index.drop(connection, checkfirst=False)
    assert sent(servers[0]) == [
        "CREATE TABLE t ( id INT, name STRING ) USING delta",
        "INSERT INTO t (id) VALUES (?)",
    ]


def test_connection_continues_at_the_next_server(engine: sa.Engine, servers: list[Server]) -> None:
    servers[1].token = "s"
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
        servers[0].stop()
        assert connection.exec_driver_sql("SELECT 2").scalar() == 1
    assert [each["statement"] for each in servers[1].seen] == ["SELECT 2"]


def test_isolation_level_other_than_autocommit_is_refused(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert connection.get_isolation_level() == "AUTOCOMMIT"
        connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(exc.ArgumentError, match="AUTOCOMMIT"):
            connection.execution_options(isolation_level="SERIALIZABLE")


def test_connection_is_invalidated_only_by_a_closed_session(
    engine: sa.Engine, servers: list[Server]
) -> None:
    for error_class, gone in (("HAPROC_SESSION_CLOSED", True), ("TABLE_OR_VIEW_NOT_FOUND", False)):
        with engine.connect() as connection:
            servers[0].script.append(failing(422, "application", error_class))
            with pytest.raises(exc.DBAPIError) as raised:
                connection.exec_driver_sql("SELECT 1")
            assert raised.value.connection_invalidated is gone
            assert isinstance(raised.value.orig, haclient.Error)


def test_missing_table_differs_from_other_errors(engine: sa.Engine, servers: list[Server]) -> None:
    servers[0].script.append(failing(422, "application", "SCHEMA_NOT_FOUND"))
    inspector = sa.inspect(engine)
    assert not inspector.has_table("t", "nowhere")
    servers[0].script.append(failing(422, "application", "INSUFFICIENT_PERMISSIONS"))
    with pytest.raises(exc.DBAPIError, match="INSUFFICIENT_PERMISSIONS"):
        inspector.has_table("t", "other")


def test_temporary_views_are_not_listed_in_a_schema(
    engine: sa.Engine, servers: list[Server]
) -> None:
    def shown(*rows: tuple[str, str, bool]) -> pa.Table:
        namespaces, names, temporary = zip(*rows, strict=True)
        return pa.table({"namespace": namespaces, "name": names, "isTemporary": temporary})

    views = shown(("s", "v", False), ("", "mine", True))
    servers[0].script += [
        answering(views),
        answering(shown(("s", "t", False), ("s", "v", False), ("", "mine", True))),
    ]
    inspector = sa.inspect(engine)
    assert inspector.get_table_names("s") == ["t"]
    assert inspector.get_view_names("s") == ["v"]
    servers[0].script.append(answering(views))
    assert inspector.get_temp_view_names() == ["mine"]


def test_dialect_imports_haclient() -> None:
    assert HAProcDialect.import_dbapi() is haclient
