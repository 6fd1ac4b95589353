"""Sealed blocks in an object store, in runs: satisfies `BlockServer`.

Objects are `signalbox-kv/MODEL/NAME`. Credentials and endpoint come from the environment, as
`obstore` reads it. Nothing is evicted; the rules of the bucket expire objects.

A run of blocks is one object: fewer requests than blocks. Where a run ends is a property of names,
as one in `MEAN_BLOCKS` is an end: all workers divide a prefix alike, wherever in it a lookup
begins. An object has the name of the run's last block. It lists the names of its blocks, so that a
run with gaps, or of strange blocks, gives misses.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from signalbox_worker.kv.shared.block_names import NAME_BYTES, TENANT_BYTES
from signalbox_worker.kv.shared.block_seal import Sealed, tenant_in
from signalbox_worker.kv.shared.block_server import SCAN_S
from signalbox_worker.kv.store.block_store import StoreUsage
from signalbox_worker.kv.store.folder_owner import OWN_FOLDER, ownership_fault
from signalbox_worker.kv.store_url import ObjectAddress

MEAN_BLOCKS = 4
MAX_BLOCKS = 32
"""Blocks of an object; of a longer run the first ones are not kept, and so it is not found."""
LIST_BYTES = 1024
_MAGIC = b"SBRN0001"
_NAMES_AT = len(_MAGIC) + TENANT_BYTES


def is_end(name: bytes) -> bool:
    """Returns whether a run ends with this block."""
    return name[0] % MEAN_BLOCKS == 0


def runs_of(names: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Yields the runs that end within a chain; what comes after the last end is in none."""
    start = 0
    for index, name in enumerate(names):
        if is_end(name):
            yield names[start : index + 1]
            start = index + 1


def encode_list(names: Sequence[bytes], tenant: bytes) -> bytes:
    """Returns what an object begins with."""
    return (_MAGIC + tenant + b"".join(names)).ljust(LIST_BYTES, b"\0")


def decode_list(data: bytes) -> list[bytes]:
    """Returns the names of an object's blocks, in order; none if it is no object of ours."""
    if len(data) != LIST_BYTES or not data.startswith(_MAGIC):
        return []
    ends = range(_NAMES_AT, _NAMES_AT + MAX_BLOCKS * NAME_BYTES, NAME_BYTES)
    names = [data[at : at + NAME_BYTES] for at in ends]
    return [name for name in names if any(name)]


def tenant_of(data: bytes) -> bytes:
    """Returns the name of the tenant in a list."""
    return data[len(_MAGIC) : _NAMES_AT]


if TYPE_CHECKING:
    from obstore.store import ObjectStore

READ_S = 3.0
"""Longest time of a request that reads; it may be made twice."""
WRITE_S = 8.0
PREFIX = "signalbox-kv"
_NUM_REQUESTS = 16
"""Requests of lookups under way at once."""
_CHUNK_BYTES = 1 << 20
_MAX_PLACES = 1 << 16
_MAX_MESSAGE_CHARS = 200


class _Place(NamedTuple):
    """A block within an object."""

    end: bytes
    """Name of the object: that of the run's last block."""
    position: int


