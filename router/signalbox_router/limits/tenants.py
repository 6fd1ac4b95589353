"""Finds the tenant of a request, to which limits and fairness apply.

Where API keys are required, the key has a tenant. A header proves nothing, so it is only read if
the operator states that every client of the router may be believed, such as a gateway that has
checked its own clients.
"""

from typing import NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_router.limits.api_keys import ApiKey, KeyRing, Metadata
from signalbox_router.limits.payers import Payer, payer_of

TENANT_HEADER = "x-signalbox-tenant"
MAX_TENANT_CHARS = 128


class Caller(NamedTuple):
    """Identity of a call's client."""

    tenant: str
    """Tenant; empty if clients name none."""
    key: ApiKey | None
    payer: Payer

    def may_use(self, *names: str) -> bool:
        """Says whether the client may use a model, under one of its names."""
        return self.key is None or self.key.may_use(*names)

    def check_model(self, *names: str) -> None:
        """Raises PermissionDenied unless the client may use the model."""
        if self.key is not None:
            self.key.check_model(*names)


class Tenants:
    """Finds tenants from the metadata of calls."""

    def __init__(self, *, trust_header: bool, keys: KeyRing | None = None) -> None:
        self._trust_header = trust_header
        self._keys = keys

    def identify(self, metadata: Metadata, *, address: str) -> Caller:
        """Returns the client's identity. Raises InvalidArgument or Unauthenticated.

        Args:
            address: the client's host.
        """
        if self._keys is None:
            tenant, key = self.tenant_of(metadata), None
        else:
            key = self._keys.find(metadata)  # the call has waited for a changed file
            tenant = key.tenant
        is_named = key is not None or tenant != ""
        return Caller(tenant, key, payer_of(tenant=tenant, is_named=is_named, address=address))

    def tenant_of(self, metadata: Metadata) -> str:
        """Returns the tenant, "" if the call names none. Raises InvalidArgument."""
        if not self._trust_header:
            return ""
        named = [value for key, value in metadata or () if key == TENANT_HEADER]
        if len(named) > 1:
            raise InvalidArgument(TENANT_HEADER, f"{len(named)} values", "one")
        tenant = named[0] if named else ""
        if not isinstance(tenant, str) or not _is_name(tenant):
            allowed = f"up to {MAX_TENANT_CHARS} printable ASCII characters"
            raise InvalidArgument(TENANT_HEADER, tenant, allowed)
        return tenant


def _is_name(tenant: str) -> bool:
    return tenant.isascii() and tenant.isprintable() and len(tenant) <= MAX_TENANT_CHARS
