"""Runs of blocks, each kept as one object: fewer requests than blocks.

Where a run ends is a property of names, as one in `MEAN_BLOCKS` is an end: all workers divide a
prefix alike, wherever in it a lookup begins. An object has the name of the run's last block. It
lists the names of its blocks, so that a run with gaps, or of strange blocks, gives misses.
"""

from collections.abc import Iterator, Sequence

from signalbox_worker.kv_shared.block_names import NAME_BYTES, TENANT_BYTES

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
