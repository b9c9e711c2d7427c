"""Properties of pinning over generated statements."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from haproc.classify.classifier import classify
from haproc.classify.model import Classified, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.classify.tokens import TokenKind, tokenize
from haproc.pin.determinism import pin
from haproc.pin.functions import CLOCK, IDENTITY, PLACEMENT, RANDOM
from haproc.pin.model import Moment, Treatment

MOMENT = Moment(datetime(2026, 3, 1, 12, tzinfo=UTC), 1, "UTC", "ann", "spark_catalog", "default")
NOISE = ["", " ", "\n", "/* rand() */", " -- now()\n", "/* a /* uuid() */ b */ "]
INERT = [
    "'rand()'",
    "'it''s now()'",
    "'a\\'uuid()'",
    '"current_date"',
    "r'uuid()'",
    "1",
    "-2.5",
    "NULL",
    "upper('x')",
    "coalesce(NULL, 1)",
    "DATE '2026-01-01'",
]
CALLED = sorted((CLOCK | IDENTITY | RANDOM | PLACEMENT) - {"aes_encrypt"})
ARGUMENTS = {"randstr": "3", "uniform": "1, 5", "shuffle": "array(1, 2)"}

noise = st.sampled_from(NOISE)
inert = st.sampled_from(INERT)
differing = st.sampled_from(CALLED)


@st.composite
def call(draw: st.DrawFn) -> str:
    """A call of a function that differs, spelt in any way Spark takes."""
    name = draw(differing)
    spelt = draw(st.sampled_from([name, name.upper(), name.title(), f"`{name}`"]))
    space = draw(st.sampled_from(["", "", "builtin.", "system.builtin.", "`system`.`builtin` ."]))
    return f"{space}{spelt}{draw(noise)}({draw(noise)}{ARGUMENTS.get(name, '')}{draw(noise)})"


@st.composite
def expression(draw: st.DrawFn, core: st.SearchStrategy[str]) -> str:
    """The core, alone or inside other expressions."""
    text = draw(core)
    for _ in range(draw(st.integers(0, 3))):
        frame = draw(
            st.sampled_from(
                [
                    "coalesce({}, {other})",
                    "({})",
                    "CAST({} AS STRING)",
                    "CASE WHEN {other} IS NULL THEN {} END",
                    "concat({other},{noise}{})",
                    "array({}, {})",
                    "named_struct('a', {})",
                ]
            )
        )
        text = frame.replace("{other}", draw(inert)).replace("{noise}", draw(noise))
        text = text.replace("{}", text if "{}" not in text else draw(core))
    return text


TEMPLATES = [
    "INSERT INTO t VALUES ({other}, {})",
    "INSERT INTO t (a, b) VALUES ({}, {other}), ({other}, {})",
    "INSERT INTO t SELECT {other}, {} FROM s",
    "INSERT INTO t SELECT a FROM s WHERE b = {}",
    "INSERT INTO t WITH c AS (SELECT {} AS x) SELECT x FROM c",
    "WITH c AS (SELECT {} AS x) INSERT INTO t SELECT x FROM c",
    "INSERT OVERWRITE t SELECT a, {} FROM s GROUP BY a HAVING {other} = {}",
    "INSERT INTO t SELECT a FROM s JOIN u ON s.a = {}",
    "INSERT INTO t SELECT a FROM s ORDER BY {}",
    "CREATE TABLE t USING delta AS SELECT {} AS a",
    "CREATE TABLE t (a STRING DEFAULT {}) USING delta",
    "UPDATE t SET a = {} WHERE b = {other}",
    "UPDATE t SET a = {other} WHERE b IN (SELECT {} FROM s)",
    "DELETE FROM t WHERE a = {}",
    "MERGE INTO t USING s ON t.a = {} WHEN MATCHED THEN UPDATE SET a = {other}",
    "MERGE INTO t USING (SELECT {} AS a) s ON t.a = s.a WHEN NOT MATCHED THEN INSERT *",
    "CREATE FUNCTION f() RETURNS STRING RETURN {}",
    "FROM s INSERT INTO t SELECT {} INSERT INTO u SELECT a",
]


@st.composite
def text(draw: st.DrawFn, core: st.SearchStrategy[str]) -> str:
    """A statement around expressions with the core in them."""
    template = draw(st.sampled_from(TEMPLATES))
    filled = template.replace("{other}", draw(inert))
    return f"{filled.replace('{}', draw(expression(core)))} {draw(noise)}"


def statement(sql: str) -> Classified:
    try:
        return classify(sql, Context(), Rules.builtin())
    except RefusedError:
        assume(False)
        raise


@settings(max_examples=400, deadline=None)
@given(text(call()))
def test_pin_statement_with_a_differing_call_is_never_replicated_as_it_is(sql: str) -> None:
    result = pin(statement(sql), MOMENT)
    if result.treatment is Treatment.REPLICATE:
        assert result.replacements
        names = {token.text.strip("`").lower() for token in tokenize(result.sql)}
        assert not names & set(CALLED)
    else:
        assert result.reasons


@settings(max_examples=300, deadline=None)
@given(text(st.one_of(call(), inert, st.sampled_from(["current_date", "'now'::date"]))))
def test_pin_pinned_statement_needs_no_more_pinning(sql: str) -> None:
    once = pin(statement(sql), MOMENT)
    assume(once.treatment is Treatment.REPLICATE)
    again = pin(statement(once.sql), MOMENT)
    assert (again.treatment, again.sql) == (Treatment.REPLICATE, once.sql)
    assert not again.replacements


@settings(max_examples=300, deadline=None)
@given(text(st.one_of(call(), inert)))
def test_pin_leaves_everything_but_its_replacements(sql: str) -> None:
    known = statement(sql)
    result = pin(known, MOMENT)
    position, rebuilt = 0, []
    for part in sorted(result.replacements, key=lambda r: r.start):
        covered = known.sql[part.start : part.end]
        kinds = {token.kind for token in tokenize(covered)}
        assert kinds & {TokenKind.WORD, TokenKind.QUOTED_NAME}
        rebuilt += [known.sql[position : part.start], part.literal]
        position = part.end
    assert "".join([*rebuilt, known.sql[position:]]) == result.sql


@settings(max_examples=300, deadline=None)
@given(text(inert))
def test_pin_statement_without_differing_parts_is_untouched(sql: str) -> None:
    known = statement(sql)
    result = pin(known, MOMENT)
    assert (result.treatment, result.sql) == (Treatment.REPLICATE, known.sql)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60), st.sampled_from(TEMPLATES))
def test_pin_any_text_is_survived(noise_text: str, template: str) -> None:
    known = statement(template.replace("{}", noise_text).replace("{other}", "1"))
    assert pin(known, MOMENT).treatment in Treatment
