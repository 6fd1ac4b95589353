"""API keys: the identity of a client, its tenant, models and limits.

The operator's file holds the SHA-256 of each key, never the key. Keys are random, so a plain hash
cannot be reversed. The file is checked in each call, so keys are added and removed without a
restart.
"""

import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from contract.errors import PermissionDenied, Unauthenticated

logger = logging.getLogger(__name__)

HEADER = "authorization"
MAX_HEADER_CHARS = 1024
_SUFFIXES = (".yaml", ".yml")

MAX_SHOWN_CHARS = 200
"""Characters of a key file's value that a message repeats."""
MAX_MESSAGE_CHARS = 1000
"""Characters of a message about a key file, whose names may be long."""
MAX_MERGED = 1 << 20
"""Fields of all mappings of a key file, plus one for each of its characters. A field that a
merge (`<<`) copies from a mapping counts again, because merges of merges multiply."""

_FIELDS = {"name", "sha256", "tenant", "models", "max_concurrent_requests", "tokens_per_minute"}

Metadata = Iterable[tuple[str, str | bytes]] | None


class KeyFileError(ValueError):
    """The file of keys cannot be used; the message gives the place and the reason in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """One entry of the file; a limit of None is unlimited."""

    name: str
    sha256: bytes
    tenant: str
    """Tenant that owns the key's requests, for fairness, limits and request ids."""
    models: frozenset[str] | None = None
    max_concurrent_requests: int | None = None
    tokens_per_minute: int | None = None

    def may_use(self, *names: str) -> bool:
        """Says whether the key may use a model, under one of its names."""
        return self.models is None or not self.models.isdisjoint(names)

    def check_model(self, *names: str) -> None:
        """Raises PermissionDenied unless the key may use the model, under one of its names."""
        if not self.may_use(*names):
            raise PermissionDenied(f"the API key {self.name} may not use {names[0]}")


