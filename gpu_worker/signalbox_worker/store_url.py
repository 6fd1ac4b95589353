"""The address of a shared store, `--kv-store URL`: what is wrong with it, and where it leads.

The names in a query are those of redis-py.
"""

import os
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from signalbox_rpc.transport.tls import is_loopback

REDIS_SCHEMES = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
"""True for the schemes whose connection is TLS."""
OBJECT_SCHEMES = ("s3", "gs", "az", "file")
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}
"""Variables of the environment that name where an object store is, as `obstore` reads them."""
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_DEFAULT_PORT = 6379
_KNOWN = ", ".join(f"{scheme}://" for scheme in (*REDIS_SCHEMES, *OBJECT_SCHEMES))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """A database of a server."""

    host: str
    port: int
    is_tls: bool
    db: int = 0
    username: str | None = None
    ssl_ca_certs: str | None = None
    """PEM file of authorities; None takes those of the system."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def checked_url(url: str) -> str:
    """Returns a URL that names a store. Raises ValueError."""
    scheme = urlsplit(url).scheme
    if scheme in REDIS_SCHEMES:
        redis_address(url)
    elif scheme in OBJECT_SCHEMES:
        _check_object_url(url)
    else:
        raise ValueError(f"it must begin with one of {_KNOWN}")
    return url


def redis_address(url: str) -> RedisAddress:
    """Returns what a redis:// URL names. Raises ValueError."""
    parts = urlsplit(url)
    if parts.password is not None:
        raise ValueError(
            "it must have no password, which other users would see; put it into a file, and give"
            " --kv-store-password"
        )
    query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    is_tls = REDIS_SCHEMES[parts.scheme]
    if unknown := sorted(query.keys() - set(_TLS_FILES)) or sorted(query if not is_tls else ()):
        allowed = f"rediss:// takes {', '.join(_TLS_FILES)}"
        raise ValueError(f"{unknown[0]} is no part of it; {allowed}")
    if "ssl_keyfile" in query and "ssl_certfile" not in query:
        raise ValueError("ssl_keyfile goes with ssl_certfile; give both")
    db = parts.path.strip("/") or "0"
    if not parts.hostname or not db.isdecimal() or parts.fragment:
        raise ValueError("it must be redis://[USER@]HOST[:PORT][/NUMBER OF DATABASE]")
    return RedisAddress(
        host=parts.hostname,
        port=parts.port or _DEFAULT_PORT,
        is_tls=is_tls,
        db=int(db),
        username=unquote(parts.username) if parts.username else None,
        **query,
    )


def _check_object_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.query or parts.fragment or parts.username or parts.password is not None:
        raise ValueError(
            "it must be a bucket and a prefix alone; credentials and endpoint come from the"
            " environment, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL"
        )
    if parts.scheme == "file" and (parts.netloc or parts.path.strip("/") == ""):
        raise ValueError("it must be file:///FOLDER, with three slashes")
    if parts.scheme != "file" and not parts.netloc:
        raise ValueError(f"it must be {parts.scheme}://BUCKET[/PREFIX]")


def exposure(url: str, *, has_key: bool) -> str | None:
    """Returns why a store has too little protection, and the remedy; None if it is safe."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "file" or (parts.scheme in REDIS_SCHEMES and is_loopback(host)):
        return None
    if not has_key:
        return (
            f"--kv-store is on {host}, where others may compute prompts from blocks that they read,"
            " and change answers by changing blocks; give --kv-store-key, which encrypts blocks, or"
            " --insecure in a network that you trust"
        )
    if not REDIS_SCHEMES.get(parts.scheme, True):
        return (
            f"--kv-store is asked on {host} in the clear, where others may read its password, and"
            f" remove blocks; give {parts.scheme}s://, or --insecure in a network that you trust"
        )
    if allows_http(parts.scheme) and _may_be_elsewhere_in_the_clear(parts.scheme):
        return (
            f"{_ALLOW_HTTP[parts.scheme]} lets --kv-store be asked in the clear, where others may"
            " read credentials, and remove blocks; leave it out, or give --insecure in a network"
            " that you trust"
        )
    return None


def allows_http(scheme: str) -> bool:
    """Returns whether the environment lets an object store be asked without TLS."""
    return os.environ.get(_ALLOW_HTTP.get(scheme, ""), "").lower() in ("1", "true")


def _may_be_elsewhere_in_the_clear(scheme: str) -> bool:
    named = [urlsplit(os.environ[name]) for name in _ENDPOINTS[scheme] if name in os.environ]
    if not named:
        return scheme == "gs"  # where the credentials may name a URL, too
    return any(one.scheme != "https" and not is_loopback(one.hostname or "") for one in named)
