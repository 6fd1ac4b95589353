"""The disk tier: a first token after a restart, its reads beside the disk's, and a large index.

    python -m benchmarks.kv_disk [MODEL] [--folder PATH] [--tokens N] [--index-blocks N]

Prompts of N tokens are served twice, so that their blocks are on the disk, and the engine starts
again: the time to the first token with the page cache warm, with the files' pages dropped, and of a
prompt that has to be computed. Reads of all blocks are then measured with dropped pages, beside
plain reads of the same bytes by as many threads. With --index-blocks an index of so many blocks is
made and opened: its bytes and reads by block, and the time of a start and of lookups.
"""

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from signalbox import LLM, SamplingParams
from signalbox_worker.kv.disk.disk_index import DiskIndex
from signalbox_worker.kv.disk.disk_store import DiskStore
from signalbox_worker.kv.disk.disk_tier import DiskTier
from signalbox_worker.kv.disk.index_schema import connect, prepare
from signalbox_worker.kv.store.store_threads import NUM_READERS, StoreThreads
from signalbox_worker.kv.store.transfer import Transfer

_MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
_IDENTITY = b"\1" * 32
_PROMPTS = 3
_MAX_ID = 95  # every model has as many tokens
_FIRST_TOKEN = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)


class FirstTokens(NamedTuple):
    """Medians of seconds to the first token."""

    computed: float
    warm: float
    dropped: float


class ReadRates(NamedTuple):
    """Bytes a second, with dropped pages."""

    plain: float
    tier: float


class IndexFigures(NamedTuple):
    """An index of many blocks."""

    num_blocks: int
    bytes_per_block: float
    start_s: float
    present_s: float
    """Seconds of a lookup of a prompt's blocks that are all there."""
    absent_s: float
    """Of one of which the first block is not."""
    num_statements: int
    """Statements of the lookup of present blocks."""


class Engine:
    """An engine with a disk tier."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        runner: Any = llm.llm_engine._core._worker._runner
        self.tier: DiskTier = runner.transfers.store.store
        self.tier.opened.wait()

    def first_token_s(self, prompt: Sequence[int]) -> float:
        start = time.perf_counter()
        self.llm.generate([{"prompt_token_ids": list(prompt)}], _FIRST_TOKEN, use_tqdm=False)
        return time.perf_counter() - start


@contextmanager
def engine(model: str, folder: Path, **options: Any) -> Iterator[Engine]:
    with LLM(model, kv_disk=str(folder), kv_disk_space=4, swap_space=1, **options) as llm:
        yield Engine(llm)


def prompts_of(num_tokens: int, *, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, _MAX_ID, num_tokens).tolist() for _ in range(_PROMPTS)]


def drop_pages(folder: Path) -> None:
    """Has the system write the files' pages and forget them."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # a journal that an index deleted meanwhile
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def measure_first_tokens(model: str, folder: Path, num_tokens: int, **options: Any) -> FirstTokens:
    prompts = prompts_of(num_tokens, seed=0)
    with engine(model, folder, **options) as first:
        _store(first, prompts)
    found = []
    for drops in (False, True):
        if drops:
            drop_pages(folder)
        with engine(model, folder, **options) as again:
            again.first_token_s(prompts_of(num_tokens, seed=1)[0][:64])  # the first steps are slow
            found.append(median(map(again.first_token_s, prompts)))
            computed = median(map(again.first_token_s, prompts_of(num_tokens, seed=2)))
    return FirstTokens(computed, *found)


