"""Finds the user of a request by its token, and the user's rights.

One place for all doors: users of the configuration, users of an OpenID Connect provider, jobs in
the name of their users, and the ring's secret, by which HAProcs authenticate to each other.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web
from multidict import CIMultiDictProxy

from haproc.classify.rights import NOTHING, UNBOUNDED, Rights, Role
from haproc.config.model import Config
from haproc.config.sections import OWN_NAMES, User, digest_of
from haproc.failure import ErrorClass, refused
from haproc.jobs.book import PREFIX
from haproc.route.model import Authorization

ANONYMOUS: Final = "anonymous"
RING: Final = "the ring's secret"
"""The user name of a request with the ring's secret; no user can have this name."""
USER: Final = web.RequestKey("user", str)

_SEND_TOKEN: Final = (
    "send Authorization: Bearer <token>; haclient: --token-file FILE, $HACLIENT_TOKEN or token=…"
)
_OTHER_TOKEN: Final = (
    "look whose it is: users[].token, users_file, oidc and secret of the ring's configuration say "
    "what is taken; haclient: --token-file FILE, $HACLIENT_TOKEN or token=…"
)
_ASK: Final = "have an operator of the ring give the user the role, or use another user's token"
_PEERS: Final = "only HAProcs ask this, under the ring's secret"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A user who was admitted. ``authorization``: of the job that sent the request; None: no job.

    ``issued``: True if the rights came with a provider's token, so they cannot be found by the
    name.
    """

    user: str
    rights: Rights = UNBOUNDED
    authorization: Authorization | None = None
    issued: bool = False


ADMITTED: Final = web.RequestKey("admitted", Admitted)
NOBODY: Final = Admitted(ANONYMOUS, NOTHING)
"""The user of requests that anybody may send."""


class Users:
    """The users in the configuration, found by their tokens or by their names.

    A token is looked up by its digest. So the time of the lookup shows something about digests
    only, and nobody can make a token for a given digest.
    """

    def __init__(self, users: Sequence[User]) -> None:
        self._by_digest: dict[str, Admitted] = {}
        self._by_name: dict[str, Admitted] = {}
        self.replace(users)

    def replace(self, users: Sequence[User]) -> None:
        """Replace all users by ``users``."""
        self._by_name = {user.name: Admitted(user.name, user.rights) for user in users}
        self._by_digest = {
            digest_of(user.token) if user.token else user.token_hash: self._by_name[user.name]
            for user in users
        }

    def of_token(self, token: str) -> Admitted | None:
        """Return the user with this token; None if there is none."""
        return self._by_digest.get(digest_of(token))

    def named(self, name: str) -> Admitted | None:
        """Return the user with this name; None if there is none."""
        return self._by_name.get(name)


class JobTokens(Protocol):
    """The tokens that jobs use for their own requests."""

    async def submitter(self, token: str, session_id: str = "") -> tuple[str, Rights | None]:
        """Return the user who submitted the job with this token, and that user's rights.

        The rights are None unless they came with a provider's token. ``session_id``: the Spark
        session of the job's call. Raises RequestError.
        """
        ...

    def authorization_of(self, token: str) -> Authorization:
        """Return the authorization by which the job with this token may send requests."""
        ...


class Provider(Protocol):
    """A provider of users, such as an OpenID Connect provider."""

    async def user_of(self, token: str) -> tuple[str, Rights]:
        """Return the user and the rights in a signed token; raises RequestError."""
        ...


def is_signed(token: str) -> bool:
    """True if the token looks like a provider's: three parts with dots, the first one JSON."""
    return token.startswith("eyJ") and token.count(".") == 2 and token.isascii()


