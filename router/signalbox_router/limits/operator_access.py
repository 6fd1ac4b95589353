"""Says who may see what operators see: the schedulers' decisions, and the history of any request.

An operator shows an API key that the key file gives `operator: true`. Where clients show no keys,
only those of a loopback port are taken for operators. A web page of another origin is refused in
any case: `--allowed-origins` opens inference alone.
"""

from urllib.parse import urlsplit

from signalbox_contract.errors import PermissionDenied
from signalbox_router.limits.api_keys import KeyRing, Metadata
from signalbox_rpc.transport.tls import is_loopback

_REMEDY = "give --api-keys a file with a key of `signalbox keys create NAME --operator`"


class OperatorAccess:
    """Checks calls by their metadata or HTTP headers.

    Args:
        host: address at which the router listens.
    """

    def __init__(self, keys: KeyRing | None, *, host: str) -> None:
        self._keys = keys
        self._is_loopback = is_loopback(host)

    def check(self, metadata: Metadata) -> None:
        """Raises PermissionDenied, or Unauthenticated, unless the client is an operator."""
        _check_origin(metadata)
        if self._keys is not None:
            key = self._keys.find(metadata)  # the call has waited for a changed file
            if not key.operator:
                raise PermissionDenied(f"the API key {key.name} is no operator's; {_REMEDY}")
        elif not self._is_loopback:
            raise PermissionDenied(
                f"this port is for others than operators, and clients show no keys; {_REMEDY}, or"
                " let the router listen on a loopback --host"
            )


def _check_origin(metadata: Metadata) -> None:
    """Lets pages of the router's own HTTP port call, and clients that are no web pages."""
    found: dict[str, str] = {}
    for name, value in metadata or ():
        found[name.lower()] = value.decode("latin-1") if isinstance(value, bytes) else value
    origin = found.get("origin")
    if origin is not None and urlsplit(origin).netloc != found.get("host"):
        raise PermissionDenied(
            "web pages of other origins may not see this; --allowed-origins is for inference alone"
        )
