"""Stores of objects for tests."""

from itertools import count

from signalbox_worker.kv.shared.object_server import ObjectServer, is_end
from signalbox_worker.kv.shared.shared_store import Bypass, SharedStore
from signalbox_worker.kv.store_url import ObjectAddress, store_address
from tests.gpu_worker.kv.shared.redis_servers import IDENTITY, SECRET, Clock, make_seal
from tests.gpu_worker.kv.store.stores import key_of


def make_object_store(
    url: str,
    *,
    secret: bytes = SECRET,
    identity: bytes = IDENTITY,
    clock: Clock | None = None,
    read_s: float = 60.0,
) -> SharedStore:
    seal = make_seal(secret=secret, identity=identity)
    group, sealed_bytes = seal.names.group, seal.sealed_bytes
    address = store_address(url)
    assert isinstance(address, ObjectAddress)
    server = ObjectServer(address, group=group, sealed_bytes=sealed_bytes, read_s=read_s)
    return SharedStore(server, seal, Bypass("of the test", clock=clock or Clock()))


def ends(num_runs: int, *, start: int = 0) -> list[int]:
    """Returns the numbers of the blocks, from `start` on, with which runs end."""
    names = make_seal().names
    numbers = (number for number in count(start) if is_end(names.block(key_of(number))))
    return [next(numbers) for _ in range(num_runs)]
