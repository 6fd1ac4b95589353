"""Groups of a model's layers by the tokens whose K and V they keep, and what they mean for tables.

A sequence has a block of each group for the same tokens, so its table has a row of blocks for each
`block_size` tokens, in the order of the groups. Where a group keeps none, the entry is `NO_BLOCK`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from signalbox_protos.common.v1 import common_pb2 as pb

NO_BLOCK = -1
"""Entry of a table where a group keeps no block: its tokens are behind the window, or have none
yet."""
_MAX_GROUPS = 64
"""Groups that a worker may announce."""
FULL, WINDOW = "full", "window"
"""Kinds of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers whose K and V lie in the same blocks, and are kept for the same tokens; see
    common.proto."""

    kind: str = FULL
    window: int = 0
    """Positions that a token sees, its own included; 0 of a full group."""
    layers: tuple[int, ...] = ()

    def __str__(self) -> str:
        kind = f"window of {self.window}" if self.window else self.kind
        return f"{kind} ({len(self.layers)} layers)" if self.layers else kind

    def first_block(self, num_tokens: int, *, block_size: int) -> int:
        """Returns the first block that the token behind so many sees, as an index of blocks."""
        return max(0, num_tokens - self.window + 1) // block_size if self.window else 0

    def most_blocks(self, num_blocks: int, *, block_size: int) -> int:
        """Returns the most blocks of so many that a sequence keeps while it computes a token at a
        time."""
        return min(num_blocks, -(-self.window // block_size) + 1) if self.window else num_blocks


FULL_GROUP = CacheGroup()
"""All layers of a model that keeps all tokens."""


def windows_of(groups: Sequence[CacheGroup]) -> list[tuple[int, CacheGroup]]:
    """Returns the groups that have a window, each behind the column of tables that is its own."""
    return [(column, group) for column, group in enumerate(groups) if group.window]


def check_groups(groups: Sequence[CacheGroup]) -> None:
    """Raises ValueError if a scheduler cannot keep the blocks of such groups."""
    if len(groups) > _MAX_GROUPS:
        raise ValueError(f"a worker has at most {_MAX_GROUPS} groups of layers")
    for group in groups:
        if group.kind not in (FULL, WINDOW):
            raise ValueError(f"a group of layers is {FULL} or {WINDOW}, not {group.kind[:40]!r}")
        if (group.window > 0) != (group.kind == WINDOW):
            raise ValueError(f"a {group.kind} group of layers has a window of {group.window}")


def describe_groups(groups: Sequence[CacheGroup]) -> str:
    """Returns the groups in words, those that are alike once: "full, 2 x window of 512"."""
    counts = Counter(map(str, groups))
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def encode_group(group: CacheGroup) -> pb.CacheGroup:
    return pb.CacheGroup(**asdict(group))


def decode_group(message: pb.CacheGroup) -> CacheGroup:
    return CacheGroup(kind=message.kind, window=message.window, layers=tuple(message.layers))