def _store(first: Engine, prompts: list[list[int]]) -> None:
    """Asks until the blocks of all prompts are on the disk."""
    wanted = sum((len(prompt) - 1) // 16 for prompt in prompts)
    while first.tier.usage().num_blocks < wanted:
        for prompt in prompts:
            first.first_token_s(prompt)


def measure_reads(folder: Path, *, block_bytes: int, num_blocks: int) -> ReadRates:
    """Writes blocks, and reads them through the tier's threads and plainly, in turns."""
    from signalbox_worker.kv.disk.disk_space import WriteLimit
    from signalbox_worker.kv.disk.store_folder import StoreFolder

    store = DiskStore(
        StoreFolder(folder),
        identity=_IDENTITY,
        block_bytes=block_bytes,
        quota_bytes=2 * num_blocks * block_bytes + (1 << 28),
        limit=WriteLimit(bytes_per_day=1e15),
    )
    keys = [hashlib.sha256(i.to_bytes(8, "big")).digest()[:16] for i in range(num_blocks)]
    data = memoryview(os.urandom(block_bytes))
    for key in keys:
        store.write(key, data, b"")
    store.maintain()
    pool = np.zeros((num_blocks, block_bytes), dtype=np.uint8)
    threads = StoreThreads(store)
    (blocks,) = folder.glob("*.blocks")

    def read_by_tier() -> None:
        transfer = Transfer(1, keys, [memoryview(block) for block in pool])
        threads.read(transfer)
        while not transfer.is_ended:
            time.sleep(0.0005)
        if (num_read := transfer.result().num_blocks) != num_blocks:
            raise RuntimeError(f"{num_read} of {num_blocks} blocks were read")

    def read_plainly() -> None:
        fd = os.open(blocks, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        with ThreadPoolExecutor(NUM_READERS) as readers:
            list(
                readers.map(lambda i: os.pread(fd, block_bytes, i * block_bytes), range(num_blocks))
            )
        os.close(fd)

    times: dict[Callable[[], None], list[float]] = {read_plainly: [], read_by_tier: []}
    read_by_tier()  # takes the pool's pages
    for _ in range(3):
        for read, seconds in times.items():
            drop_pages(folder)
            start = time.perf_counter()
            read()
            seconds.append(time.perf_counter() - start)
    threads.close(wait_s=5)
    num_bytes = num_blocks * block_bytes
    return ReadRates(*(num_bytes / median(seconds) for seconds in times.values()))


def make_index(path: Path, num_blocks: int) -> None:
    """Makes an index with random keys, in their order, as fast as SQLite takes them."""
    connection = connect(str(path))
    prepare(connection, identity=_IDENTITY, block_bytes=1 << 18)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    connection.execute("DROP INDEX by_key")
    connection.execute("DROP INDEX by_use")
    connection.execute("INSERT INTO tenants VALUES (1, x'00', ?)", (num_blocks,))
    rows = ((slot, key_of(slot), key_of(-slot - 1), 1, 1 << 50) for slot in range(num_blocks))
    connection.executemany("INSERT INTO blocks VALUES (?, ?, ?, ?, ?)", rows)
    connection.execute("CREATE UNIQUE INDEX by_key ON blocks (key)")
    connection.execute("CREATE INDEX by_use ON blocks (tenant, used)")
    connection.execute("UPDATE state SET value = ? WHERE name = 'num_slots'", (num_blocks,))
    connection.execute("COMMIT")
    connection.close()


def key_of(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(9, "big", signed=True), digest_size=16).digest()


def measure_index(folder: Path, num_blocks: int, *, prompt_blocks: int = 128) -> IndexFigures:
    path = folder / "large.index"
    make_index(path, num_blocks)
    num_bytes = path.stat().st_size
    start = time.perf_counter()
    index = DiskIndex(path, identity=_IDENTITY, block_bytes=1 << 18)
    index.check(num_slots=num_blocks)
    start_s = time.perf_counter() - start
    statements: list[str] = []
    present = [key_of(n) for n in range(num_blocks // 2, num_blocks // 2 + prompt_blocks)]
    start = time.perf_counter()
    num_found = index.num_leading(present)
    present_s = time.perf_counter() - start
    if num_found != prompt_blocks:
        raise RuntimeError(f"{num_found} of {prompt_blocks} blocks were found")
    start = time.perf_counter()
    index.num_leading([key_of(num_blocks + n) for n in range(prompt_blocks)])
    absent_s = time.perf_counter() - start
    index._connection.reader.set_trace_callback(statements.append)
    index.num_leading(present)
    index.close()
    return IndexFigures(
        num_blocks, num_bytes / num_blocks, start_s, present_s, absent_s, len(statements)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=_MODEL)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--tokens", type=int, default=2040)
    parser.add_argument("--read-blocks", type=int, default=1000)
    parser.add_argument("--index-blocks", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        made = [Path(folder, name) for name in ("served", "read", "index")]
        for path in made:
            path.mkdir(mode=0o700)
        if args.index_blocks:
            print(measure_index(made[2], args.index_blocks))
        if args.tokens:
            first = measure_first_tokens(args.model, made[0], args.tokens)
            print(first, f"warm {first.computed / first.warm:.1f} times faster than computed")
        if args.read_blocks:
            rates = measure_reads(made[1], block_bytes=720 << 10, num_blocks=args.read_blocks)
            print(rates, f"{rates.tier / rates.plain:.2f} of plain reads")


if __name__ == "__main__":
    main()