class ObjectServer:
    """The blocks of one model.

    Args:
        sealed_bytes: length of a sealed block.
        group: name of the model; empty is all of them, for clearing.
    """

    def __init__(
        self, address: ObjectAddress, *, sealed_bytes: int, group: str, read_s: float = READ_S
    ) -> None:
        self._sealed_bytes = sealed_bytes
        self._folder = f"{PREFIX}/{group}" if group else PREFIX
        self._private = address.folder
        self._reads = _opened(address, timeout_s=read_s, max_retries=1)
        self._writes = _opened(address, timeout_s=WRITE_S, max_retries=0)
        self._requests = ThreadPoolExecutor(_NUM_REQUESTS, "kv-objects")
        self._lock = threading.Lock()
        self._places: OrderedDict[bytes, _Place] = OrderedDict()
        """Places of blocks that were looked up."""
        self._run: OrderedDict[bytes, Sealed] = OrderedDict()
        """Blocks that wait for the end of their run."""
        self._tenant = b""
        self.num_answers = 0

    def count_leading(self, names: Sequence[bytes]) -> int:
        num_found, runs = 0, runs_of(names)
        while some := list(islice(runs, _NUM_REQUESTS)):
            lists = self._requests.map(self._names_in, [run[-1] for run in some])
            for run, there in zip(some, list(lists), strict=True):
                for name in run:
                    if name not in there:
                        return num_found
                    self._note(name, _Place(run[-1], there.index(name)))
                    num_found += 1
        return num_found

    def read(self, name: bytes) -> Sealed | None:
        with self._lock:
            place = self._places.get(name)
        if place is None:
            return None
        start = LIST_BYTES + place.position * self._sealed_bytes
        try:
            data, _ = self._range(self._path(place.end), start, self._sealed_bytes)
        except FileNotFoundError:
            self._forget(place.end)
            return None
        return data

    def write(self, name: bytes, sealed: Sealed) -> None:
        """Keeps a block until the run that it belongs to ends, which is written then."""
        with self._lock:
            if (tenant := tenant_in(sealed)) != self._tenant:
                self._tenant = tenant
                self._run.clear()
            self._run[name] = sealed
            if len(self._run) > MAX_BLOCKS:
                self._run.popitem(last=False)
            if not is_end(name):
                return
            run = dict(self._run)
            self._run.clear()
        if not run.keys() <= set(self._names_in(name)):
            self._check_folder()
            with self._asking():
                content = b"".join((encode_list(list(run), tenant), *run.values()))
                obstore.put(self._writes, self._path(name), content, use_multipart=False)

    def remove(self, name: bytes) -> None:
        with self._lock:
            place = self._places.get(name)
        if place is not None:
            self._forget(place.end)
            self._delete([self._path(place.end)])

    def clear(self, tenant: bytes | None) -> int:
        with self._lock:
            self._run.clear()
            self._places.clear()
        num_removed = 0
        for found in self._objects():
            paths = [path for path, _ in found]
            if tenant is not None:
                both = zip(paths, list(self._requests.map(self._list, paths)), strict=True)
                paths = [path for path, (data, _) in both if tenant_of(data) == tenant]
            if paths:
                self._delete(paths)
            num_removed += len(paths)
        return num_removed

    def sizes(self) -> Iterator[tuple[str, int]]:
        for found in self._objects():
            for path, num_bytes in found:
                yield path.split("/")[1], num_bytes

    def usage(self) -> StoreUsage:
        return StoreUsage(0, 0, 0)

    def close(self) -> None:
        self._requests.shutdown(wait=False, cancel_futures=True)

    def _delete(self, paths: list[str]) -> None:
        try:
            with self._asking():
                obstore.delete(self._writes, paths)
        except FileNotFoundError:  # another worker has removed one; those after it may be there
            for path in paths if len(paths) > 1 else ():
                self._delete([path])

    def _note(self, name: bytes, place: _Place) -> None:
        with self._lock:
            self._places[name] = place
            self._places.move_to_end(name)
            if len(self._places) > _MAX_PLACES:
                self._places.popitem(last=False)

    def _forget(self, end: bytes) -> None:
        with self._lock:
            for name in [name for name, place in self._places.items() if place.end == end]:
                del self._places[name]

    def _objects(self) -> Iterator[list[tuple[str, int]]]:
        """Yields paths and sizes. Raises OSError, also if what is no object store sends an empty
        list: to the client any page in XML is one."""
        ends_at, is_empty = time.monotonic() + SCAN_S, True
        with self._asking():
            for found in obstore.list(self._writes, prefix=self._folder, chunk_size=1000):
                if time.monotonic() > ends_at:
                    raise TimeoutError("the store's list of objects does not end")
                is_empty = False
                yield [(one["path"], one["size"]) for one in found]
        if is_empty and self._list(f"{self._folder}/absent")[1]:
            raise ConnectionError("it is no object store: an object is there that nothing wrote")

    def _names_in(self, end: bytes) -> list[bytes]:
        """Returns the blocks of an object; none if it is not as long as it says."""
        data, size = self._list(self._path(end))
        names = decode_list(data)
        return names if size == LIST_BYTES + len(names) * self._sealed_bytes else []

    def _list(self, path: str) -> tuple[bytes, int]:
        """Returns what an object begins with, and its length; nothing if it is not there."""
        try:
            data, size = self._range(path, 0, LIST_BYTES)
        except FileNotFoundError:
            return b"", 0
        return bytes(data), size

    def _range(self, path: str, start: int, length: int) -> tuple[bytearray, int]:
        """Returns a part of an object, shorter if that ends before, and the object's length.

        Raises OSError, also if more comes than was asked for.
        """
        self._check_folder()
        data = bytearray()
        try:
            with self._asking():
                found = obstore.get(self._reads, path, options={"range": (start, start + length)})
                for part in found.stream(min_chunk_size=_CHUNK_BYTES):
                    data += part
                    if len(data) > length:
                        raise ConnectionError("an answer is longer than what was asked for")
                return data, found.meta["size"]
        except _RangeError:
            return bytearray(), 0

    def _check_folder(self) -> None:
        """Raises OSError if others may use the folder of the store, as it is not the one that was
        opened: it may have been deleted, or its file system be mounted no more."""
        if self._private is not None:
            try:
                private_folder(self._private)
            except ValueError as error:
                raise PermissionError(str(error)) from None

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Counts an answer. Raises an error of the client as OSError; FileNotFoundError if there is
        no such object."""
        try:
            yield
        except BaseError as error:
            text = _in_one_line(error)
            if "range was invalid" in text or " 416 " in text:
                self._count_answer()
                raise _RangeError(text) from error
            raise ConnectionError(text) from error
        except FileNotFoundError:
            self._count_answer()
            raise
        self._count_answer()

    def _count_answer(self) -> None:
        with self._lock:
            self.num_answers += 1

    def _path(self, end: bytes) -> str:
        return f"{self._folder}/{end.hex()}"


def _opened(address: ObjectAddress, *, timeout_s: float, max_retries: int) -> "ObjectStore":
    if address.folder is not None:
        return LocalStore(private_folder(address.folder))
    try:
        return from_url(
            address.url,
            client_options={
                "connect_timeout": timedelta(seconds=1),
                "timeout": timedelta(seconds=timeout_s),
                # Our options replace the environment's.
                "allow_http": address.allows_http,
            },
            retry_config={
                "max_retries": max_retries,
                "retry_timeout": timedelta(seconds=timeout_s),
                "backoff": {"init_backoff": timedelta(milliseconds=50)},
            },
        )
    except BaseError as error:
        raise ValueError(f"--kv-store {address} cannot be used: {_in_one_line(error)}") from None


def private_folder(path: Path) -> Path:
    """Makes a folder for its user alone, or checks that it is. Raises ValueError."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be made or opened as a folder for KV blocks: {error.strerror}; give a"
            " folder whose parent is there"
        ) from None
    if fault := ownership_fault(path, path.stat()):
        raise ValueError(f"{fault}; {OWN_FOLDER}")
    return path


class _RangeError(OSError):
    """An object ends before a range begins."""


def _in_one_line(error: BaseError) -> str:
    text = " ".join(str(error).partition("\n\nDebug source")[0].split())
    return text[:_MAX_MESSAGE_CHARS]
