"""Rules that override the defaults, and the file that they are read from."""

from __future__ import annotations

from pathlib import Path

import pytest

from haproc.classify.classifier import ruled
from haproc.classify.model import (
    Classified,
    Kind,
    OperationClass,
    RefusedError,
    Touched,
    WriteConcern,
)
from haproc.classify.names import Context
from haproc.classify.rules import (
    ASYNCHRONOUS_KINDS,
    DEFAULT_CLASSES,
    QUERY_KINDS,
    SESSION_KINDS,
    SYNCHRONOUS_KINDS,
    Rules,
    RulesError,
    load_rules,
    parse_rules,
)
from tests.readings.classified import classified as of_text

NOTHING = Touched()
UNCLEAR = Touched(known=False)
LEDGER = Touched(frozenset({"spark_catalog.ledger.book"}))
SECRET = Touched(frozenset({"spark_catalog.secret.u"}))
SHIPPED = Path(__file__).parents[2] / "conf" / "rules.yaml"


def classified(rules: str, sql: str, user: str = "", reads: Touched = NOTHING) -> Classified:
    """Classify a statement under these rules; ``reads``: the tables and expressions of its
    reading.
    """
    found = of_text(sql, Context(user=user), parse_rules(f"rules:\n{rules}"))
    return ruled(found, found.touched | reads) if found.rules else found


def refused(rules: str, sql: str, user: str = "", reads: Touched = NOTHING) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        classified(rules, sql, user, reads)
    return caught.value


def test_defaults_cover_each_kind_once() -> None:
    groups = [QUERY_KINDS, SESSION_KINDS, ASYNCHRONOUS_KINDS, SYNCHRONOUS_KINDS]
    assert sum(map(len, groups)) == len(frozenset().union(*groups)) == len(Kind) - 1
    assert set(DEFAULT_CLASSES) == set(Kind) - {Kind.UNKNOWN}


def test_shipped_rules_change_nothing() -> None:
    assert load_rules(SHIPPED) == Rules.builtin()


def test_examples_in_shipped_rules_are_valid() -> None:
    lines = SHIPPED.read_text(encoding="utf-8").splitlines()
    start = lines.index("# rules:")
    example = "\n".join(line[2:] for line in lines[start:] if line.startswith("#"))
    assert len(parse_rules(example).rules) == 6


def test_rule_for_kind_gives_class_and_name() -> None:
    statement = classified(
        "- {name: careful, kind: insert, class: synchronous}", "INSERT INTO t VALUES (1)"
    )
    assert statement.operation_class is OperationClass.SYNCHRONOUS
    assert statement.rule == "careful"
    assert statement.insert is not None


def test_first_matching_rule_decides() -> None:
    rules = """
    - {kind: [update, delete], table: "*.shop.*", class: synchronous}
    - {kind: delete, refuse: nothing is deleted here}
    """
    assert classified(rules, "DELETE FROM shop.t").operation_class is OperationClass.SYNCHRONOUS
    assert refused(rules, "DELETE FROM t").error_class == "HAPROC_REFUSED_BY_RULE"
    assert "nothing is deleted here" in refused(rules, "DELETE FROM t").message
    assert classified(rules, "UPDATE t SET a = 1").rule == "default for update"


def test_rule_for_table_matches_read_tables_too() -> None:
    rules = "- {table: spark_catalog.secret.*, refuse: secret}"
    assert refused(rules, "SELECT * FROM t JOIN v", reads=SECRET).message == "secret"
    assert refused(rules, "INSERT INTO Secret.U VALUES (1)").message == "secret"
    assert classified(rules, "SELECT * FROM t").kind is Kind.SELECT


