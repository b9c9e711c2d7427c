"""Classification of statements: the table in statements.txt, and properties that hold for all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.classify.classifier import Unparsed, classify, gives_rows
from haproc.classify.model import Classified, Kind, OperationClass, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.classify.tokens import LexicalError, TokenKind, tokenize
from haproc.failure import ErrorClass
from tests.readings.classified import classified as of_text
from tests.readings.classified import parsed_as
from tests.unit.statement_table import Expected, accepted, statements

RULES = Rules.builtin()
ACCEPTED = accepted()


def classified(sql: str, override: OperationClass | None = None) -> Classified:
    return of_text(sql, Context(), RULES, override)


def kind(sql: str) -> Kind | None:
    """Return the kind that a text's words show, however it is written; None if they show none."""
    found = classify(sql, Context(), RULES)
    return None if isinstance(found, Unparsed) else found.kind


def refused(sql: str, override: OperationClass | None = None) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        classified(sql, override)
    return caught.value


def test_table_of_statements_is_large_and_covers_every_kind() -> None:
    assert len(statements()) >= 250
    assert {Kind(expected.kind) for expected in ACCEPTED} >= set(Kind) - {Kind.ROWS, Kind.UNKNOWN}


@pytest.mark.parametrize("expected", statements(), ids=lambda expected: expected.sql[:60])
def test_classify_of_statement_in_table_matches_its_line(expected: Expected) -> None:
    if expected.kind == "unread":
        assert classified(expected.sql)
        return
    if expected.error_class == "-":  # Spark's parser refuses it
        with pytest.raises(LookupError):
            classified(expected.sql)
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
        assert of_text(f"INSERT INTO {name} VALUES (1)", context, RULES).writes == {full}
    assert parsed_as("TRUNCATE TABLE t", context).writes == {"main.`odd.name`.t"}


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
def test_override_never_hides_a_write_nor_changes_a_session_statement(
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


def test_override_is_reported_as_the_rule() -> None:
    statement = classified("DROP TABLE t", OperationClass.SYNCHRONOUS_PARALLEL)
    assert statement.rule == "the request, over default for drop_table"


QUERIES = [each for each in ACCEPTED if each.operation_class == "query"]
GAPS = st.sampled_from([" ", "\n", "\t", " /* x */ ", " -- y ' ; \n", "/**/", " /* ' /* ` */ */ "])
ANY_QUERY = st.sampled_from(QUERIES)


@given(ANY_QUERY, st.data())
def test_classify_of_a_query_does_not_depend_on_its_spacing(
    expected: Expected, data: st.DataObject
) -> None:
    tokens = list(tokenize(expected.sql))
    written = tokens[0].text
    for before, token in pairwise(tokens):
        written += data.draw(GAPS) if token.start > before.end else ""
        written += token.text
    assert kind(written + data.draw(GAPS)) == kind(expected.sql)


@given(ANY_QUERY, st.data())
def test_classify_of_a_query_does_not_depend_on_its_case(
    expected: Expected, data: st.DataObject
) -> None:
    written = expected.sql
    for token in tokenize(expected.sql):
        if token.kind is TokenKind.WORD:
            text = data.draw(st.sampled_from([str.upper, str.lower, str.title]))(token.text)
            written = written[: token.start] + text + written[token.end :]
    assert kind(written) == kind(expected.sql)


HARMLESS = st.text(max_size=25).filter(lambda text: "${" not in text and "\0" not in text)


@given(HARMLESS, HARMLESS)
def test_classify_does_not_depend_on_the_content_of_strings_and_comments(
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
        plain = kind(f"{before}'x'{after}")
        assert kind(f"{before}'{string}'{after}") == plain
        if "VALUES" not in before:  # with comments among them they are left to Spark
            assert kind(f"{before} /*{comment}*/ 'x'{after}") == plain


@given(
    st.text(min_size=1, max_size=15).filter(
        lambda text: not any(part in text for part in ("${", "/", "\0"))
    )
)
def test_classify_of_quoted_name_uses_it_as_the_table_name(name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    (table,) = classified(f"INSERT INTO s.{quoted} VALUES (1)").writes
    assert table.startswith("spark_catalog.s.")


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
def test_classify_of_random_tokens_refuses_or_answers(sql: str) -> None:
    try:
        classify(sql, Context(), RULES)
    except RefusedError as error:
        assert error.error_class.startswith("HAPROC_")


@given(st.sampled_from(WRITING_VERBS), SOUP, st.sampled_from(["", "WITH a AS (SELECT 1) "]))
def test_classify_of_writing_verb_leaves_the_statement_to_spark(
    verb: str, soup: str, with_clause: str
) -> None:
    """After WITH, verbs other than INSERT, UPDATE, DELETE and MERGE may pass as a query: Spark
    refuses.
    """
    sql = f"{with_clause}{verb} {soup}"
    try:
        found = classify(sql, Context(), RULES)
    except RefusedError as error:
        assert error.error_class == (
            ErrorClass.SYNTAX if is_unclosed(sql) else ErrorClass.MULTIPLE_STATEMENTS
        )
        assert is_unclosed(sql) or ";" in soup.rstrip("; ")
        return
    by_spark = with_clause and verb not in ("INSERT", "UPDATE", "DELETE", "MERGE")
    assert isinstance(found, Unparsed) or found.insert is not None or by_spark


def is_unclosed(sql: str) -> bool:
    """True if a string, a quoted name or a comment does not end."""
    try:
        list(tokenize(sql))
    except LexicalError:
        return True
    return False


@pytest.mark.parametrize("before", ["FROM u", "FROM (SELECT 1) u", "WITH a AS (SELECT 1) FROM u"])
@pytest.mark.parametrize("insert", ["INSERT INTO t", "INSERT OVERWRITE t", "INSERT INTO TABLE t"])
def test_classify_of_insert_after_from_is_no_query(before: str, insert: str) -> None:
    assert kind(f"{before} {insert} SELECT *") is None


@pytest.mark.parametrize("expected", ACCEPTED, ids=lambda expected: expected.sql[:40])
def test_explain_of_any_statement_is_a_query(expected: Expected) -> None:
    assert kind(f"EXPLAIN EXTENDED {expected.sql}") is Kind.EXPLAIN


def test_write_in_a_schema_of_haproc_is_refused() -> None:
    with pytest.raises(RefusedError, match="HAProc's own"):
        classify("INSERT INTO t VALUES (1)", Context(schema="haproc_staging"), RULES)


def test_value_named_like_a_schema_of_haproc_may_be_inserted() -> None:
    assert classified("INSERT INTO t VALUES ('haproc_staging')").insert is not None


@pytest.mark.parametrize(
    ("sql", "gives"),
    [
        ("SELECT update FROM t", True),
        ("(SELECT delete FROM t)", True),
        ("SELECT 1", True),
        ("SHOW TABLES", False),
        ("LIST JARS", False),
    ],
)
def test_query_gives_rows_for_any_names_of_its_columns(sql: str, gives: bool) -> None:
    assert gives_rows(classify(sql, Context(), RULES)) is gives