class KeyRing:
    """The keys of a file, as it is now, and the keys given at the start."""

    def __init__(
        self,
        path: str | None,
        *,
        digests: Iterable[bytes] = (),
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        """Reads the file, if there is one. Raises KeyFileError.

        Args:
            digests: SHA-256 of keys without limits, in addition to those in the file.
            on_refused: called for each call without a known key.
        """
        self._on_refused = on_refused
        self._path = None if path is None else Path(path)
        self._unlimited = tuple(
            ApiKey(name=f"api-key-{number}", sha256=digest, tenant=f"api-key-{number}")
            for number, digest in enumerate(digests, start=1)
        )
        self._seen = self._state()
        self._keys = self._read()

    def authenticate(self, metadata: Metadata) -> ApiKey:
        """Returns the key of `authorization: Bearer KEY`. Raises Unauthenticated."""
        self._renew()
        try:
            return self._find(metadata)
        except Unauthenticated:
            self._on_refused()
            raise

    def _find(self, metadata: Metadata) -> ApiKey:
        shown = hashlib.sha256(_bearer(metadata)).digest()
        found = None
        for key in self._keys:  # all are compared, so that the time reveals nothing
            if hmac.compare_digest(key.sha256, shown):
                found = key
        if found is None:
            raise Unauthenticated("this API key is not known")
        return found

    def _renew(self) -> None:
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self._keys = self._read()
            logger.info("%d API keys read again from %s", len(self._keys), self._path)
        except KeyFileError as error:
            logger.error("%s; the keys from before stay in use", error)

    def _read(self) -> tuple[ApiKey, ...]:
        return (*self._unlimited, *(read_keys(self._path) if self._path else ()))

    def _state(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat() if self._path else None
        except OSError:
            return None
        return found and (found.st_mtime_ns, found.st_ino, found.st_size)


def _bearer(metadata: Metadata) -> bytes:
    shown = [value for name, value in metadata or () if name.lower() == HEADER]
    if len(shown) != 1:
        what = "no API key; send" if not shown else f"{len(shown)} values of {HEADER}; send one"
        raise Unauthenticated(f"{what} `{HEADER}: Bearer KEY`")
    value = shown[0].decode("latin-1") if isinstance(shown[0], bytes) else shown[0]
    scheme, _, key = value.partition(" ")
    if scheme.lower() != "bearer" or not key or len(value) > MAX_HEADER_CHARS:
        raise Unauthenticated(f"send `{HEADER}: Bearer KEY`")
    return key.strip().encode("utf-8", "replace")


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Reads a YAML list of keys. Raises KeyFileError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        # A text that is not a file name may be a key, which no message repeats.
        name = f" {path}" if path.suffix in _SUFFIXES else ""
        raise KeyFileError(
            f"cannot read api_keys{name}: there is no such file; api_key takes a key itself"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise KeyFileError(f"cannot read api_keys {path}: {reason}") from None
    return parse_keys(text, f"api_keys {path}")


def parse_keys(text: str, place: str) -> tuple[ApiKey, ...]:
    """Returns the keys of a YAML list. Raises KeyFileError that names the place."""
    try:
        entries = yaml.load(text, _Loader) or []
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # such as of the date 2026-13-45
        raise KeyFileError(f"cannot read {place}: {_cut(error)}") from None
    if not isinstance(entries, list):
        raise KeyFileError(f"{place}: expected a list of keys; see `signalbox keys create`")
    try:
        keys = tuple(_key(entry) for entry in entries)
    except ValueError as error:
        raise KeyFileError(f"{place}: {_cut(error)}") from None
    for field in ("name", "sha256"):
        if len({getattr(key, field) for key in keys}) < len(keys):
            raise KeyFileError(f"{place}: two keys have the same {field}")
    return keys


class _Loader(yaml.SafeLoader):
    """Loads as `yaml.safe_load`, with a bound on the fields that merges create."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._num_left = MAX_MERGED + len(text)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Counts the fields of a mapping; called before merged mappings are copied."""
        super().flatten_mapping(node)
        self._num_left -= len(node.value)
        if self._num_left < 0:
            raise yaml.constructor.ConstructorError(
                None, None, "merges (`<<`) make too many fields of it", node.start_mark
            )


def _key(entry: Any) -> ApiKey:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise ValueError("each key is a mapping with a name")
    name = entry["name"]
    if unknown := entry.keys() - _FIELDS:
        raise ValueError(f"{name} has the unknown field {min(map(str, unknown))}")
    tenant, models = entry.get("tenant", name), entry.get("models")
    if not isinstance(tenant, str):
        raise ValueError(f"the tenant of {name} is {_shown(tenant)}; it must be text")
    if models is not None and not isinstance(models, list):
        raise ValueError(f"the models of {name} must be a list")
    if any(isinstance(model, list | dict | set) for model in models or ()):  # aliases nest for ever
        raise ValueError(f"the models of {name} must be a list of names")
    return ApiKey(
        name=name,
        sha256=_digest(name, entry.get("sha256")),
        tenant=tenant,
        models=None if models is None else frozenset(map(str, models)),
        max_concurrent_requests=_positive(name, entry, "max_concurrent_requests"),
        tokens_per_minute=_positive(name, entry, "tokens_per_minute"),
    )


def _digest(name: str, text: Any) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except (TypeError, ValueError):
        digest = b""
    if len(digest) != hashlib.sha256().digest_size:
        raise ValueError(f"the sha256 of {name} must be 64 hexadecimal digits, in quotes")
    return digest


def _positive(name: str, entry: dict[str, Any], field: str) -> int | None:
    value = entry.get(field)
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"{field} of {name} is {_shown(value)}; it must be at least 1")
    return value


def _cut(error: Exception) -> str:
    """Returns an error's message in one line, cut, because the key file may have made it long."""
    told = str(error)[: MAX_MESSAGE_CHARS + 1]
    if len(told) > MAX_MESSAGE_CHARS:
        told = told[:MAX_MESSAGE_CHARS] + "..."
    return " ".join(told.split())


def _shown(value: Any) -> str:
    """Returns a value for a message; only the type of a container, because aliases multiply."""
    if isinstance(value, list | dict | set | tuple):
        return f"a {type(value).__name__}"
    return repr(value)[:MAX_SHOWN_CHARS]
