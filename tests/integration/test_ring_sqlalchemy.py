"""Tests of SQLAlchemy on a real ring: reflection, pandas, Superset's calls, a failover."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy import exc, orm

from haclient.sqlalchemy import MAP, STRUCT, TINYINT, VARIANT
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite"), pytest.mark.thorough]


def engine_of(rig: Rig, order: str = "abc", **options: Any) -> sa.Engine:
    """Return an engine with these clusters only, in this order."""
    hosts = [rig.url(name).removeprefix("http://") for name in order]
    query = {"host": hosts, "discover": "false", **options}
    return sa.create_engine(sa.URL.create("haproc", query=query))


@pytest.fixture
def engine(rig: Rig) -> Iterator[sa.Engine]:
    made = engine_of(rig)
    yield made
    made.dispose()


def schema_of(engine: sa.Engine, name: str) -> str:
    """Create an empty schema for a test."""
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        connection.exec_driver_sql(f"CREATE SCHEMA {name}")
    return name


def test_table_is_reflected_as_created_and_its_values_are_read_back_equal(
    rig: Rig, engine: sa.Engine
) -> None:
    schema = schema_of(engine, "sa_types")
    made = sa.Table(
        "all_types",
        sa.MetaData(schema=schema),
        sa.Column("id", sa.BigInteger, nullable=False, comment="it's \\d"),
        sa.Column("tiny", TINYINT),
        sa.Column("flag", sa.Boolean),
        sa.Column("share", sa.Float(24)),
        sa.Column("amount", sa.Numeric(12, 3)),
        sa.Column("weight", sa.Float(53)),
        sa.Column("name", sa.String),
        sa.Column("raw data", sa.LargeBinary),
        sa.Column("day", sa.Date),
        sa.Column("at", sa.DateTime(timezone=True)),
        sa.Column("local", sa.DateTime),
        sa.Column("tags", sa.ARRAY(sa.String)),
        sa.Column("grid", sa.ARRAY(sa.Integer, dimensions=2)),
        sa.Column("counts", MAP(sa.String, sa.Integer)),
        sa.Column("place", STRUCT({"x": sa.Integer, "names": sa.ARRAY(sa.String)})),
        sa.Column("anything", VARIANT),
        comment="all of 'em",
        haproc_partitioned_by=["day"],
    )
    utc = datetime.UTC
    row: dict[str, Any] = {
        "id": 1,
        "tiny": 7,
        "flag": True,
        "share": 0.5,
        "amount": Decimal("12.345"),
        "weight": 1.1,
        "name": "it's \\ ? :x é",
        "raw data": b"\0\xff",
        "day": datetime.date(2026, 1, 31),
        "at": datetime.datetime(2026, 1, 31, 12, tzinfo=utc),
        "local": datetime.datetime(2026, 1, 31, 12, 0, 0, 123456),
        "tags": ["a", "b"],
        "grid": [[1, 2], [3]],
        "counts": {"k": 1},
        "place": {"x": 1, "names": ["n"]},
        "anything": {"deep": [1, "two", None]},
    }
    nothing = {**dict.fromkeys(row), "id": 2, "day": row["day"]}
    with engine.connect() as connection:
        made.create(connection)
        connection.execute(made.insert(), [row, nothing])
        connection.execute(made.insert(), {**row, "id": 3})
        read = sa.select(made).order_by(made.c.id)
        found = [dict(each._mapping) for each in connection.execute(read)]
        assert found == [row, nothing, {**row, "id": 3}]
        assert connection.execute(read.where(made.c.anything.is_not(None)).limit(1)).all()

        reflected = sa.Table("all_types", sa.MetaData(schema=schema), autoload_with=connection)
    assert reflected.comment == made.comment
    dialect = engine.dialect
    for column in made.columns:
        again = reflected.c[column.name]
        assert again.type.compile(dialect) == column.type.compile(dialect)
        assert (again.nullable, again.comment) == (column.nullable, column.comment)
    # `check_equal` hashes, and Spark has no hash of a VARIANT.
    rig.everywhere(
        f"SELECT * EXCEPT (anything), to_json(anything) FROM {schema}.all_types ORDER BY id"
    )


def test_pandas_frame_is_written_in_one_statement_and_read_back(
    rig: Rig, engine: sa.Engine
) -> None:
    schema = schema_of(engine, "sa_pandas")
    count = 2500
    frame = pd.DataFrame(
        {
            "number": range(count),
            "order id": [f"o{n}" for n in range(count)],
            "amount": [n / 4 for n in range(count)],
            "at": pd.date_range("2026-01-01", periods=count, freq="min"),
            "zoned": pd.date_range("2026-01-01", periods=count, freq="min", tz="UTC"),
            "clock": [datetime.time(12, 30)] * count,
            "paid": [True, None] * (count // 2),
        }
    )
    frame.to_sql("frames", engine, schema=schema)
    few = frame.head(20)
    few.to_sql("frames", engine, schema=schema, if_exists="append", method="multi")
    history = rig.run(f"DESCRIBE HISTORY {schema}.frames")
    assert [row[4] for row in history] == ["WRITE", "WRITE", "CREATE TABLE"]

    read = pd.read_sql(
        sa.text(f"SELECT * FROM {schema}.frames WHERE number >= :least ORDER BY ALL"),
        engine,
        params={"least": 20},
        index_col="index",
    )
    assert set(read["clock"]) == {"12:30:00"}  # what a STRING is to a query without types
    read["clock"] = datetime.time(12, 30)
    pd.testing.assert_frame_equal(
        read, frame.tail(count - 20), check_names=False, check_index_type=False, check_dtype=False
    )
    few.to_sql("frames", engine, schema=schema, if_exists="replace", index=False)
    assert len(pd.read_sql_table("frames", engine, schema=schema)) == len(few)
    rig.check_equal(f"{schema}.frames")


def test_superset_calls_return_schemas_tables_views_and_columns(engine: sa.Engine) -> None:
    """The calls of Superset's base engine specification, each on a connection of its own."""
    schema = schema_of(engine, "sa_superset")
    orders = sa.Table("orders", sa.MetaData(schema=schema), sa.Column("id", sa.Integer))
    with engine.connect() as connection:
        orders.create(connection)
        connection.execute(orders.insert(), [{"id": n} for n in range(10)])
        connection.exec_driver_sql(f"CREATE VIEW {schema}.large AS SELECT id FROM {schema}.orders")
    inspector = sa.inspect(engine)
    assert inspector.default_schema_name == "default"
    assert {"default", schema} <= set(inspector.get_schema_names())
    assert inspector.get_table_names(schema) == ["orders"]
    assert inspector.get_view_names(schema) == ["large"]
    assert inspector.get_view_definition("large", schema) == f"SELECT id FROM {schema}.orders"
    assert [each["name"] for each in inspector.get_columns("large", schema)] == ["id"]
    assert inspector.get_indexes("orders", schema) == []
    assert inspector.get_pk_constraint("orders", schema)["constrained_columns"] == []
    assert inspector.get_foreign_keys("orders", schema) == []
    assert inspector.get_table_comment("orders", schema) == {"text": None}
    assert inspector.has_table("orders", schema)
    assert not inspector.has_table("nothing", schema)
    assert not inspector.has_table("orders", "no_schema")
    with pytest.raises(exc.NoSuchTableError):
        inspector.get_columns("nothing", schema)

    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        cursor.execute(f"SELECT * FROM (SELECT id FROM {schema}.orders) AS virtual LIMIT 3")
        assert [each[0] for each in cursor.description or ()] == ["id"]
        assert len(cursor.fetchmany(100)) == 3
        cursor.execute(f"EXPLAIN SELECT * FROM {schema}.orders")
        assert "Physical Plan" in cursor.fetchall()[0][0]
    finally:
        raw.close()


