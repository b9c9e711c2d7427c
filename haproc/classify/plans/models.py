"""Models of ``pyspark.ml``: what one server's session keeps, and whoever asks for it.

A model is gone with the server that fitted it. What reads or writes one as files is refused, and so
is whatever runs a text or a class that only its parameters name.
"""

from __future__ import annotations

from typing import Any, Final

from haproc.classify.model import Kind, RefusedError
from haproc.classify.plans import refusals
from haproc.classify.plans.members import members
from haproc.classify.plans.reading import Does, PlanFindings, PlanReading
from haproc.failure import ErrorClass

HOLDING: Final = members(
    """
    fit fetch delete evaluate clean_cache get_cache_info create_summary get_model_size
    """
)
FILES: Final = members("write read")
_OWN: Final = "org.apache.spark.ml."
_RUNS_SQL: Final = "SQLTransformer"


def read_relation(message: Any, found: PlanFindings) -> None:
    """Take a model's relation: what it transforms stands below it."""
    kind = message.WhichOneof("ml_type")
    if kind == "transform":
        _take_operator(message.transform, found)
    elif kind == "fetch":
        found.handles.add(message.fetch.obj_ref.id)
    else:
        raise refusals.unknown(f"a relation of models, {kind}")


def _take_operator(message: Any, found: PlanFindings) -> None:
    if message.WhichOneof("operator") == "obj_ref":
        found.handles.add(message.obj_ref.id)
    else:
        _check_operator(message.transformer)


def _check_operator(operator: Any) -> None:
    """Refuse an operator that is not Spark's own, or runs a SQL text of its parameters."""
    if not operator.name.startswith(_OWN):
        raise refusals.jvm_code(f"the operator {operator.name[:100]!r}")
    if operator.name.endswith(_RUNS_SQL):
        raise RefusedError(
            ErrorClass.HIDDEN_STATEMENT,
            "SQLTransformer hides the statement that it runs",
            "write spark.sql(…, df=df) on the DataFrame that it would transform",
        )


def read_command(message: Any, found: PlanFindings) -> PlanReading:
    """Return what a command for models does; what it reads has been taken."""
    kind = message.WhichOneof("command")
    if kind in FILES:
        raise RefusedError(
            ErrorClass.MODEL_FILES,
            f"a model's {kind} goes to files of one cluster",
            "keep what you need of the model in your program, or fit it anew",
        )
    if kind not in HOLDING:
        raise refusals.unknown(f"a command for models, {kind}")
    if kind == "fit":
        _check_operator(message.fit.estimator)
    elif kind == "evaluate":
        _check_operator(message.evaluate.evaluator)
    elif kind == "fetch":
        found.handles.add(message.fetch.obj_ref.id)
    elif kind in ("create_summary", "get_model_size"):
        found.handles.add(getattr(message, kind).model_ref.id)
    return found.reading(Does.HOLDS, Kind.CACHE)
