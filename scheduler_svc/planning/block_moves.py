"""The block copies of a plan: those of swaps, of forks, and of the second tier."""

from dataclasses import dataclass, field

import numpy as np

from contract.sections.block_moves import NO_MOVES, BlockMapping, BlockMoves
from scheduler_svc.kv.block_allocator import BlockCopy


@dataclass(slots=True)
class PlannedMoves:
    """Copies of blocks that a step makes before it computes."""

    swap_out: list[BlockCopy] = field(default_factory=list)
    swap_in: list[BlockCopy] = field(default_factory=list)
    copy: list[BlockCopy] = field(default_factory=list)

    @property
    def counts(self) -> dict[str, int]:
        """Number of the blocks that are moved, under the names of statistics and spans."""
        return {
            "blocks_swapped_out": len(self.swap_out),
            "blocks_swapped_in": len(self.swap_in),
            "blocks_copied": len(self.copy),
        }

    def to_section(self) -> BlockMoves:
        """Returns the section of the step, which shares no list with the plan."""
        named = {"swap_out": self.swap_out, "swap_in": self.swap_in, "copy": self.copy}
        mappings = {name: _make_mapping(copies) for name, copies in named.items() if copies}
        return BlockMoves(**mappings) if mappings else NO_MOVES


def _make_mapping(copies: list[BlockCopy]) -> BlockMapping:
    src, dst = np.ascontiguousarray(np.array(copies, dtype=np.int32).T)
    return BlockMapping(src, dst)