def test_orm_objects_are_inserted_updated_and_deleted(rig: Rig, engine: sa.Engine) -> None:
    schema = schema_of(engine, "sa_orm")

    class Base(orm.DeclarativeBase):
        metadata = sa.MetaData(schema=schema)

    class Order(Base):
        __tablename__ = "orders"
        id: orm.Mapped[int] = orm.mapped_column(primary_key=True, autoincrement=False)
        name: orm.Mapped[str | None] = orm.mapped_column(sa.String(20), index=True)

    Base.metadata.create_all(engine)
    Base.metadata.create_all(engine)  # finds it
    with orm.Session(engine) as session:
        session.add_all([Order(id=n, name=f"n{n}") for n in range(3)])
        session.commit()
        found = session.scalars(sa.select(Order).where(Order.id == 1)).one()
        found.name = "changed"
        session.delete(session.get_one(Order, 2))
        session.commit()
        assert session.execute(
            sa.select(Order.id, Order.name).where(Order.id.in_([0, 1, 2])).order_by(Order.id)
        ).all() == [(0, "n0"), (1, "changed")]
        session.add(Order(id=9))
        session.flush()
        session.rollback()  # undoes nothing
        assert session.scalar(sa.select(sa.func.count()).select_from(Order)) == 3
    rig.check_equal(f"{schema}.orders")


def test_error_of_a_statement_has_haclients_error_class(engine: sa.Engine) -> None:
    with engine.connect() as connection, pytest.raises(exc.ProgrammingError) as raised:
        connection.exec_driver_sql("SELECT * FROM nowhere")
    assert raised.value.orig is not None
    assert getattr(raised.value.orig, "error_class", "") == "TABLE_OR_VIEW_NOT_FOUND"


def test_connection_whose_haproc_is_killed_between_two_statements_fails_over(rig: Rig) -> None:
    table = rig.table()
    engine = engine_of(rig, timeout_s="120")
    with engine.connect() as connection:
        insert = sa.text(f"INSERT INTO {table} VALUES (:id, :name)")
        connection.execute(insert, {"id": 1, "name": "before"})
        rig.ring.kill("a", "haproc")
        rig.gone("a")
        connection.execute(insert, [{"id": 2, "name": "after"}, {"id": 3, "name": "after"}])
        found = connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar()
        assert found in (2, 3), "an answer of another cluster"
    engine.dispose()
    rig.up()
    assert rig.everywhere(f"SELECT id FROM {table} ORDER BY id") == [(1,), (2,), (3,)]
