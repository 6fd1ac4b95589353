"""Lists the blocks of a shared store by model, and removes them."""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from signalbox_worker.kv.shared.block_names import NAME_BYTES, BlockNames
from signalbox_worker.kv.shared.block_server import BlockServer
from signalbox_worker.kv.shared.secret_files import read_key, read_password
from signalbox_worker.kv.shared.shared_tier import make_server
from signalbox_worker.kv.store_url import StoreAddress, store_address

_NAME = re.compile(f"[0-9a-f]{{{2 * NAME_BYTES}}}")


class StoredGroup(NamedTuple):
    """The blocks of one model."""

    name: str
    """Name that workers log when they start; "unknown" for entries that no worker has named."""
    num_entries: int
    """Blocks, or objects of several blocks."""
    num_bytes: int


class StoreAccess(NamedTuple):
    """A store, and what it takes to ask it.

    Methods raise ValueError, or OSError with the store's place and what to check.
    """

    url: str
    key: Path | None = None
    password: Path | None = None
    is_trusted: bool = False
    """True if the network may see what is asked."""

    @property
    def entries(self) -> str:
        """Returns what is counted: blocks, or objects, which have several each."""
        return self._address.ENTRIES

    def groups(self) -> list[StoredGroup]:
        """Returns the models, the one with most bytes first."""
        counts: dict[str, tuple[int, int]] = {}
        with self._asking() as server:
            for name, num_bytes in server.sizes():
                group = name if _NAME.fullmatch(name) else "unknown"
                count, total = counts.get(group, (0, 0))
                counts[group] = count + 1, total + num_bytes
        found = [StoredGroup(name, *both) for name, both in counts.items()]
        return sorted(found, key=lambda one: -one.num_bytes)

    def clear(self, tenant: str | None) -> int:
        """Removes the blocks of a tenant, by the name that this key gives it, or all.

        Returns the number of blocks or objects that were removed.
        """
        secret = b"" if self.key is None else read_key(self.key)
        names = BlockNames(secret, identity=b"")
        name = None if tenant is None else names.tenant(tenant.encode())
        with self._asking() as server:
            num_removed = server.clear(name)
            if name is None or num_removed or self.key is not None or not any(server.sizes()):
                return num_removed
        raise ValueError(
            f"nothing was cleared: what is there is not of tenant {tenant!r}, or its workers have a"
            " key, without which it has another name; give their --kv-store-key"
        )

    @contextmanager
    def _asking(self) -> Iterator[BlockServer]:
        address = self._address
        with closing(self._server(address)) as server:
            try:
                yield server
            except OSError as error:
                reason = error.strerror or error
                raise OSError(
                    f"the KV store at {address} failed: {reason}; check {address.REQUIREMENTS}"
                ) from error

    @property
    def _address(self) -> StoreAddress:
        try:
            return store_address(self.url)
        except ValueError as error:
            raise ValueError(f"PLACE is no URL of a store: {error}") from None

    def _server(self, address: StoreAddress) -> BlockServer:
        address.check_exists()
        reason = address.exposure(has_key=True)
        if reason is not None and not self.is_trusted:
            raise ValueError(reason)
        password = None if self.password is None else read_password(self.password)
        return make_server(address, password=password)
