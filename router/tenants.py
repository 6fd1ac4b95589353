"""Whose a request is: what limits and fairness go by.

Where API keys are asked for, a key says so. A header proves nothing, so it is only read where the
operator says that whoever can reach the router may be believed: a gateway that has checked its
clients.
"""

from router.keys import ApiKey, KeyRing, Metadata
from rpc.errors import InvalidArgument

TENANT_HEADER = "x-signalbox-tenant"
MAX_TENANT_CHARS = 128


class Tenants:
    """Tells tenants apart by a call's metadata."""

    def __init__(self, *, trust_header: bool, keys: KeyRing | None = None) -> None:
        self._trust_header = trust_header
        self._keys = keys

    def identify(self, metadata: Metadata) -> tuple[str, ApiKey | None]:
        """Returns the tenant and the key. Raises InvalidArgument or Unauthenticated."""
        if self._keys is None:
            return self.tenant_of(metadata), None
        key = self._keys.authenticate(metadata)
        return key.tenant, key

    def tenant_of(self, metadata: Metadata) -> str:
        """Returns the tenant, "" for nobody in particular. Raises InvalidArgument."""
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
