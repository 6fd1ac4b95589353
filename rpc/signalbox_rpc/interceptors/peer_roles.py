"""Restricts the callers of an internal service by the roles in their certificates.

A router calls the scheduler, a worker registers with it, the scheduler calls workers, an operator
queries all of them. A role is a DNS name among the certificate's subject alternative names (RFC
9525); an e-mail address, a URI, an IP address or the common name gives no role.
"""

import re
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from inspect import iscoroutine
from typing import Any

from signalbox_contract.errors import PermissionDenied
from signalbox_rpc.interceptors.call_handlers import Context, Handler, WrappingInterceptor, wrap
from signalbox_rpc.interceptors.certificate_names import dns_names

ROUTER, SCHEDULER, WORKER, OPERATOR = ROLES = ("router", "scheduler", "worker", "operator")

_DNS_NAME = re.compile(rb"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
"""Labels of letters, digits and hyphens: no wildcard and no empty label, so no dot at the end."""

Callers = Mapping[str, tuple[str, ...]]
"""The roles that may call methods with the prefix "/service/" or "/service/method"; the longest
prefix counts."""


@dataclass(frozen=True, slots=True)
class PeerNames:
    """Patterns of DNS names by role; a role that is missing has its own name: router, router.*"""

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
        """Returns the first of a certificate's names that has the role, or None."""
        patterns = self.by_role.get(role, (role, f"{role}.*"))
        return next((n for n in names if any(fnmatchcase(n, p) for p in patterns)), None)


def names_of(context: Context) -> list[str]:
    """Returns the DNS names of a caller's certificate; none if it has shown no certificate.

    They are not taken from `peer_dns` alone, because gRPC cuts a name at a NUL.
    """
    shown = context.auth_context()
    whole = frozenset[bytes]().union(*map(dns_names, shown.get("x509_pem_cert", ())))
    found = shown.get("peer_dns", ())
    return [one.decode() for one in found if one in whole and _DNS_NAME.fullmatch(one)]


class PeerInterceptor(WrappingInterceptor):
    """Refuses calls of peers whose certificate lacks the role. Health and reflection are open to
    all."""

    def __init__(self, callers: Callers, names: PeerNames) -> None:
        self._callers = callers
        self._names = names

    def wrapped(self, handler: Handler, method: str) -> Handler:
        if method.startswith("/grpc."):
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
    shown = ", ".join(names[:4])[:200] or "no DNS name"
    wanted = " or ".join(roles) or "no role"
    return f"{method} is for {wanted}; this certificate is for {shown} (--allow-peer-names)"