def test_rule_for_expression_matches_the_expressions_of_the_plan_reading() -> None:
    rules = "- {expression: Py*UDF, refuse: no code}"
    code = Touched(expressions=frozenset({"literal", "pythonudf"}))
    assert refused(rules, "SELECT * FROM t", reads=code).message == "no code"
    assert classified(rules, "SELECT * FROM t").kind is Kind.SELECT
    assert classified(rules, "INSERT INTO t VALUES (1)").insert is not None
    hidden = Touched(expressions=None)
    assert refused(rules, "SELECT * FROM t", reads=hidden).message == "no code"
    both = "- {expression: rand, table: '*.secret.*', kind: select, cache: false}"
    random = Touched(SECRET.tables, expressions=frozenset({"rand"}))
    assert classified(both, "SELECT * FROM t", reads=random).cache is False
    assert classified(both, "SELECT * FROM t", reads=SECRET).cache is None


@pytest.mark.parametrize("code", ["pythonudf", "scalaudf", "scripttransformation"])
def test_refusal_for_table_applies_to_code_that_could_read_its_files(code: str) -> None:
    rules = "- {table: spark_catalog.secret.*, refuse: secret}"
    runs = Touched(LEDGER.tables, expressions=frozenset({code}))
    assert refused(rules, "SELECT f(a) FROM ledger.book", reads=runs).message == "secret"
    allowed = "- {table: spark_catalog.secret.*, cache: true}"
    assert classified(allowed, "SELECT f(a) FROM ledger.book", reads=runs).cache is None


def test_refusal_for_table_applies_to_writes_of_unknown_tables() -> None:
    rules = "- {table: spark_catalog.secret.*, refuse: secret}"
    assert refused(rules, "DROP SCHEMA secret CASCADE").message == "secret"
    assert classified(rules, "SHOW TABLES").kind is Kind.SHOW


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE SCHEMA secret",
        "ALTER SCHEMA secret SET DBPROPERTIES ('a' = 'b')",
        "COMMENT ON SCHEMA secret IS 'x'",
        "DROP FUNCTION f",
    ],
)
def test_refusal_for_table_does_not_apply_to_statements_that_touch_no_table(sql: str) -> None:
    rules = "- {table: spark_catalog.secret.*, refuse: secret}"
    assert not classified(rules, sql).tables_known
    assert refused(rules, "COMMENT ON TABLE secret.t IS 'x'").message == "secret"


@pytest.mark.parametrize("refusing", ["table: '*.secret.*'", "expression: rand"])
def test_refusal_applies_to_unrecognised_statements_unless_an_earlier_rule_allows_them(
    refusing: str,
) -> None:
    refuses, vouches = f"- {{{refusing}, refuse: secret}}", "- {kind: unknown, class: synchronous}"
    call = "CALL sys.rewrite('t')"
    assert refused(f"{refuses}\n{vouches}", call).message == "secret"
    found = classified(f"{vouches}\n{refuses}", call)
    assert found.operation_class is OperationClass.SYNCHRONOUS


def test_rule_for_text_and_user_requires_both() -> None:
    rules = '- {matches: "^drop\\\\s+table", user: "etl-*", class: synchronous_parallel}'
    parallel = OperationClass.SYNCHRONOUS_PARALLEL
    assert classified(rules, "DROP TABLE t", "etl-7").operation_class is parallel
    assert classified(rules, "DROP TABLE t", "bob").rule == "default for drop_table"
    assert classified(rules, "DROP VIEW t", "etl-7").rule == "default for drop_view"


def test_rule_without_kind_does_not_change_queries_and_session_statements() -> None:
    rules = "- {user: bob, class: synchronous}"
    assert classified(rules, "SELECT 1", "bob").operation_class is OperationClass.QUERY
    assert classified(rules, "USE s", "bob").operation_class is OperationClass.SESSION
    assert classified(rules, "DELETE FROM t", "bob").operation_class is OperationClass.SYNCHRONOUS
    assert refused(rules, "CALL sys.rewrite('t')", "bob").error_class == "HAPROC_UNCLASSIFIED"


