"""Groups of a model's layers by what they keep of a sequence, and what that means for tables.

A sequence has a block of each group for the same tokens, so its table has a row of blocks for each
`block_size` tokens, in the order of the groups. Where a group keeps none, the entry is `NO_BLOCK`.
Recurrent layers keep states: an entry is then the head, the first block, of the state behind the
last computed token of its row; see worker.proto.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from signalbox_contract.wording import counted
from signalbox_protos.common.v1 import common_pb2 as pb

NO_BLOCK = -1
"""Entry of a table where a group keeps no block: its tokens are behind the window, or have none
yet, or no state is kept there."""
_MAX_GROUPS = 64
"""Groups that a worker may announce."""
_MAX_STATE_BLOCKS = 1 << 16
"""Blocks that a state may take."""
FULL, WINDOW, STATE = "full", "window", "state"
"""Kinds of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers whose K and V lie in the same blocks, and are kept for the same tokens, or recurrent
    layers; see common.proto."""

    kind: str = FULL
    window: int = 0
    """Positions that a token sees, its own included; 0 of a full group."""
    layers: tuple[int, ...] = ()
    state_blocks: int = 0
    """Blocks that one state of recurrent layers takes; 0 of other groups."""

    def __str__(self) -> str:
        kind = f"window of {self.window}" if self.window else self.kind
        if self.state_blocks:
            kind = f"states of {counted(self.state_blocks, 'block')}"
        return f"{kind} ({counted(len(self.layers), 'layer')})" if self.layers else kind

    def first_block(self, num_tokens: int, *, block_size: int) -> int:
        """Returns the first block that the token behind so many sees, as an index of blocks; of
        states the one that it continues."""
        if self.state_blocks:
            return max(0, num_tokens - 1) // block_size
        return max(0, num_tokens - self.window + 1) // block_size if self.window else 0

    def most_blocks(self, num_blocks: int, *, block_size: int) -> int:
        """Returns the most blocks that a sequence of so many rows keeps while it computes a token
        at a time: of states the running one, and the one at the boundary before."""
        if self.state_blocks:
            return min(num_blocks, 2) * self.state_blocks
        return min(num_blocks, -(-self.window // block_size) + 1) if self.window else num_blocks


FULL_GROUP = CacheGroup()
"""All layers of a model that keeps all tokens."""


def keep_all(groups: Sequence[CacheGroup]) -> bool:
    """Says whether all groups keep the blocks of all tokens."""
    return all(group.kind == FULL for group in groups)


def num_token_groups(groups: Sequence[CacheGroup]) -> int:
    """Returns how many groups have a block for each `block_size` tokens."""
    return sum(not group.state_blocks for group in groups)


def num_tokens_in(num_blocks: int, groups: Sequence[CacheGroup], *, block_size: int) -> int:
    """Returns the tokens for which so many blocks of groups that keep tokens are."""
    return num_blocks * block_size // num_token_groups(groups)


def state_group(groups: Sequence[CacheGroup]) -> CacheGroup | None:
    """Returns the group of recurrent layers, which is the last one, if there is one."""
    return groups[-1] if groups[-1].state_blocks else None


def check_groups(groups: Sequence[CacheGroup]) -> None:
    """Raises ValueError if a scheduler cannot keep the blocks of such groups."""
    if len(groups) > _MAX_GROUPS:
        raise ValueError(f"a worker has at most {_MAX_GROUPS} groups of layers")
    for group in groups:
        if group.kind not in (FULL, WINDOW, STATE):
            kinds = f"{FULL}, {WINDOW} or {STATE}"
            raise ValueError(f"a group of layers is {kinds}, not {group.kind[:40]!r}")
        if (group.window > 0) != (group.kind == WINDOW):
            raise ValueError(f"a {group.kind} group of layers has a window of {group.window}")
        num_blocks = group.state_blocks
        if (num_blocks > 0) != (group.kind == STATE) or num_blocks > _MAX_STATE_BLOCKS:
            raise ValueError(f"a {group.kind} group of layers has states of {num_blocks} blocks")
    if any(group.state_blocks for group in groups[:-1]):
        raise ValueError("a group of states is the only one, and behind all other groups of layers")
    if len(groups) == 1 and groups[0].state_blocks:
        raise ValueError("a group of states is beside a group of layers with attention")


def is_one_full_group(groups: Sequence[CacheGroup]) -> bool:
    """Says whether one group keeps all tokens, as of most models."""
    return [group.kind for group in groups] == [FULL]


def describe_groups(groups: Sequence[CacheGroup]) -> str:
    """Returns the groups in words, those that are alike once: "full, 2 x window of 512"."""
    counts = Counter(map(str, groups))
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())


def encode_group(group: CacheGroup) -> pb.CacheGroup:
    return pb.CacheGroup(**asdict(group))


def decode_group(message: pb.CacheGroup) -> CacheGroup:
    return CacheGroup(
        kind=message.kind,
        window=message.window,
        layers=tuple(message.layers),
        state_blocks=message.state_blocks,
    )
