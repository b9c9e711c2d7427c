"""What a judged statement is in the log: its text, or its query and what takes the rows."""

from __future__ import annotations

from typing import Any, Final

from haproc import protos, wire
from haproc.classify.model import Kind
from haproc.classify.tokens import TokenKind, tokenize
from haproc.engine.placeholder import placeholder
from haproc.engine.statement import SparkPlan, SqlText
from haproc.pin.model import Treatment
from haproc.pin.sqltypes import quote_name
from haproc.reading.cut import Cut
from haproc.reading.judge import Judged
from haproc.replicate.records.rows import ComputedPlan, Confs, QueryWrite, SessionRef, Write
from haproc.route.plan_questions import text_over, text_question, with_text

_ROWS: Final = "haproc_rows"
_NAMES: Final = frozenset({TokenKind.WORD, TokenKind.QUOTED_NAME})


def as_written(
    judged: Judged, ref: SessionRef | None, frames: Any = None, confs: Confs = ()
) -> Write:
    """Return what goes into the log.

    ``ref``: the client's session, of which ``judged`` says whether it counts. ``frames``: the plan
    of a text with the DataFrames that it reads. ``confs``: that session's own settings.
    """
    if judged.treatment is not Treatment.MATERIALISE:
        return SqlText(judged.sql) if frames is None else SparkPlan(with_text(frames, judged.sql))
    cut, rests = judged.cut, ref if judged.of_session else None
    assert cut is not None
    if judged.kind is Kind.MERGE:
        return ComputedPlan(
            _query(source_query(cut), frames), _merge(cut, placeholder()), rests, confs
        )
    head = cut.head.rstrip() + "\n"
    if frames is None:
        return QueryWrite(head + cut.query, len(head), judged.of_session, rests, confs)
    return ComputedPlan(_query(cut.query, frames), text_over(head, placeholder()), rests, confs)


def source_query(cut: Cut) -> str:
    """Return the query that gives the rows of a MERGE's source, and its columns."""
    return f"SELECT * FROM ({cut.query}\n)"


def merge_over(cut: Cut, relation: Any) -> tuple[str, SparkPlan]:
    """Return a MERGE over a relation in place of its source: the text, and a plan to be read."""
    plan = protos.base.Plan()
    merge = wire.parsed(protos.base.Plan, _merge(cut, relation))
    plan.root.CopyFrom(merge.command.sql_command.input)
    return plan.root.with_relations.root.sql.query, SparkPlan(plan.SerializeToString())


def _merge(cut: Cut, relation: Any) -> bytes:
    name = _free_name(cut.head + cut.tail)
    plan = protos.base.Plan()
    statement = plan.command.sql_command.input.with_relations
    called = f" AS {quote_name(cut.alias)}" if cut.alias else ""
    # Line breaks, because a piece may end in a comment.
    source = f"(SELECT * FROM {name}){called}"
    statement.root.sql.query = f"{cut.head}\n{source}\n{cut.tail}"
    reference = statement.references.add().subquery_alias
    reference.alias = name
    reference.input.CopyFrom(relation)
    return bytes(plan.SerializeToString())


def _query(text: str, frames: Any) -> bytes:
    if frames is None:
        relation = protos.relations.Relation()
        relation.sql.query = text
        return bytes(relation.SerializeToString())
    plan = wire.parsed(protos.base.Plan, text_question(frames, text, rows=True))
    return bytes(plan.root.SerializeToString())


def _free_name(text: str) -> str:
    """Return a name that the text does not hold: a temporary view hides tables of its name."""
    words = {t.text.lower().strip("`") for t in tokenize(text) if t.kind in _NAMES}
    name = _ROWS
    while name in words:
        name += "_"
    return name