def test_rule_for_unknown_kind_lets_a_statement_pass_as_barrier() -> None:
    rules = '- {kind: unknown, matches: "^CALL system", class: asynchronous}'
    statement = classified(rules, "CALL system.compact('t')")
    assert (statement.kind, statement.tables_known) == (Kind.UNKNOWN, False)
    assert statement.operation_class is OperationClass.ASYNCHRONOUS
    assert refused(rules, "CALL other.compact('t')").error_class == "HAPROC_UNCLASSIFIED"


def test_rule_that_replicates_a_query_makes_it_a_barrier() -> None:
    statement = classified(
        '- {kind: select, matches: "my_writing_udf", class: synchronous}',
        "SELECT my_writing_udf(a) FROM t",
    )
    assert statement.operation_class is OperationClass.SYNCHRONOUS
    assert not statement.tables_known


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; SELECT 2",
        "BEGIN END",
        "EXECUTE IMMEDIATE 'x'",
        "SET spark.sql.caseSensitive=true",
    ],
)
def test_no_rule_allows_hidden_statements_or_settings_that_change_parsing(sql: str) -> None:
    rules = "- {kind: [unknown, set], refuse: never}\n- {kind: unknown, class: session}"
    assert refused(rules, sql).error_class.startswith("HAPROC_")
    assert refused(rules, sql).error_class != "HAPROC_REFUSED_BY_RULE"


def test_rule_for_write_concern_keeps_the_class() -> None:
    rules = "- {name: at once, table: spark_catalog.ledger.*, write_concern: all}"
    for sql, operation_class in (
        ("INSERT INTO ledger.book VALUES (1)", OperationClass.ASYNCHRONOUS),
        ("DROP TABLE ledger.book", OperationClass.SYNCHRONOUS),
    ):
        statement = classified(rules, sql)
        assert statement.operation_class is operation_class
        assert (statement.write_concern, statement.rule) == (WriteConcern.ALL, "at once")
    assert classified(rules, "INSERT INTO other.t VALUES (1)").write_concern is None
    # a query has no write concern, and a rule without a class lets nothing unknown pass
    assert classified(rules, "SELECT * FROM ledger.book", reads=LEDGER).write_concern is None
    assert (
        refused("- {write_concern: all}", "CALL sys.rewrite('t')").error_class
        == "HAPROC_UNCLASSIFIED"
    )


def test_rule_for_write_concern_applies_to_a_write_that_could_touch_the_table() -> None:
    rules = "- {table: spark_catalog.ledger.*, write_concern: all}"
    statement = classified(rules, "CREATE FUNCTION f() RETURNS INT RETURN 1")
    assert not statement.tables_known
    assert statement.write_concern is WriteConcern.ALL


def test_rule_that_refuses_a_table_refuses_a_query_of_unknown_tables() -> None:
    rules = "- {table: spark_catalog.ledger.*, refuse: nobody reads this}"
    for reads in (LEDGER, UNCLEAR):
        error = refused(rules, "SELECT * FROM x", reads=reads)
        assert error.error_class == "HAPROC_REFUSED_BY_RULE"
    assert classified(rules, "SELECT * FROM x", reads=SECRET).kind is Kind.SELECT
    assert classified(rules, "SHOW TABLES").kind is Kind.SHOW


def test_rule_for_the_cache_applies_to_queries_only() -> None:
    rules = """
    - {name: never, table: spark_catalog.ledger.*, cache: false}
    - {name: dashboards, user: dash, cache: true}
    """
    assert classified(rules, "SELECT * FROM t", "dash").cache is True
    assert classified(rules, "SELECT * FROM t", "ann").cache is None
    assert classified(rules, "SELECT * FROM ledger.book", "dash", LEDGER).cache is False
    for sql in ("INSERT INTO t VALUES (1)", "SHOW TABLES", "DROP TABLE ledger.book"):
        assert classified(rules, sql, "dash").cache is None


def test_rule_against_the_cache_applies_to_a_query_that_could_read_the_table() -> None:
    against = "- {table: spark_catalog.ledger.*, cache: false}"
    sql = "SELECT * FROM t"
    assert classified(against, sql, reads=UNCLEAR).cache is False
    assert classified(against.replace("false", "true"), sql, reads=UNCLEAR).cache is None


