"""Stores that misbehave, and blocks for tests."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.store.block_store import StoreError
from signalbox_worker.kv.store.memory_store import MemoryStore

BLOCK_BYTES = 64


_PREFIX = b"a block "


def key_of(number: int) -> bytes:
    return _PREFIX + number.to_bytes(8, "big")


def number_of(key: bytes) -> int:
    return int.from_bytes(key[len(_PREFIX) :], "big")


def keys_of(*numbers: int) -> list[bytes]:
    return [key_of(number) for number in numbers]


def content_of(number: int, *, block_bytes: int = BLOCK_BYTES) -> bytes:
    return bytes((number * 31 + i) % 251 for i in range(block_bytes))


def filled(store: MemoryStore, *numbers: int, tenant: bytes = b"t") -> MemoryStore:
    for number in numbers:
        store.write(key_of(number), memoryview(content_of(number)), tenant)
    return store


class HangingStore(MemoryStore):
    """A store whose reads, writes and clears wait until the test lets them go."""

    def __init__(self, *, num_blocks: int = 8) -> None:
        super().__init__(block_bytes=BLOCK_BYTES, num_blocks=num_blocks)
        self.entered = threading.Semaphore(0)
        self._released: Future[None] = Future()
        self.hangs = False
        self.calls: list[str] = []

    def release(self) -> None:
        self._released.set_result(None)

    def find(self, keys: Sequence[bytes]) -> int:
        self.calls.append(f"find {number_of(keys[0])}")
        return super().find(keys)

    def read(self, key: bytes, into: memoryview) -> bool:
        self.calls.append(f"read {number_of(key)}")
        self._wait()
        return super().read(key, into)

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        self._wait()
        return super().write(key, data, tenant)

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        self._wait()
        super().clear(tenant)

    def _wait(self) -> None:
        if self.hangs:
            self.entered.release()
            self._released.result()


class FailingStore(MemoryStore):
    """A store that raises."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__(block_bytes=BLOCK_BYTES, num_blocks=8)
        self._error = error or StoreError("the device failed")

    def find(self, keys: Sequence[bytes]) -> int:
        raise self._error

    def read(self, key: bytes, into: memoryview) -> bool:
        raise self._error

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        raise self._error

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        raise self._error
