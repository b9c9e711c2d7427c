"""Tests of SQLAlchemy's dialect without a ring: its URL, the statements it compiles, its types."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import make_url
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, SetColumnComment

import haclient
from haclient.settings import make_settings
from haclient.sqlalchemy import INTERVAL, MAP, STRUCT, TIMESTAMP_NTZ, TINYINT, VARIANT
from haclient.sqlalchemy.dialect import HAProcDialect, connect_options, section
from haclient.sqlalchemy.types import of_arrow

DIALECT = HAProcDialect()


def compiled(what: Any, **options: Any) -> str:
    return " ".join(str(what.compile(dialect=DIALECT, **options)).split())


def table(*columns: Any, **options: Any) -> sa.Table:
    return sa.Table("t", sa.MetaData(), *columns, **options)


# -- the URL -----------------------------------------------------------------------------------


def options_of(url: str, token: str | None = None) -> dict[str, Any]:
    return connect_options(make_url(url), token)


def test_dialect_is_found_by_its_name() -> None:
    for name in ("haproc", "haproc+haclient"):
        assert isinstance(sa.create_engine(f"{name}://a").dialect, HAProcDialect)


def test_url_lists_hosts_with_one_port() -> None:
    found = options_of("haproc://a,b,c:8080/sales")
    servers = ["http://a:8080", "http://b:8080", "http://c:8080"]
    assert found == {"servers": servers, "schema": "sales"}


def test_url_names_further_hosts_with_their_own_ports() -> None:
    found = options_of("haproc://a:1/s?host=b:2&host=[::1]:3&host=[::2]&host=c")
    servers = ["http://a:1", "http://b:2", "http://[::1]:3", "http://[::2]:1", "http://c:1"]
    assert found["servers"] == servers
    assert options_of("haproc:///s?host=b:2")["servers"] == ["http://b:2"]
    assert len(make_settings(**found).servers) == 5


def test_url_contains_token_user_and_tls() -> None:
    found = options_of("haproc://alice:s%2Fecret@a:8443/?tls=true", "of the environment")
    assert found == {"servers": ["https://a:8443"], "user": "alice", "token": "s/ecret"}


def test_token_of_the_environment_is_used_if_the_url_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HACLIENT_TOKEN", "secret")
    assert DIALECT.create_connect_args(make_url("haproc://a"))[1]["token"] == "secret"


def test_url_contains_the_options_of_connect() -> None:
    found = options_of(
        "haproc://a?timeout_s=20&hedge_after_s=p95&discover=false&catalog=1&silence_s=0.5"
        "&consistency=session"
    )
    found.pop("servers")
    assert found == {
        "timeout_s": 20,
        "hedge_after_s": "p95",
        "discover": False,
        "catalog": "1",
        "silence_s": 0.5,
        "consistency": "session",
    }
    make_settings("http://a", **found)


def test_token_that_looks_like_a_number_is_text() -> None:
    options = options_of("haproc://a:8080?token=0123&user=5&schema=1")
    assert (options["token"], options["user"], options["schema"]) == ("0123", "5", "1")


def test_url_with_an_unknown_option_is_refused() -> None:
    with pytest.raises(haclient.InterfaceError, match="no option nothing"):
        haclient.connect(**options_of("haproc://a?nothing=1"))
    with pytest.raises(exc.ArgumentError, match="timeout_s stands more than once"):
        options_of("haproc://a?timeout_s=1&timeout_s=2")
    with pytest.raises(exc.ArgumentError, match="tls"):
        options_of("haproc://a?tls=1")


# -- definitions -------------------------------------------------------------------------------


def test_table_is_created_as_delta_with_comments() -> None:
    made = table(
        sa.Column("id", sa.BigInteger, primary_key=True, comment="it's \\d"),
        sa.Column("day", sa.Date),
        comment="all of 'em",
        haproc_partitioned_by=["day"],
        schema="sales",
    )
    assert compiled(CreateTable(made)) == (
        "CREATE TABLE sales.t ( id BIGINT NOT NULL COMMENT 'it''s \\\\d', day DATE ) USING delta "
        "PARTITIONED BY (day) COMMENT 'all of ''em'"
    )
    other = table(sa.Column("id", sa.Integer), haproc_using="parquet")
    assert compiled(CreateTable(other)).endswith("USING parquet")


def test_table_is_created_with_the_properties_that_its_columns_need() -> None:
    made = table(sa.Column("order id", sa.Integer), sa.Column("paid", sa.Text, server_default="no"))
    assert compiled(CreateTable(made)) == (
        "CREATE TABLE t ( `order id` INT, paid STRING DEFAULT 'no' ) USING delta TBLPROPERTIES "
        "('delta.feature.allowColumnDefaults' = 'supported', 'delta.columnMapping.mode' = 'name')"
    )


def test_keys_and_indexes_are_omitted_and_unique_constraints_are_refused() -> None:
    metadata = sa.MetaData()
    sa.Table("parent", metadata, sa.Column("id", sa.Integer, primary_key=True))
    key: sa.Column[int] = sa.Column("parent_id", sa.ForeignKey("parent.id"), index=True)
    child = sa.Table("child", metadata, sa.Column("id", sa.Integer, primary_key=True), key)
    made = compiled(CreateTable(child))
    assert made == "CREATE TABLE child ( id INT NOT NULL, parent_id INT ) USING delta"
    (index,) = child.indexes
    assert compiled(CreateIndex(index)) == ""
    for refused in (
        CreateTable(table(sa.Column("a", sa.Integer, unique=True))),
        CreateIndex(sa.Index("i", table(sa.Column("a", sa.Integer)).c.a, unique=True)),
    ):
        with pytest.raises(exc.CompileError, match="keeps nothing unique"):
            compiled(refused)


def test_column_comment_is_changed_by_alter_column() -> None:
    column = table(sa.Column("a b", sa.Integer, comment="new")).c["a b"]
    assert compiled(SetColumnComment(column)) == "ALTER TABLE t ALTER COLUMN `a b` COMMENT 'new'"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (sa.String(), "STRING"),
        (sa.Text(), "STRING"),
        (sa.Unicode(20), "VARCHAR(20)"),
        (sa.CHAR(3), "CHAR(3)"),
        (sa.Enum("aa", "b"), "VARCHAR(2)"),
        (sa.Boolean(), "BOOLEAN"),
        (TINYINT(), "TINYINT"),
        (sa.SmallInteger(), "SMALLINT"),
        (sa.Integer(), "INT"),
        (sa.BigInteger(), "BIGINT"),
        (sa.Float(), "DOUBLE"),
        (sa.Float(53), "DOUBLE"),
        (sa.Float(24), "FLOAT"),
        (sa.REAL(), "FLOAT"),
        (sa.Double(), "DOUBLE"),
        (sa.DOUBLE_PRECISION(), "DOUBLE"),
        (sa.Numeric(), "DECIMAL(38, 18)"),
        (sa.Numeric(12, 3), "DECIMAL(12, 3)"),
        (sa.DECIMAL(12), "DECIMAL(12, 0)"),
        (sa.Date(), "DATE"),
        (sa.DateTime(), "TIMESTAMP_NTZ"),
        (sa.DateTime(timezone=True), "TIMESTAMP"),
        (sa.TIMESTAMP(), "TIMESTAMP"),
        (TIMESTAMP_NTZ(), "TIMESTAMP_NTZ"),
        (sa.Time(), "STRING"),
        (sa.Interval(), "TIMESTAMP_NTZ"),
        (INTERVAL(), "INTERVAL DAY TO SECOND"),
        (INTERVAL("YEAR TO MONTH"), "INTERVAL YEAR TO MONTH"),
        (sa.LargeBinary(), "BINARY"),
        (sa.VARBINARY(10), "BINARY"),
        (sa.ARRAY(sa.String), "ARRAY<STRING>"),
        (sa.ARRAY(sa.Float, dimensions=2), "ARRAY<ARRAY<DOUBLE>>"),
        (MAP(sa.String, sa.ARRAY(sa.Integer)), "MAP<STRING, ARRAY<INT>>"),
        (STRUCT({"a": sa.Integer, "b c": VARIANT}), "STRUCT<a: INT, `b c`: VARIANT>"),
        (VARIANT(), "VARIANT"),
    ],
    ids=str,
)
def test_type_is_written_in_sparks_form(kind: Any, text: str) -> None:
    assert compiled(CreateColumn(sa.Column("c", kind))) == f"c {text}"


# -- statements --------------------------------------------------------------------------------

T = table(sa.Column("id", sa.Integer), sa.Column("name", sa.String), sa.Column("v", VARIANT))


def literally(what: Any) -> str:
    return compiled(what, compile_kwargs={"literal_binds": True})


def test_names_are_quoted_with_backquotes() -> None:
    quoted_table = sa.Table(
        "a`b", sa.MetaData(), sa.Column("select", sa.Integer), schema="my schema"
    )
    found = compiled(sa.select(quoted_table.c.select))
    assert found == "SELECT `my schema`.`a``b`.`select` FROM `my schema`.`a``b`"


def test_limit_and_offset_compile_alone_and_together() -> None:
    assert literally(sa.select(T.c.id).limit(3)).endswith("FROM t LIMIT 3")
    assert literally(sa.select(T.c.id).offset(2)).endswith("FROM t OFFSET 2")
    assert literally(sa.select(T.c.id).limit(3).offset(2)).endswith("FROM t LIMIT 3 OFFSET 2")


def test_literal_text_keeps_its_quotes_and_backslashes() -> None:
    assert literally(sa.select(sa.literal("it's \\d"))) == "SELECT 'it''s \\\\d' AS anon_1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\0\xff", "X'00ff'"),
        (date(2026, 1, 31), "DATE'2026-01-31'"),
        (datetime(2026, 1, 31, 12), "TIMESTAMP_NTZ'2026-01-31 12:00:00'"),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "TIMESTAMP'2026-01-31 12:00:00+00:00'"),
        (True, "true"),
    ],
    ids=str,
)
def test_literal_has_the_type_of_its_value(value: Any, text: str) -> None:
    assert literally(sa.select(sa.literal(value))) == f"SELECT {text} AS anon_1"


def test_literal_of_an_enum_type_keeps_its_backslashes() -> None:
    class End(enum.Enum):
        A = "a\\"

    kind = sa.Enum(End, values_callable=lambda ends: [each.value for each in ends])
    assert literally(sa.select(sa.literal(End.A, kind))) == "SELECT 'a\\\\' AS anon_1"


def test_name_with_a_dollar_is_quoted() -> None:
    assert compiled(sa.select(sa.column("x$y"))) == "SELECT `x$y`"


def test_regular_expression_with_flags_is_refused() -> None:
    with pytest.raises(exc.CompileError, match=r"\(\?i\)"):
        compiled(sa.select(T.c.name.regexp_match("x", flags="i")))


@pytest.mark.parametrize("value", [{"b": b"abc"}, {"s": {1}}])
def test_value_without_a_json_form_is_refused(value: Any) -> None:
    process = VARIANT().bind_processor(DIALECT)
    assert process is not None
    with pytest.raises(TypeError, match=r"JSON has no (bytes|set)"):
        process(value)


def test_many_rows_compile_to_one_insert() -> None:
    insert = sa.insert(T).values([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    assert compiled(insert) == "INSERT INTO t (id, name) VALUES (?, ?), (?, ?)"


def test_variant_and_struct_are_sent_as_json() -> None:
    fields = STRUCT({"a": sa.Integer})
    t = table(sa.Column("v", VARIANT), sa.Column("s", fields))
    assert compiled(t.insert()) == (
        "INSERT INTO t (v, s) VALUES (parse_json(?), CAST(parse_json(?) AS STRUCT<a: INT>))"
    )
    for kind in (VARIANT(), fields):
        process = kind.bind_processor(DIALECT)
        assert process({"a": 1}) == '{"a": 1}'
        assert process(None) is None
    assert VARIANT().result_processor(DIALECT, None)('{"a": [1]}') == {"a": [1]}


@pytest.mark.parametrize("kind", [VARIANT(), STRUCT({"a": sa.Integer}), MAP(sa.Text, sa.Text)])
def test_statement_with_a_type_of_the_dialect_is_cacheable(kind: Any) -> None:
    column: sa.Column[Any] = sa.Column("c", kind)
    assert sa.select(table(column).c.c)._generate_cache_key() is not None


def test_insert_of_a_query_has_its_common_table_expressions_after_insert() -> None:
    named = sa.select(T.c.id).cte("named")
    insert = sa.insert(T).from_select(["id"], sa.select(named.c.id))
    assert compiled(insert).startswith("INSERT INTO t (id) WITH named AS")


def test_empty_list_and_regular_expressions_compile() -> None:
    assert "t.id IN (NULL) AND (1 != 1)" in literally(sa.select(T.c.id).where(T.c.id.in_([])))
    assert DIALECT.statement_compiler(DIALECT, None).visit_empty_set_expr([T.c.id.type]) == (
        "SELECT NULL WHERE 1 != 1"
    )
    assert "t.name RLIKE 'x'" in literally(sa.select(T.c.name.regexp_match("x")))
    assert "t.name NOT RLIKE 'x'" in literally(sa.select(~T.c.name.regexp_match("x")))


# -- types of results --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.bool_(), "BOOLEAN"),
        (pa.int8(), "TINYINT"),
        (pa.int16(), "SMALLINT"),
        (pa.int32(), "INT"),
        (pa.int64(), "BIGINT"),
        (pa.float32(), "FLOAT"),
        (pa.float64(), "DOUBLE"),
        (pa.decimal128(12, 3), "DECIMAL(12, 3)"),
        (pa.string(), "STRING"),
        (pa.binary(), "BINARY"),
        (pa.date32(), "DATE"),
        (pa.timestamp("us", "UTC"), "TIMESTAMP"),
        (pa.timestamp("us"), "TIMESTAMP_NTZ"),
        (pa.duration("us"), "INTERVAL DAY TO SECOND"),
        (pa.list_(pa.list_(pa.int32())), "ARRAY<ARRAY<INT>>"),
        (pa.map_(pa.string(), pa.list_(pa.int32())), "MAP<STRING, ARRAY<INT>>"),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), "STRUCT<a: INT, b: STRING>"),
    ],
    ids=str,
)
def test_type_of_a_result_is_converted_from_arrow(kind: Any, text: str) -> None:
    assert of_arrow(kind).compile(dialect=DIALECT) == text


def test_variant_and_unknown_types_are_distinguished() -> None:
    assert isinstance(of_arrow(pa.string(), is_variant=True), VARIANT)
    assert isinstance(of_arrow(pa.null()), sa.types.NullType)


def test_section_of_describe_ends_at_a_blank_row() -> None:
    rows = [("a", "int", ""), ("", "", ""), ("# H", "", ""), ("x", "1", ""), ("", "", "")]
    assert section([*rows, ("y", "2", "")], "# H") == [("x", "1", "")]
    assert section(rows, "# other") == []