@dataclass(frozen=True, slots=True)
class Admission:
    """Finds the users of the requests at one door, and refuses all others.

    ``secret``: the ring's secret if it is accepted at this door. ``anonymous``: True if no token is
    needed.
    """

    users: Users
    provider: Provider | None = None
    jobs: JobTokens | None = None
    secret: str | None = None
    anonymous: bool = False

    async def admit(self, headers: Mapping[str, str], session_id: str = "") -> Admitted:
        """Return the user with a request's token; RequestError if there is none."""
        if self.jobs is not None and _given(headers).startswith(f"{PREFIX}."):
            return await self._of_job(self.jobs, _given(headers), session_id)
        if self.anonymous:
            return Admitted(ANONYMOUS)
        token = self._shown(headers)
        if self.secret is not None and hmac.compare_digest(
            self.secret.encode(), token.encode("utf-8", "surrogateescape")
        ):
            return Admitted(RING, Rights((Role.OPERATOR, Role.PEER)))
        if (user := self.users.of_token(token)) is not None:
            return user
        if self.provider is not None and is_signed(token):
            name, rights = await self.provider.user_of(token)
            return self._issued(name, rights)
        raise refused(
            ErrorClass.UNAUTHENTICATED, f"the token sent is not {self._needed}", _OTHER_TOKEN
        )

    async def _of_job(self, jobs: JobTokens, token: str, session_id: str) -> Admitted:
        name, issued = await jobs.submitter(token, session_id)
        authorization = jobs.authorization_of(token)
        if issued is not None:
            return self._issued(name, issued, authorization)
        if self.anonymous:
            return Admitted(name, authorization=authorization)
        if (user := self.users.named(name)) is None:
            raise refused(
                ErrorClass.UNAUTHENTICATED,
                f"{name!r}, who submitted this job, is no user of the ring any more",
                "have another user submit it",
            )
        return Admitted(name, user.rights, authorization)

    def _issued(
        self, name: str, rights: Rights, authorization: Authorization | None = None
    ) -> Admitted:
        if name in OWN_NAMES or self.users.named(name) is not None:
            raise refused(
                ErrorClass.UNAUTHENTICATED,
                f"the provider's user {name!r} has the name of a user of the configuration, or "
                "one that HAProc itself uses",
                "name the user of the configuration otherwise, or use that user's token",
            )
        return Admitted(name, rights, authorization, issued=True)

    @property
    def _needed(self) -> str:
        operator = f"{RING} or the token of a user with the role operator"
        return operator if self.secret is not None else "the token of a user of this ring"

    def _shown(self, headers: Mapping[str, str]) -> str:
        """Return the token of a request; RequestError if it has none, or several."""
        many = headers.getall("Authorization", ()) if isinstance(headers, CIMultiDictProxy) else ()
        if len(many) > 1:
            raise refused(
                ErrorClass.UNAUTHENTICATED, "there are several headers Authorization", "send one"
            )
        scheme, _, _ = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not _given(headers):
            raise refused(ErrorClass.UNAUTHENTICATED, f"{self._needed} is needed", _SEND_TOKEN)
        return _given(headers)


def _given(headers: Mapping[str, str]) -> str:
    return headers.get("Authorization", "").partition(" ")[2].strip()


def check_role(admitted: Admitted, role: Role) -> None:
    """Raise RequestError (403) if a user does not have this role."""
    if admitted.rights.has(role):
        return
    has = ", ".join(admitted.rights.roles) or "none"
    raise refused(
        ErrorClass.FORBIDDEN,
        f"this needs the role {role}, and the user has: {has}",
        _PEERS if role is Role.PEER else _ASK,
    )


class Access:
    """The users that are admitted at one HAProc's doors; `users` may change while it runs."""

    def __init__(self, config: Config, provider: Provider | None = None) -> None:
        self.users = Users(config.users)
        if provider is None and config.oidc.issuer:
            from haproc.doors.http.oidc import OidcUsers  # takes 11 MiB: only if needed

            provider = OidcUsers(config.oidc, time.monotonic)
        self._provider = provider
        self._authenticates = config.authenticates
        self._secret = config.secret

    def take_users(self, config: Config) -> None:
        """Admit the users of this configuration from now on, and no others.

        Raises ValueError if the need for tokens would change: that requires a restart.
        """
        if config.authenticates != self._authenticates:
            raise ValueError(
                "whether tokens are needed is decided when a HAProc starts: restart it"
            )
        self.users.replace(config.users)

    def clients(self, jobs: JobTokens | None = None) -> Admission:
        """Return what finds users at the doors for clients; ``jobs``: the tokens of jobs."""
        return Admission(self.users, self._provider, jobs, anonymous=not self._authenticates)

    def operators(self) -> Admission:
        """Return what finds users at the door for operators and peers."""
        return Admission(self.users, self._provider, secret=self._secret)
