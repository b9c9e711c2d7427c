"""What is asked of HAProc's plugin, and its one error that is no error of Spark's."""

from __future__ import annotations

import base64
import json
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from haproc import protos
from haproc.engine import failure
from haproc.engine.errors import EngineError, ErrorKind, NoQueryError
from haproc.engine.plugin_plans import reading_plan
from haproc.engine.remote import plan_of
from haproc.engine.statement import GuardedSql, SparkPlan, SqlText
from haproc.failure import ErrorClass

ARGUMENT = "java.lang.IllegalArgumentException"


def asked(plan: bytes) -> tuple[str, Any, dict[str, Any]]:
    """Return what a plan asks, about which relation, and what else it says."""
    root = protos.base.Plan.FromString(plan).root
    assert not root.common.HasField("plan_id")
    said = json.loads(root.extension.value)
    about = protos.base.Plan.FromString(base64.b64decode(said.pop("plan"))).root
    return root.extension.type_url, about, said


def test_guarded_query_is_asked_for_as_its_text() -> None:
    plan = plan_of(GuardedSql("SELECT 'ä'"))
    what, about, _ = asked(plan.SerializeToString())
    assert (what, about.sql.query) == ("haproc/query", "SELECT 'ä'")


def test_reading_is_asked_for_of_a_text_and_of_a_plan_with_the_paths() -> None:
    what, about, said = asked(reading_plan(SqlText("DELETE FROM t"), ["/data/"]))
    assert (what, about.sql.query) == ("haproc/read", "DELETE FROM t")
    assert said == {"paths": ["/data/"], "analyze": True, "columns": False}
    frame = protos.base.Plan()
    frame.root.range.end = 5
    plan = reading_plan(SparkPlan(frame.SerializeToString()), parsed_only=True)
    _, about, said = asked(plan)
    assert (about.range.end, said) == (5, {"paths": [], "analyze": False, "columns": True})


def failed(message: str, error_class: str = "", java_class: str = ARGUMENT) -> EngineError:
    """Return what becomes of an error that Spark reports so."""
    told = {"classes": json.dumps([java_class, "java.lang.Exception"]), "errorId": "e"}
    if error_class:
        told["errorClass"] = error_class
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(metadata=told))
    status = status_pb2.Status(details=[info]).SerializeToString()
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status))
    none = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, none, trailing, details=message)
    decoded = failure.decode(error)
    assert decoded.wants_details is not isinstance(decoded.error(), NoQueryError)
    return decoded.error()


def test_guarded_query_that_is_none_is_an_error_with_the_classes() -> None:
    error = failed("HAPROC_NO_QUERY: DeleteFromTable, InsertIntoStatement")
    assert isinstance(error, NoQueryError)
    assert error.effects == ("DeleteFromTable", "InsertIntoStatement")
    assert (error.kind, error.error_class) == (ErrorKind.APPLICATION, ErrorClass.NO_QUERY)
    assert error.message.endswith("no query: DeleteFromTable, InsertIntoStatement")


@pytest.mark.parametrize(
    "told",
    [
        ("[USER_RAISED_EXCEPTION] HAPROC_NO_QUERY: x", "USER_RAISED_EXCEPTION"),
        ("HAPROC_NO_QUERY: x", "USER_RAISED_EXCEPTION"),
        ("so: HAPROC_NO_QUERY: x",),
        ("HAPROC_NO_QUERY: x", "", "java.lang.RuntimeException"),
    ],
)
def test_error_that_only_looks_like_it_is_not_that(told: tuple[str, ...]) -> None:
    assert not isinstance(failed(*told), NoQueryError)
