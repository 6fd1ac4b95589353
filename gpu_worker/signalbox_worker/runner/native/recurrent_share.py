"""Cuts the share of a tensor-parallel rank out of recurrent layers.

Heads are divided, each with the head of keys or the group that it reads. A convolution without
heads is divided as the inner columns of a feed-forward are.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from signalbox_worker.config import ModelError
from signalbox_worker.device.division import divided, first_kv_head, kv_heads_per_rank
from signalbox_worker.models.recurrence import DeltaRule, Mamba2, Recurrence

Rows = tuple[range, ...]
"""Rows of a tensor, as runs of neighbours."""


class RecurrentShare(NamedTuple):
    """Share of one rank in each recurrent layer."""

    sizes: Recurrence
    """Sizes of the layer that the rank computes."""
    rows: Mapping[str, Rows]
    """Rows of the tensors that are divided, by the names of their modules within the layer."""
    columns: range
    """Columns of the last matrix."""


@cache
def recurrent_share(kept: Recurrence, rank: int, size: int, *, channels: range) -> RecurrentShare:
    """Returns the share of a rank. Raises ModelError if heads cannot be divided.

    Args:
        channels: the rank's, of a convolution without heads.
    """
    match kept:
        case DeltaRule():
            return _of_delta_rule(kept, rank, size)
        case Mamba2():
            return _of_mamba(kept, rank, size)
    sizes = replace(kept, channels=len(channels))
    rows = {"in_proj": _parts([kept.channels] * 3, [channels] * 3), "conv1d": (channels,)}
    return RecurrentShare(sizes, rows, channels)


def _of_delta_rule(kept: DeltaRule, rank: int, size: int) -> RecurrentShare:
    heads = _share(kept.num_value_heads, "linear_num_value_heads", rank, size)
    key_heads = _keys_in_turn(kept, heads) if kept.heads_in_turn else _keys(kept, rank, size)
    keys = _times(key_heads, kept.key_size)
    values = _times(heads, kept.value_size)
    qkv = _parts([kept.key_columns, kept.key_columns, kept.value_columns], [keys, keys, values])
    sizes = replace(
        kept,
        channels=sum(map(len, qkv)),
        num_key_heads=len(key_heads),
        num_value_heads=len(heads),
    )
    of_heads = dict.fromkeys(("in_proj_a", "in_proj_b", "A", "dt_bias"), (heads,))
    rows = {"in_proj_qkv": qkv, "conv1d": qkv, "in_proj_z": (values,), **of_heads}
    return RecurrentShare(sizes, rows, values)


def _keys(kept: DeltaRule, rank: int, size: int) -> range:
    """Returns the heads of keys that a rank's value heads read, of which neighbours read one."""
    num_keys = kv_heads_per_rank(kept.num_key_heads, size, what="linear_num_key_heads")
    first = first_kv_head(kept.num_key_heads, size, rank)
    return range(first, first + num_keys)


def _keys_in_turn(kept: DeltaRule, heads: range) -> range:
    """Returns those that value heads in turn read. Raises ModelError if they are no run of heads
    that the rank's value heads would take in turn, too."""
    num_keys = kept.num_key_heads
    if len(heads) % num_keys == 0:
        return range(num_keys)
    if num_keys % len(heads):
        raise ModelError(
            f"linear_num_key_heads {num_keys} is neither a multiple nor a part of the "
            f"{len(heads)} value heads of a rank, which read them in turn"
        )
    first = heads.start % num_keys
    return range(first, first + len(heads))


def _of_mamba(kept: Mamba2, rank: int, size: int) -> RecurrentShare:
    """All ranks have the only group, which the norm behind the scan spans, too."""
    heads = _share(kept.num_heads, "heads of Mamba-2", rank, size)
    groups = range(1)
    if kept.num_groups > 1:
        groups = _share(kept.num_groups, "groups of Mamba-2", rank, size)
    inner, shared = _times(heads, kept.head_size), _times(groups, kept.state_size)
    of_groups = kept.num_groups * kept.state_size
    convolved = _parts([kept.inner_columns, of_groups, of_groups], [inner, shared, shared])
    sizes = replace(
        kept,
        channels=sum(map(len, convolved)),
        num_heads=len(heads),
        num_groups=len(groups),
    )
    widths = [kept.inner_columns, kept.inner_columns, of_groups, of_groups, kept.num_heads]
    read = _parts(widths, [inner, inner, shared, shared, heads])
    of_heads = dict.fromkeys(("A", "D", "dt_bias"), (heads,))
    rows = {"in_proj": read, "conv1d": convolved, "norm": (inner,), **of_heads}
    return RecurrentShare(sizes, rows, inner)


def _share(count: int, what: str, rank: int, size: int) -> range:
    own = divided(count, what, size)
    return range(rank * own, (rank + 1) * own)


def _times(part: range, size: int) -> range:
    """Returns the columns of heads of a size."""
    return range(part.start * size, part.stop * size)


def _parts(widths: list[int], own: list[range]) -> Rows:
    """Returns the rows of parts that lie one behind the other, of each of which some are own."""
    starts = accumulate(widths, initial=0)
    return tuple(
        range(start + part.start, start + part.stop)
        for start, part in zip(starts, own, strict=False)
    )
