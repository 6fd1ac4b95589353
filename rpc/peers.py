"""Who may call an internal service: peers whose certificate carries the name of their role.

A router calls the scheduler, a worker registers with it, the scheduler calls workers, an operator
asks questions. Names are those of the certificate's subject alternative names (RFC 6125, 6.4).
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from inspect import iscoroutine
from typing import Any

import grpc

from rpc.errors import PermissionDenied
from rpc.handlers import Context, Handler, wrap

ROUTER, SCHEDULER, WORKER, OPERATOR = ROLES = ("router", "scheduler", "worker", "operator")

Callers = Mapping[str, tuple[str, ...]]
"""The roles that may call what begins with "/service/" or "/service/method"; the longest counts."""


@dataclass(frozen=True, slots=True)
class PeerNames:
    """Patterns of names by role; a role that is not there goes by itself: router, router.*"""

    by_role: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "PeerNames":
        """Reads "router=NAME,worker=*.DOMAIN,worker=NAME". Raises ValueError."""
        by_role: dict[str, tuple[str, ...]] = {}
        for entry in filter(None, (part.strip() for part in text.split(","))):
            role, _, pattern = entry.partition("=")
            if role not in ROLES or not pattern:
                roles = ", ".join(ROLES)
                raise ValueError(
                    f"allow_peer_names has {entry!r}; write ROLE=NAME, a role being {roles}"
                )
            by_role[role] = (*by_role.get(role, ()), pattern)
        return cls(by_role)

    def find(self, role: str, names: list[str]) -> str | None:
        """Returns the first of a certificate's names that has the role."""
        patterns = self.by_role.get(role, (role, f"{role}.*"))
        return next((n for n in names if any(fnmatchcase(n, p) for p in patterns)), None)


def names_of(context: Context) -> list[str]:
    """Returns the names of a caller's certificate; none if it has shown none."""
    found = context.auth_context().get("x509_subject_alternative_name", ())
    return [name.decode("utf-8", "replace") for name in found]


class PeerInterceptor(grpc.aio.ServerInterceptor):
    """Lets only those call what their name allows. Health and reflection are for all peers."""

    def __init__(self, callers: Callers, names: PeerNames) -> None:
        self._callers = callers
        self._names = names

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith("/grpc."):
            return handler
        roles = self._roles(method)

        async def around(call: Awaitable[Any], context: Context) -> Any:
            names = names_of(context)
            if any(self._names.find(role, names) for role in roles):
                return await call
            if iscoroutine(call):
                call.close()
            raise PermissionDenied(_refusal(method, roles, names))

        return wrap(handler, around)

    def _roles(self, method: str) -> tuple[str, ...]:
        prefixes = [prefix for prefix in self._callers if method.startswith(prefix)]
        return self._callers[max(prefixes, key=len)] if prefixes else ()


def _refusal(method: str, roles: tuple[str, ...], names: list[str]) -> str:
    shown = ", ".join(names[:4])[:200] or "no name"
    wanted = " or ".join(roles) or "nobody"
    return f"{method} is for {wanted}; this certificate is for {shown} (--allow-peer-names)"
