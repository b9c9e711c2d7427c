"""The routes and schemas of `haproc.doors.clients.about_door`, for `haproc.doors.openapi`."""

from __future__ import annotations

from typing import Any, Final

from haproc.doors.openapi_operation import Operation
from haproc.doors.openapi_schemas import TEXT, choice, described, listed, record, ref

ABOUT: Final = (
    Operation("get", "/", "What this is", "About"),
    Operation("post", "/", "The same, for clients of Livy", "About"),
    Operation("get", "/version", "Which version this is", "Version"),
    Operation("get", "/api/2.0/preview/scim/v2/Me", "Whose token it is, as SCIM has it", "Me"),
    Operation("get", "/api/2.0/sql/warehouses", "The ring, as a warehouse", "Warehouses"),
)
ABOUT_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "About": record("*", service={"const": "haproc"}, version=TEXT, ring=TEXT, interface=TEXT),
    "Version": record("*", version=TEXT),
    "Me": record("*", id=TEXT, userName=TEXT, displayName=TEXT, active={"type": "boolean"}),
    "Warehouses": record("*", warehouses=listed(ref("Warehouse"))),
    "Warehouse": record(
        "*",
        id=described(TEXT, "The ring's name."),
        name=TEXT,
        state=choice("RUNNING", "STARTING"),
    ),
}
