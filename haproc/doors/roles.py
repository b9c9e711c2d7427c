"""The role that each route needs, in one table for both HTTP doors.

A route that is not listed here is for peers only, so a forgotten route is closed to others. What a
statement may do is not decided here: any reader may send one, and the statement itself decides
which rights it needs (`haproc.route.service`, `haproc.classify.rules`).
"""

from __future__ import annotations

from typing import Final

from haproc.classify.rights import Role

PAGE: Final = "/ui"
EVENTS: Final = "/ui/events"
FILE: Final = "/ui/{file}"
ALWAYS: Final = frozenset(("/healthz", "/readyz", "/clusterStatus", "/metrics", "/openapi.json"))
"""Paths that are answered at once, however many requests are running."""
_PAGE: Final = frozenset({PAGE, FILE})

OPEN_TO_CLIENTS: Final = _PAGE | {"/api/ha/results/{link_secret}/{chunk_index}"}
"""Paths of the client door that need no token: the status page contains nothing about the ring, and
the link to a result is a secret itself."""
READERS: Final = ALWAYS | {
    EVENTS,
    "/",
    "/version",
    "/api/2.0/preview/scim/v2/Me",
    "/api/2.0/sql/warehouses",
    "/api/2.0/sql/statements",
    "/api/2.0/sql/statements/{statement_id}",
    "/api/2.0/sql/statements/{statement_id}/result/chunks/{chunk_index}",
    "/api/2.0/sql/statements/{statement_id}/cancel",
    "/api/ha/classify",
    "/api/ha/sessions/{session_id}",
    # Only for the archive's user.
    "/api/ha/operations",
    "/api/ha/operations/archived",
    "/api/ha/verify",
    "/api/ha/verify/{offset}",
}
WRITERS: Final = frozenset(
    {
        "/api/ha/tables/{table}/rows",
        # A job runs a program on the ring's hosts.
        "/batches",
        "/batches/{batch_id}",
        "/batches/{batch_id}/state",
        "/batches/{batch_id}/log",
    }
)

OPEN_TO_OPERATORS: Final = _PAGE | ALWAYS | {EVENTS}
"""Paths of the operator door that need no token, for load balancers and monitoring. With an
operator's token the events show more, see `needed`."""
OPERATORS: Final = frozenset(
    {
        "/ha/v1/settings",
        "/ha/v1/status",
        "/ha/v1/jobs",
        "/ha/v1/jobs/{batch_id}",
        "/ha/v1/jobs/{batch_id}/log",
        "/ha/v1/sessions",
        "/ha/v1/sessions/close",
        "/ha/v1/members",
        "/ha/v1/members/{cluster}/join",
        "/ha/v1/members/{cluster}/leave",
        "/ha/v1/drain",
        "/ha/v1/undrain",
        "/ha/v1/queue",
        "/ha/v1/queue/{offset}",
        "/ha/v1/queue/{offset}/retry",
        "/ha/v1/queue/{offset}/skip",
        "/ha/v1/queue/{offset}/revoke",
        "/ha/v1/verify",
        "/ha/v1/verify/{offset}",
        "/ha/v1/rebuild",
        "/ha/v1/rebuild/withdraw",
        "/ha/v1/backup",
        "/ha/v1/restore",
        "/ha/v1/repair",
    }
)


def needed(path: str | None, *, operators: bool, token: bool) -> Role | None:
    """Return the role that a request to a route needs; None if it needs no token.

    ``path``: the route's path pattern; None if there is no such route. ``operators``: True at the
    operator door. ``token``: True if the request has a token.
    """
    if operators:
        if path is None or (path in OPEN_TO_OPERATORS and not (path == EVENTS and token)):
            return None
        return Role.OPERATOR if path in OPERATORS or path == EVENTS else Role.PEER
    if path in OPEN_TO_CLIENTS:
        return None
    if path is None or path in READERS:
        return Role.READER
    return Role.WRITER if path in WRITERS else Role.PEER
