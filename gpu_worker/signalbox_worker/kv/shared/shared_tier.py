"""The shared tier of a worker: opens a store on a server of the operator's.

Nothing is asked of the server before blocks are looked up, so that a worker starts without it.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from signalbox_contract.model import StoreCapacity
from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.config import ModelError
from signalbox_worker.kv.shared.block_seal import BlockSeal
from signalbox_worker.kv.shared.block_server import BlockServer
from signalbox_worker.kv.shared.secret_files import read_key, read_password
from signalbox_worker.kv.shared.shared_store import Bypass, SharedStore
from signalbox_worker.kv.store.block_store import StoreError
from signalbox_worker.kv.store.late_store import LateStore
from signalbox_worker.kv.store_config import STORE_WRITE_BYTES_PER_S, SharedConfig
from signalbox_worker.kv.store_url import StoreAddress, store_address

logger = logging.getLogger(__name__)


class SharedTier(LateStore[SharedStore]):
    """Satisfies `BlockStore`."""

    def __init__(self, config: SharedConfig, *, block_bytes: int, num_ranks: int = 1) -> None:
        """Raises SecretFileError if the key or the password cannot be read.

        Args:
            num_ranks: ranks of the worker, which divide its writes.
        """
        assert config.kv_store is not None
        super().__init__(block_bytes=block_bytes, name="shared")
        self._address = store_address(config.kv_store)
        self._secret, self._password = _secrets(config)
        most = STORE_WRITE_BYTES_PER_S // num_ranks
        self.capacity = StoreCapacity(kind="shared", max_write_bytes_per_s=most)

    def open(self) -> SharedStore:
        seal = BlockSeal(self._secret, identity=self.identity({}), block_bytes=self._block_bytes)
        group, place = seal.names.group, str(self._address)
        server = make_server(
            self._address, group=group, sealed_bytes=seal.sealed_bytes, password=self._password
        )
        logger.info("shared tier of KV blocks: %s, blocks of model %s", place, group[:8])
        return SharedStore(server, seal, Bypass(place))

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        """Ends when the server is cleared: no scheduler has another worker repeat a clear that one
        has confirmed. Before the tier is open it waits for that."""
        super().clear(tenant, mark)
        self.opened.wait()
        if (store := self._store) is None:
            raise StoreError("the shared tier is not open")
        store.check_cleared()

    def _clear(self, store: SharedStore, tenant: bytes | None, mark: ClearMark | None) -> None:
        with suppress(StoreError):  # the store repeats it
            store.clear(tenant, mark)


def check_config(config: SharedConfig) -> None:
    """Raises ModelError or ValueError if the store that is named, or a file, cannot be used.

    Asks no server; it comes before a model is loaded, which may take minutes.
    """
    assert config.kv_store is not None
    secret, _ = _secrets(config)
    with _naming_the_extra("--kv-store-key"):
        BlockSeal(secret, identity=b"", block_bytes=0)
    make_server(store_address(config.kv_store)).close()


def _secrets(config: SharedConfig) -> tuple[bytes, str | None]:
    """Returns the key, empty for none, and the password. Raises SecretFileError."""
    key, password = config.kv_store_key, config.kv_store_password
    return (
        b"" if key is None else read_key(key),
        None if password is None else read_password(password),
    )


def make_server(
    address: StoreAddress, *, group: str = "", sealed_bytes: int = 0, password: str | None = None
) -> BlockServer:
    """Returns the server at an address. Raises ModelError or ValueError if it cannot be."""
    with _naming_the_extra(f"--kv-store {address}"):
        server: BlockServer = address.server(
            group=group, sealed_bytes=sealed_bytes, password=password
        )
    return server


@contextmanager
def _naming_the_extra(setting: str) -> Iterator[None]:
    """Raises ModelError if a package that is imported cannot be."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise ModelError(
            f"{setting} needs {package}, which is not installed, or too old;"
            " pip install 'signalbox-serving[kv-store]'"
        ) from None
