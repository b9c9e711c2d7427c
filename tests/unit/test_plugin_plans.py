"""The questions to HAProc's plugin, and the errors that the plugin itself raises."""

from __future__ import annotations

import base64
import json
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from haproc import protos
from haproc.engine import channel
from haproc.engine.errors import EngineError, ErrorKind, NoQueryError
from haproc.engine.statement import SparkPlan, SqlText, reading_plan
from haproc.failure import ErrorClass

ARGUMENT = "java.lang.IllegalArgumentException"


def question_of(plan: bytes) -> tuple[str, Any, dict[str, Any]]:
    """Return the name of a plan's question, the relation in it, and its other fields."""
    root = protos.base.Plan.FromString(plan).root
    assert not root.common.HasField("plan_id")
    fields = json.loads(root.extension.value)
    about = protos.base.Plan.FromString(base64.b64decode(fields.pop("plan"))).root
    return root.extension.type_url, about, fields


def test_reading_plan_contains_the_text_or_the_plan() -> None:
    what, about, fields = question_of(reading_plan(SqlText("DELETE FROM t")))
    assert (what, about.sql.query) == ("haproc/read", "DELETE FROM t")
    assert fields == {"analyze": True, "columns": False}
    frame = protos.base.Plan()
    frame.root.range.end = 5
    plan = reading_plan(SparkPlan(frame.SerializeToString()), parsed_only=True)
    _, about, fields = question_of(plan)
    assert (about.range.end, fields) == (5, {"analyze": False, "columns": True})


def failed(message: str, error_class: str = "", java_class: str = ARGUMENT) -> EngineError:
    """Return the EngineError for an error that Spark reports in this way."""
    error_fields = {"classes": json.dumps([java_class, "java.lang.Exception"]), "errorId": "e"}
    if error_class:
        error_fields["errorClass"] = error_class
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(metadata=error_fields))
    status = status_pb2.Status(details=[info]).SerializeToString()
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", status))
    none = grpc.aio.Metadata()
    error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, none, trailing, details=message)
    decoded = channel.decode(error)
    found = decoded.error()
    assert decoded.wants_details is not found.error_class.startswith("HAPROC_")
    return found


def test_statement_that_is_no_query_is_an_error_with_the_classes() -> None:
    error = failed("HAPROC_NO_QUERY: DeleteFromTable, InsertIntoStatement")
    assert isinstance(error, NoQueryError)
    assert error.effects == ("DeleteFromTable", "InsertIntoStatement")
    assert (error.kind, error.error_class) == (ErrorKind.APPLICATION, ErrorClass.NO_QUERY)
    assert error.message.endswith("no query: DeleteFromTable, InsertIntoStatement")


def test_statement_that_names_files_is_an_error_of_haproc() -> None:
    error = failed("HAPROC_PATH: the statement names files, at /x: name a table")
    assert (error.kind, error.error_class) == (ErrorKind.APPLICATION, ErrorClass.PATH)
    assert error.message == "the statement names files, at /x: name a table"


@pytest.mark.parametrize(
    "arguments",
    [
        ("[USER_RAISED_EXCEPTION] HAPROC_NO_QUERY: x", "USER_RAISED_EXCEPTION"),
        ("HAPROC_NO_QUERY: x", "USER_RAISED_EXCEPTION"),
        ("so: HAPROC_NO_QUERY: x",),
        ("HAPROC_NO_QUERY: x", "", "java.lang.RuntimeException"),
    ],
)
def test_error_that_only_resembles_a_plugin_error_is_none(arguments: tuple[str, ...]) -> None:
    assert not isinstance(failed(*arguments), NoQueryError)
