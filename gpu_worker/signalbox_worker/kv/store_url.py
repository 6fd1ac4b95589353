"""The address of a shared store, `--kv-store URL`: what is wrong with it, and where it leads.

A kind of store is a class of addresses here, which names the class of its server, and a row of
`STORES`. Nothing of a server is imported before it is made. The names in a query are those of
redis-py.
"""

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from signalbox_rpc.transport.tls import is_loopback

_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}
"""Variables of the environment that name where an object store is, as `obstore` reads them."""
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_DEFAULT_PORT = 6379


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAddress:
    """Address of a store, as a URL names it."""

    FORMS: ClassVar[str]
    """Pattern of URLs of this kind, for the help of `--kv-store`."""
    SERVER: ClassVar[tuple[str, str]]
    """Module of `kv.shared` and class that satisfies `BlockServer`; its first argument is this."""
    ENTRIES: ClassVar[str] = "objects"
    """Unit that a server counts in: objects, which have several blocks each, or blocks."""
    TAKES_PASSWORD: ClassVar[bool] = False
    REQUIREMENTS: ClassVar[str]
    """Advice for an operator whose calls fail."""

    url: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises ValueError if the URL names no store."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Returns the place, for the log."""
        return self.url.partition("?")[0]

    @property
    def parts(self) -> SplitResult:
        return urlsplit(self.url)

    def exposure(self, *, has_key: bool) -> str | None:
        """Returns why a store has too little protection, and the remedy; None if it is safe."""
        if has_key:
            return None
        return (
            f"--kv-store is on {self.parts.hostname}, where others may compute prompts from blocks"
            " that they read, and change answers by changing blocks; give --kv-store-key, which"
            " encrypts blocks, or --insecure in a network that you trust"
        )

    def check_exists(self) -> None:
        """Raises ValueError if there is nothing at a place of this machine."""

    def server(self, *, group: str, sealed_bytes: int, password: str | None = None) -> Any:
        """Makes the server. Raises ImportError or ValueError if that cannot be."""
        module, name = self.SERVER
        make = getattr(import_module(f"signalbox_worker.kv.shared.{module}"), name)
        options = {"password": password} if self.TAKES_PASSWORD else {}
        return make(self, group=group, sealed_bytes=sealed_bytes, **options)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress(StoreAddress):
    """A database of a server."""

    FORMS = (
        "redis://[USER@]HOST[:PORT][/DB] or valkey://, with TLS rediss:// or valkeys://, which"
        " take ?ssl_ca_certs=FILE"
    )
    SERVER = ("redis_server", "RedisServer")
    ENTRIES = "blocks"
    TAKES_PASSWORD = True
    REQUIREMENTS = (
        "that a server runs there, whether it takes TLS (rediss://), and the password"
        " (--kv-store-password)"
    )

    host: str
    port: int
    is_tls: bool
    db: int = 0
    username: str | None = None
    ssl_ca_certs: str | None = None
    """PEM file of authorities; None takes those of the system."""
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None

    @classmethod
    def parse(cls, url: str) -> Self:
        parts = urlsplit(url)
        if parts.password is not None:
            raise ValueError(
                "it must have no password, which other users would see; put it into a file, and"
                " give --kv-store-password"
            )
        query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
        is_tls = parts.scheme in ("rediss", "valkeys")
        if unknown := sorted(query.keys() - set(_TLS_FILES)) or sorted(query if not is_tls else ()):
            allowed = f"rediss:// takes {', '.join(_TLS_FILES)}"
            raise ValueError(f"{unknown[0]} is no part of it; {allowed}")
        if "ssl_keyfile" in query and "ssl_certfile" not in query:
            raise ValueError("ssl_keyfile goes with ssl_certfile; give both")
        db = parts.path.strip("/") or "0"
        if not parts.hostname or not db.isdecimal() or parts.fragment:
            raise ValueError("it must be redis://[USER@]HOST[:PORT][/NUMBER OF DATABASE]")
        return cls(
            url=url,
            host=parts.hostname,
            port=parts.port or _DEFAULT_PORT,
            is_tls=is_tls,
            db=int(db),
            username=unquote(parts.username) if parts.username else None,
            **query,
        )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def exposure(self, *, has_key: bool) -> str | None:
        if is_loopback(self.host):
            return None
        if not has_key or self.is_tls:
            return StoreAddress.exposure(self, has_key=has_key)
        return (
            f"--kv-store is asked on {self.host} in the clear, where others may read its password,"
            f" and remove blocks; give {self.parts.scheme}s://, or --insecure in a network that you"
            " trust"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectAddress(StoreAddress):
    """A bucket of an object store."""

    FORMS = "s3://, gs:// or az://BUCKET[/PREFIX]"
    SERVER = ("object_server", "ObjectServer")
    REQUIREMENTS = (
        "the bucket's name, and in the environment credentials, region and endpoint, such as"
        " AWS_ENDPOINT_URL"
    )

    @classmethod
    def parse(cls, url: str) -> Self:
        parts = urlsplit(url)
        if parts.query or parts.fragment or parts.username or parts.password is not None:
            raise ValueError(
                "it must be a bucket and a prefix alone; credentials and endpoint come from the"
                " environment, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL"
            )
        cls._check_place(parts)
        return cls(url=url)

    @classmethod
    def _check_place(cls, parts: SplitResult) -> None:
        if not parts.netloc:
            raise ValueError(f"it must be {parts.scheme}://BUCKET[/PREFIX]")

    @property
    def folder(self) -> Path | None:
        """The folder of this machine that holds the objects; None of a server."""
        return None

    @property
    def allows_http(self) -> bool:
        """True if the environment lets the store be asked without TLS."""
        allowed = os.environ.get(_ALLOW_HTTP.get(self.parts.scheme, ""), "")
        return allowed.lower() in ("1", "true")

    def exposure(self, *, has_key: bool) -> str | None:
        scheme = self.parts.scheme
        if not has_key or not (self.allows_http and _may_be_elsewhere_in_the_clear(scheme)):
            return StoreAddress.exposure(self, has_key=has_key)
        return (
            f"{_ALLOW_HTTP[scheme]} lets --kv-store be asked in the clear, where others may read"
            " credentials, and remove blocks; leave it out, or give --insecure in a network that"
            " you trust"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderAddress(ObjectAddress):
    """A folder with the objects."""

    FORMS = "file:///FOLDER"
    REQUIREMENTS = "that the folder's disk is mounted, and that you may read it"

    @classmethod
    def _check_place(cls, parts: SplitResult) -> None:
        if parts.netloc or parts.path.strip("/") == "":
            raise ValueError(f"it must be {parts.scheme}:///FOLDER, with three slashes")

    @property
    def folder(self) -> Path:
        return Path(unquote(self.parts.path))

    def exposure(self, *, has_key: bool) -> str | None:
        return None

    def check_exists(self) -> None:
        if not self.folder.exists():
            raise ValueError(f"there is no folder {self.folder}")


STORES: dict[str, type[StoreAddress]] = {
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys"), RedisAddress),
    **dict.fromkeys(("s3", "gs", "az"), ObjectAddress),
    "file": FolderAddress,
}
"""Kinds of stores by the scheme of their URLs."""


def store_address(url: str) -> StoreAddress:
    """Returns what a URL names. Raises ValueError if it names no store."""
    if (kind := STORES.get(urlsplit(url).scheme)) is None:
        known = ", ".join(f"{scheme}://" for scheme in STORES)
        raise ValueError(f"it must begin with one of {known}")
    return kind.parse(url)


def _may_be_elsewhere_in_the_clear(scheme: str) -> bool:
    named = [urlsplit(os.environ[name]) for name in _ENDPOINTS[scheme] if name in os.environ]
    if not named:
        return scheme == "gs"  # where the credentials may name a URL, too
    return any(one.scheme != "https" and not is_loopback(one.hostname or "") for one in named)
