"""API keys: the identity of a client, its tenant, models and limits.

The operator's file holds the SHA-256 of each key, never the key. Keys are random, so a plain hash
cannot be reversed, and how long a look-up takes says nothing of a key. Each call looks whether the
file has changed, so keys are added and removed without a restart; calls after a change wait until a
process has read it.
"""

import asyncio
import errno
import hashlib
import json
import logging
import signal
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from signalbox_contract.errors import PermissionDenied, Unauthenticated
from signalbox_router.limits import key_file
from signalbox_router.limits.key_file import DIGEST_BYTES, KeyFileError, State
from signalbox_rpc.lifetime.limited_program import ProgramLimits, command

logger = logging.getLogger(__name__)

HEADER = "authorization"
PLAIN_HEADER = "x-api-key"
"""Header of Anthropic's clients, with the key alone; `authorization` precedes it."""
MAX_HEADER_CHARS = 1024
WALL_LIMIT_S = 120.0
"""Seconds in which a changed file is read on a busy machine."""
_LIMITS = ProgramLimits(
    cpu_s=key_file.CPU_LIMIT_S, memory_bytes=key_file.MEMORY_LIMIT_BYTES, ends_with_input=True
)
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
"""Ends of a reader that no file causes; its limit of CPU time sends SIGXCPU first."""
MAX_MADE = 4096
"""Keys of a table that are kept as objects."""

Metadata = Iterable[tuple[str, str | bytes]] | None


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
    operator: bool = False
    """True if it also opens the calls of operations.v1."""

    def may_use(self, *names: str) -> bool:
        """Says whether the key may use a model, under one of its names."""
        return self.models is None or not self.models.isdisjoint(names)

    def check_model(self, *names: str) -> None:
        """Raises PermissionDenied unless the key may use the model, under one of its names."""
        if not self.may_use(*names):
            raise PermissionDenied(f"the API key {self.name} may not use {names[0]}")


class KeyTable:
    """Keys as `key_file.pack` writes them, found by digest; few of them are Python objects."""

    def __init__(self, data: bytes, num_keys: int) -> None:
        ends_at = num_keys * DIGEST_BYTES
        self._texts_at = ends_at + (num_keys + 1) * 8
        self._data = data
        self._ends = memoryview(data)[ends_at : self._texts_at].cast("Q")
        self._made: dict[bytes, ApiKey] = {}
        self.num_keys = num_keys

    def find(self, digest: bytes) -> ApiKey | None:
        """Returns the key with this SHA-256."""
        if (made := self._made.get(digest)) is not None:
            return made
        index = bisect_left(range(self.num_keys), digest, key=self._digest)
        if index == self.num_keys or self._digest(index) != digest:
            return None
        if len(self._made) >= MAX_MADE:
            self._made.clear()
        start, end = (self._texts_at + self._ends[index + one] for one in (0, 1))
        self._made[digest] = key = _key(digest, json.loads(self._data[start:end]))
        return key

    def _digest(self, index: int) -> bytes:
        return self._data[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]


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
        self._unlimited = {
            digest: ApiKey(name=f"api-key-{number}", sha256=digest, tenant=f"api-key-{number}")
            for number, digest in enumerate(digests, start=1)
        }
        entries, self._seen = [], None
        if self._path is not None:
            text, self._seen = key_file.read_file(self._path)
            entries = key_file.parse(text, f"api_keys {path}")
        self._table = KeyTable(key_file.pack(entries), len(entries))
        self._loading: asyncio.Task[None] | None = None

    async def authenticate(self, metadata: Metadata) -> ApiKey:
        """Returns the key of `authorization: Bearer KEY` or `x-api-key: KEY`. Raises
        Unauthenticated."""
        if self._state() != self._seen:
            await self._renew()
        return self.find(metadata)

    def find(self, metadata: Metadata) -> ApiKey:
        """Returns the key as the file was when the call came in. Raises Unauthenticated."""
        try:
            digest = hashlib.sha256(_key_in(metadata)).digest()
            if (key := self._table.find(digest) or self._unlimited.get(digest)) is None:
                raise Unauthenticated("this API key is not known")
        except Unauthenticated:
            self._on_refused()
            raise
        return key

    async def _renew(self) -> None:
        """Returns when the file has been read as it is now."""
        if self._loading is not None:  # it may have read the file as it was before
            await asyncio.shield(self._loading)
            if self._state() == self._seen:
                return
        if self._loading is None:
            self._loading = asyncio.create_task(self._load(), name="API keys")
        await asyncio.shield(self._loading)

    async def _load(self) -> None:
        assert self._path is not None
        state = self._state()
        try:
            table, self._seen = await _read_beside(self._path)
            self._table = table
            logger.info("%d API keys read again from %s", table.num_keys, self._path)
        except KeyFileError as error:
            self._seen = error.state or state
            logger.error("%s; the keys from before stay in use", error)
        except OSError as error:  # of no process that reads; the next call tries again
            logger.error("cannot read api_keys %s: %s", self._path, error.strerror)
        finally:
            self._loading = None

    def _state(self) -> State | None:
        try:
            return key_file.state_of(self._path.stat()) if self._path else None
        except OSError:
            return None


