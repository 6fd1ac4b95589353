"""The interface of a runner's two pools of KV blocks: for steps, and in RAM for swapped blocks."""

from collections.abc import Callable

from signalbox_contract.step import Step

_FAULT = "init_cache_engine comes first"


class Pools:
    """Moves whole blocks; the base class is that of a runner whose pools are not allocated."""

    @property
    def gpu_bytes(self) -> int:
        """Bytes of the pool for steps."""
        return 0

    @property
    def cpu_bytes(self) -> int:
        """Bytes of the pool in RAM."""
        return 0

    def apply(self, sections: Step) -> int:
        """Moves the blocks that a section names; returns the nanoseconds that this takes."""
        raise RuntimeError(_FAULT)

    def cpu_block(self, index: int) -> memoryview:
        """Returns the bytes of a block of the CPU pool."""
        raise RuntimeError(_FAULT)

    def copies_begun(self) -> Callable[[], None]:
        """Returns a function, for any thread, that waits until the swaps so far have ended."""
        raise RuntimeError(_FAULT)

    def close(self) -> None:
        """Waits for unfinished copies; the pools are not used afterwards."""


NO_POOLS = Pools()
