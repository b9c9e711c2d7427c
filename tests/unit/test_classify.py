"""Classification of statements: the table in statements.txt, and what must hold for all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from haproc.classify.classifier import classify
from haproc.classify.model import Classified, Kind, OperationClass, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import QUERY_KINDS, Rules
from haproc.classify.tokens import TokenKind, tokenize
from tests.unit.statement_table import Expected, accepted, statements

RULES = Rules.builtin()
ACCEPTED = accepted()


def classified(sql: str, override: OperationClass | None = None) -> Classified:
    return classify(sql, Context(), RULES, override)


def outcome(sql: str) -> tuple[object, ...]:
    """What must stay the same when only the way of writing changes."""
    statement = classified(sql)
    return (
        statement.kind,
        statement.operation_class,
        statement.writes,
        statement.tables_known,
    )


def refused(sql: str, override: OperationClass | None = None) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        classified(sql, override)
    return caught.value


def test_table_of_statements_is_large_enough() -> None:
    assert len(statements()) >= 250
    assert {Kind(expected.kind) for expected in ACCEPTED} >= set(Kind) - {Kind.ROWS, Kind.UNKNOWN}


@pytest.mark.parametrize("expected", statements(), ids=lambda expected: expected.sql[:60])
def test_classify_of_statement_in_table_gives_its_line(expected: Expected) -> None:
    if expected.kind == "unread":
        assert classified(expected.sql)
        return
    if expected.error_class:
        error = refused(expected.sql)
        assert error.error_class == expected.error_class
        assert error.message and error.hint
        return
    statement = classified(expected.sql)
    assert (statement.kind, statement.operation_class) == (expected.kind, expected.operation_class)
    assert statement.writes == expected.writes
    assert statement.tables_known or not expected.tables_known
    assert not statement.reads
    assert statement.rule == f"default for {expected.kind}"


def test_classify_with_other_context_completes_names_from_it() -> None:
    context = Context(catalog="Main", schema="Odd.Name", user="bob")
    for name, full in (("t", "main.`odd.name`.t"), ("s.u", "main.s.u"), ("c.s.v", "c.s.v")):
        assert classify(f"DELETE FROM {name}", context, RULES).writes == {full}


def test_classify_strips_semicolon_and_outer_comments() -> None:
    assert classified("/* a */ SELECT /* b */ 1 ; ; -- c").sql == "SELECT /* b */ 1"
    assert classified(" -- x\n INSERT INTO t VALUES (1) /* y */ ; ").sql == (
        "INSERT INTO t VALUES (1)"
    )


def test_classify_of_variable_reference_refuses_unless_escaped() -> None:
    assert refused("INSERT INTO t VALUES ('${x}')").error_class == "HAPROC_VARIABLE"
    assert classified("INSERT INTO t VALUES ('$\\{x}', '$x', '${', '{}')").kind is Kind.INSERT


@pytest.mark.parametrize("override", list(OperationClass))
@pytest.mark.parametrize("expected", ACCEPTED[::7], ids=lambda expected: expected.sql[:40])
def test_override_never_hides_a_write_nor_moves_a_session(
    expected: Expected, override: OperationClass
) -> None:
    default = OperationClass(expected.operation_class)
    replicated = {
        OperationClass.ASYNCHRONOUS,
        OperationClass.SYNCHRONOUS,
        OperationClass.SYNCHRONOUS_PARALLEL,
    }
    if override is default or {override, default} <= replicated:
        assert classified(expected.sql, override).operation_class is override
    else:
        assert refused(expected.sql, override).error_class == "HAPROC_OVERRIDE_REFUSED"


def test_override_is_named_as_the_rule() -> None:
    statement = classified("DROP TABLE t", OperationClass.SYNCHRONOUS_PARALLEL)
    assert statement.rule == "the request, over default for drop_table"


GAPS = st.sampled_from([" ", "\n", "\t", " /* x */ ", " -- y ' ; \n", "/**/", " /* ' /* ` */ */ "])
ANY_ACCEPTED = st.sampled_from(ACCEPTED)


@given(ANY_ACCEPTED, st.data())
def test_classify_of_same_tokens_spaced_otherwise_is_the_same(
    expected: Expected, data: st.DataObject
) -> None:
    assume(expected.kind not in ("set", "reset"))
    tokens = list(tokenize(expected.sql))
    written = tokens[0].text
    for before, token in pairwise(tokens):
        written += data.draw(GAPS) if token.start > before.end else ""
        written += token.text
    assert outcome(written + data.draw(GAPS)) == outcome(expected.sql)


@given(ANY_ACCEPTED, st.data())
def test_classify_of_same_words_in_other_case_is_the_same(
    expected: Expected, data: st.DataObject
) -> None:
    written = expected.sql
    for token in tokenize(expected.sql):
        if token.kind is TokenKind.WORD:
            text = data.draw(st.sampled_from([str.upper, str.lower, str.title]))(token.text)
            written = written[: token.start] + text + written[token.end :]
    assert outcome(written) == outcome(expected.sql)


@given(ANY_ACCEPTED)
def test_classify_of_quoted_table_names_is_the_same(expected: Expected) -> None:
    assume(expected.kind not in ("set", "reset", "describe"))
    names = {table.rsplit(".", 1)[-1] for table in expected.writes}
    written = expected.sql
    tokens = list(tokenize(expected.sql))
    for index, token in reversed(list(enumerate(tokens))):
        called = index + 1 < len(tokens) and tokens[index + 1].is_symbol("(")
        if token.kind is TokenKind.WORD and token.text in names and not called:
            written = f"{written[: token.start]}`{token.text}`{written[token.end :]}"
    assert outcome(written) == outcome(expected.sql)


HARMLESS = st.text(max_size=25).filter(lambda text: "${" not in text and "\0" not in text)


@given(HARMLESS, HARMLESS)
def test_classify_of_text_in_strings_and_comments_does_not_depend_on_it(
    text: str, comment: str
) -> None:
    string = text.replace("\\", "\\\\").replace("'", "\\'")
    comment = comment.replace("*", "").replace("/", "").replace("+", "")
    for before, after in (
        ("SELECT a FROM t WHERE b = ", ""),
        ("INSERT INTO u SELECT a FROM t WHERE b = ", " AND c IN (SELECT c FROM v)"),
        ("INSERT INTO t VALUES (", ", 1)"),
        ("DELETE FROM t WHERE a = ", ""),
    ):
        plain = outcome(f"{before}'x'{after}")
        assert outcome(f"{before}'{string}'{after}") == plain
        assert outcome(f"{before} /*{comment}*/ 'x'{after}") == plain


@given(
    st.text(min_size=1, max_size=15).filter(
        lambda text: not any(part in text for part in ("${", "/", "\0"))
    )
)
def test_classify_of_quoted_name_is_that_name_whatever_it_holds(name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    statement = classified(f"INSERT INTO s.{quoted} SELECT * FROM u")
    assert statement.kind is Kind.INSERT
    assert len(statement.writes) == 1
    assert next(iter(statement.writes)).startswith("spark_catalog.s.")


WORDS = """SELECT FROM WHERE INSERT INTO OVERWRITE UPDATE DELETE MERGE USING ON WHEN MATCHED THEN
SET VALUES TABLE VIEW CREATE OR REPLACE TEMPORARY DROP ALTER RENAME TO WITH AS a b t u ( ( ( ) ) )
, , . ; * 1 'x' `q` = UNION ALL JOIN LATERAL EXPLAIN DESCRIBE HISTORY SHOW CACHE CLEAR IDENTIFIER
|> => : PARTITION BY NAME IF NOT EXISTS DIRECTORY TRUNCATE OPTIMIZE VACUUM ANALYZE CALL EXECUTE
IMMEDIATE BEGIN END DECLARE VARIABLE USE CATALOG RESET TIME ZONE COMMENT GRANT RESTORE MSCK
REPAIR REFRESH CONVERT DELTA GENERATE FOR COPY LIKE CLONE SHALLOW RECURSIVE MAX LIMIT WINDOW
GROUP ? :p -- /* */ /*+ ' " ` $$ COLUMNS LIST JAR"""
SOUP = st.lists(st.sampled_from(WORDS.split()), max_size=16).map(" ".join)
WRITING_VERBS = ("INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE", "DROP", "CREATE", "ALTER")


@given(SOUP)
def test_classify_of_token_soup_refuses_or_answers(sql: str) -> None:
    try:
        classified(sql)
    except RefusedError as error:
        assert error.error_class.startswith("HAPROC_")


@given(st.sampled_from(WRITING_VERBS), SOUP, st.sampled_from(["", "WITH a AS (SELECT 1) "]))
def test_classify_of_writing_verb_is_never_a_query(verb: str, soup: str, with_clause: str) -> None:
    try:
        statement = classified(f"{with_clause}{verb} {soup}")
    except RefusedError:
        return
    assert statement.kind not in QUERY_KINDS
    assert statement.operation_class is not OperationClass.QUERY


@pytest.mark.parametrize("before", ["FROM u", "FROM (SELECT 1) u", "WITH a AS (SELECT 1) FROM u"])
@pytest.mark.parametrize("insert", ["INSERT INTO t", "INSERT OVERWRITE t", "INSERT INTO TABLE t"])
def test_classify_of_insert_behind_from_is_a_write(before: str, insert: str) -> None:
    assert classified(f"{before} {insert} SELECT *").writes == {"spark_catalog.default.t"}


@pytest.mark.parametrize("expected", ACCEPTED, ids=lambda expected: expected.sql[:40])
def test_explain_of_any_statement_is_a_query(expected: Expected) -> None:
    statement = classified(f"EXPLAIN EXTENDED {expected.sql}")
    assert (statement.kind, statement.operation_class) == (Kind.EXPLAIN, OperationClass.QUERY)


def test_write_in_a_schema_of_haprocs_own_is_refused() -> None:
    with pytest.raises(RefusedError, match="HAProc's own"):
        classify("INSERT INTO t VALUES (1)", Context(schema="haproc_staging"), RULES)


def test_value_that_is_called_like_a_schema_of_haprocs_own_may_be_inserted() -> None:
    assert classified("INSERT INTO t VALUES ('haproc_staging')").insert is not None


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("selec 1", ("selec begins no statement", "did you mean SELECT?")),
        ("updaet t SET a = 1", ("did you mean UPDATE?",)),
        ("EXECUTE IMMEDIATE 'SELECT ?' USING 'x'", ("EXECUTE hides the statements",)),
        ("SET spark.sql.defaultCatalog = c", ("write USE catalog.schema",)),
    ],
)
def test_refusal_says_what_would_help(sql: str, words: tuple[str, ...]) -> None:
    try:
        told = str(classify(sql, Context(), Rules.builtin()))
    except RefusedError as error:
        told = str(error)
    for part in words:
        assert part in told
    assert "kind: unknown" not in told