async def _read_beside(path: Path) -> tuple[KeyTable, State | None]:
    """Reads the file in a process. Raises KeyFileError, or OSError if there is none, or it was
    killed."""
    process = await asyncio.create_subprocess_exec(
        *command(key_file.__name__, str(path), limits=_LIMITS),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(WALL_LIMIT_S):
            answer = await process.stdout.read()
            status = await process.wait()
    except TimeoutError:
        answer, status = b"", 0
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status in _KILLED:
        raise ChildProcessError(errno.ECHILD, "the process that reads it was killed")
    line, _, table = (b"" if status else answer).partition(b"\n")
    head = json.loads(line or b"{}")
    if "num_keys" not in head:
        told = head.get("error") or f"cannot read api_keys {path}: it takes too much time or memory"
        raise KeyFileError(told, _state_in(head))
    return KeyTable(table, head["num_keys"]), _state_in(head)


def _state_in(head: dict[str, Any]) -> State | None:
    return tuple(head["state"]) if "state" in head else None


def _key_in(metadata: Metadata) -> bytes:
    headers: dict[str, list[str]] = {HEADER: [], PLAIN_HEADER: []}
    for name, value in metadata or ():
        if (shown := headers.get(name.lower())) is not None:
            shown.append(value.decode("latin-1") if isinstance(value, bytes) else value)
    name = HEADER if headers[HEADER] else PLAIN_HEADER
    values = headers[name]
    if len(values) != 1:
        what = f"{len(values)} values of {name}; send one" if values else "no API key; send"
        raise Unauthenticated(f"{what} `{HEADER}: Bearer KEY`")
    scheme, _, key = values[0].partition(" ") if name == HEADER else ("bearer", "", values[0])
    if scheme.lower() != "bearer" or not key or len(values[0]) > MAX_HEADER_CHARS:
        raise Unauthenticated(f"send `{HEADER}: Bearer KEY`")
    return key.strip().encode("utf-8", "replace")


def parse_keys(text: str, place: str) -> tuple[ApiKey, ...]:
    """Returns the keys of a YAML list. Raises KeyFileError that names the place."""
    entries = key_file.parse(text, place)
    return tuple(_key(entry.pop("sha256"), entry) for entry in entries)


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Returns the keys of a file. Raises KeyFileError."""
    text, _ = key_file.read_file(path)
    return parse_keys(text, f"api_keys {path}")


def _key(digest: bytes, fields: dict[str, Any]) -> ApiKey:
    models = fields.pop("models")
    named = None if models is None else frozenset(models)
    return ApiKey(sha256=digest, models=named, **fields)