def test_rule_may_set_class_and_write_concern() -> None:
    rules = "- {kind: insert, class: synchronous, write_concern: majority}"
    statement = classified(rules, "INSERT INTO t VALUES (1)")
    assert statement.operation_class is OperationClass.SYNCHRONOUS
    assert statement.write_concern is WriteConcern.MAJORITY
    rules = '- {kind: select, matches: "my_udf", class: asynchronous, write_concern: all}'
    assert classified(rules, "SELECT my_udf(a) FROM t").write_concern is WriteConcern.ALL


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("rules: [{write_concern: most}]", "rules[0].write_concern"),
        ("rules: [{write_concern: }]", "rules[0].write_concern"),
        ("rules: [{write_concern: all, refuse: x}]", "rules[0]"),
        ("rules: [{kind: select, write_concern: all}]", "rules[0].write_concern"),
        ("rules: [{kind: [insert, use], write_concern: all}]", "rules[0].write_concern"),
        ("rules: [{kind: unknown, write_concern: all}]", "rules[0].write_concern"),
        ("rules: [{kind: select, class: query, write_concern: one}]", "rules[0].write_concern"),
        ("rules: [{cache: maybe}]", "rules[0].cache"),
        ("rules: [{cache: true, refuse: x}]", "rules[0]"),
        ("rules: [{cache: true, class: synchronous}]", "rules[0]"),
        ("rules: [{kind: [select, insert], cache: true}]", "rules[0].cache"),
        ("- 1", "(file)"),
        ("a: [", "(file)"),
        ("other: 1", "other"),
        ("rules: {a: 1}", "rules"),
        ("rules: []\nrules: []", "rules"),
        ("rules: [1]", "rules[0]"),
        ("rules: [{kind: insert}]", "rules[0]"),
        ("rules: [{kind: insert, class: query, refuse: x}]", "rules[0]"),
        ("rules: [{kind: insert, class: synchronous, kinds: x}]", "rules[0].kinds"),
        ("rules: [{kind: insert, kind: update, class: synchronous}]", "rules[0].kind"),
        ("rules: [{kind: inserts, class: synchronous}]", "rules[0].kind"),
        ("rules: [{kind: [insert, x], class: synchronous}]", "rules[0].kind[1]"),
        ("rules: [{kind: [insert, insert], class: synchronous}]", "rules[0].kind[1]"),
        ("rules: [{kind: [], class: synchronous}]", "rules[0].kind"),
        ("rules: [{kind: insert, class: fast}]", "rules[0].class"),
        ("rules: [{matches: '(', class: synchronous}]", "rules[0].matches"),
        ("rules: [{table: '', class: synchronous}]", "rules[0].table"),
        ("rules: [{user: [a], class: synchronous}]", "rules[0].user"),
        ("rules: [{kind: insert, refuse: ''}]", "rules[0].refuse"),
        ("rules: [{name: a, refuse: x}, {name: a, refuse: y}]", "rules[1].name"),
        ("rules: [{kind: insert, class: query}]", "rules[0].class"),
        ("rules: [{class: query}]", "rules[0].class"),
        ("rules: [{class: session}]", "rules[0].class"),
        ("rules: [{kind: drop_table, class: session}]", "rules[0].class"),
        ("rules: [{kind: [insert, set], class: asynchronous}]", "rules[0].class"),
    ],
)
def test_parse_rules_of_wrong_file_reports_the_key(text: str, path: str) -> None:
    with pytest.raises(RulesError) as caught:
        parse_rules(text)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


def test_load_rules_of_missing_file_raises_and_of_an_empty_file_gives_the_defaults(
    tmp_path: Path,
) -> None:
    with pytest.raises(FileNotFoundError):
        load_rules(tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n", encoding="utf-8")
    assert load_rules(tmp_path / "empty.yaml") == Rules.builtin()
