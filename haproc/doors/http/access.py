"""Whose a request is: bearer tokens, and whose they are."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from multidict import CIMultiDictProxy

from haproc.config.model import Config
from haproc.failure import ErrorClass, refused

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
    """Whose bearer token opens a door: user name by token, or nobody's is needed."""

    tokens: tuple[tuple[str, bytes], ...] = field(repr=False)
    needed: str = "the token of a user of this ring"

    @classmethod
    def of_users(cls, config: Config) -> Credentials:
        """Return what opens the client door."""
        return cls(tuple((user.name, user.token.encode()) for user in config.users))

    @classmethod
    def of_peers(cls, config: Config) -> Credentials:
        """Return what opens the doors between peers."""
        return cls((("peer", config.secret.encode()),), "the ring's secret")

    def user_of(self, headers: Mapping[str, str]) -> str:
        """Return the user's name; raises RequestError (401).

        Every token is compared, so that the time taken tells nothing about them.
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
