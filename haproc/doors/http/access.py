"""The user of a request: bearer tokens and their users."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from aiohttp import web
from multidict import CIMultiDictProxy

from haproc.config.model import Config
from haproc.failure import ErrorClass, refused
from haproc.jobs.book import PREFIX
from haproc.route.model import Authorization

ANONYMOUS: Final = "anonymous"
USER: Final = web.RequestKey("user", str)

_SEND_TOKEN: Final = (
    "send Authorization: Bearer <token>; haclient: --token-file FILE, $HACLIENT_TOKEN or token=…"
)
_OTHER_TOKEN: Final = (
    "look whose it is: users[].token and secret of the ring's configuration say what is taken; "
    "haclient: --token-file FILE, $HACLIENT_TOKEN or token=…"
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The users by bearer tokens that open a door; none if no token is needed."""

    tokens: tuple[tuple[str, bytes], ...] = field(repr=False)
    needed: str = "the token of a user of this ring"

    @classmethod
    def of_users(cls, config: Config) -> Credentials:
        """Return the credentials of the client door."""
        return cls(tuple((user.name, user.token.encode()) for user in config.users))

    @classmethod
    def of_peers(cls, config: Config) -> Credentials:
        """Return the credentials of the doors between peers."""
        return cls((("peer", config.secret.encode()),), "the ring's secret")

    def user_of(self, headers: Mapping[str, str]) -> str:
        """Return the user's name; raises RequestError (401).

        Every token is compared, so that the time taken reveals nothing about them.
        """
        if not self.tokens:
            return ANONYMOUS
        many = headers.getall("Authorization", ()) if isinstance(headers, CIMultiDictProxy) else ()
        if len(many) > 1:
            raise refused(
                ErrorClass.UNAUTHENTICATED, "there are several headers Authorization", "send one"
            )
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise refused(ErrorClass.UNAUTHENTICATED, f"{self.needed} is needed", _SEND_TOKEN)
        shown = given.strip().encode("utf-8", "surrogateescape")
        found = ""
        for name, token in self.tokens:
            if hmac.compare_digest(token, shown):
                found = name
        if not found:
            raise refused(
                ErrorClass.UNAUTHENTICATED, f"the token sent is not {self.needed}", _OTHER_TOKEN
            )
        return found


class JobTokens(Protocol):
    """Tokens that jobs show."""

    async def user_of(self, token: str, session_id: str = "") -> str:
        """Return the user of a token's job, in this Spark session; raises RequestError."""
        ...

    def standing(self, token: str) -> Authorization:
        """Return the authorization that this token gives."""
        ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """The admitted user, and the token if it can expire."""

    user: str
    standing: Authorization | None = None


ADMITTED: Final = web.RequestKey("admitted", Admitted)


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits users by their own tokens, and jobs by theirs, in the name of their users."""

    credentials: Credentials
    jobs: JobTokens | None = None

    async def admit(self, headers: Mapping[str, str], session_id: str = "") -> Admitted:
        """Return the request's user; raises RequestError."""
        token = headers.get("Authorization", "").partition(" ")[2].strip()
        if self.jobs is not None and token.startswith(f"{PREFIX}."):
            user = await self.jobs.user_of(token, session_id)
            return Admitted(user, self.jobs.standing(token))
        return Admitted(self.credentials.user_of(headers))
