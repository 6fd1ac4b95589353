"""Places of the layers' K and V in the blocks of a native program's cache.

Each group of layers has blocks of its own, all of one size: that of the group with the most. Layers
are divided into groups of nearly equal size, as in vLLM's hybrid KV cache manager.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from signalbox_contract.cache_groups import FULL, FULL_GROUP, WINDOW, CacheGroup
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.models.decoder_config import DecoderConfig


@dataclass(frozen=True, slots=True)
class KVPlaces:
    """A block as a program's shape has it: layers of heads that are all alike.

    If the heads of layers differ, it counts single heads of a size that divides theirs, as many as
    they take together: a block is as large as its K and V.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    first: Mapping[int, int] = field(default_factory=dict)
    """First of the block's layers that a layer takes, by that which has K and V of its own; empty
    of an encoder, whose layers are in order."""
    group_of: Mapping[int, int] = field(default_factory=dict)
    """Group of each such layer."""


_LEAST_USE = 0.92
"""Share of the blocks of a short sequence that its K and V take, at least."""
_MOST_BYTES = 1.05
"""Bytes of the longest sequence, at most, as a multiple of what its K and V take."""


def kv_places(
    config: DecoderConfig, stage: StageLayers, groups: Sequence[CacheGroup] = (FULL_GROUP,)
) -> KVPlaces:
    """Places the layers of a stage; those that read another layer's K and V take none.

    Args:
        groups: of all layers; one that names none has those of the stage.
    """
    unit, counts = _units(config, _owners(config, stage.indices))
    first: dict[int, int] = {}
    group_of: dict[int, int] = {}
    most = 0
    for number, group in enumerate(groups):
        layers = group.layers or tuple(counts)
        ends = list(accumulate(counts[index] for index in layers))
        for index, end in zip(layers, ends, strict=True):
            first[index], group_of[index] = end - counts[index], number
        most = max(most, ends[-1])
    return KVPlaces(most, *unit, first, group_of)


def cache_groups(config: DecoderConfig, *, max_model_len: int) -> tuple[CacheGroup, ...]:
    """Divides the layers of a model by their windows, and those of each window into groups of which
    a block takes about the same: as few as waste little, of short sequences and of long ones."""
    owners = _owners(config, range(config.num_layers))
    windows = config.sliding_windows or (None,) * config.num_layers
    by_window: dict[int, list[int]] = {}
    for index in owners:
        window = windows[index] or 0
        by_window.setdefault(window if window < max_model_len else 0, []).append(index)
    if config.is_bidirectional or not any(by_window):
        return (FULL_GROUP,)
    _, counts = _units(config, owners)
    tokens = {window: window or max_model_len for window in by_window}
    num_units = sum(counts.values())
    least = sum(counts[i] * tokens[window] for window, of in by_window.items() for i in of)
    divisions = []
    for size in {sum(counts[i] for i in run) for run in _runs(by_window.values())}:
        if size >= max(counts.values()):
            parts = {window: _parts(of, counts, size) for window, of in by_window.items()}
            num_parts = sum(map(len, parts.values()))
            taken = sum(size * tokens[window] * len(of) for window, of in parts.items())
            is_wasteful = num_units < _LEAST_USE * num_parts * size or taken > _MOST_BYTES * least
            divisions.append((is_wasteful, taken if is_wasteful else num_parts, size, parts))
    *_, parts = min(divisions, key=lambda one: one[:3])
    return tuple(
        CacheGroup(kind=WINDOW if window else FULL, window=window, layers=tuple(layers))
        for window in sorted(parts)
        for layers in parts[window]
    )


def _runs(of_windows: Iterable[list[int]]) -> Iterator[list[int]]:
    """Yields the first layers of each window, of any number: a block may be as large as they."""
    for layers in of_windows:
        for end in range(1, len(layers) + 1):
            yield layers[:end]


def _parts(layers: list[int], counts: Mapping[int, int], size: int) -> list[list[int]]:
    """Divides layers, in order, into as few parts as blocks of a size take."""
    parts: list[list[int]] = []
    left = 0
    for index in layers:
        if counts[index] > left:
            parts.append([])
            left = size
        parts[-1].append(index)
        left -= counts[index]
    return parts


def _owners(config: DecoderConfig, indices: Iterable[int]) -> list[int]:
    """Returns the layers that have K and V of their own."""
    return [i for i in indices if config.attends(i) and config.kv_layer(i) == i]


def _units(config: DecoderConfig, owners: list[int]) -> tuple[tuple[int, int], dict[int, int]]:
    """Returns heads of K and their size, of which layers take whole numbers; and these."""
    heads = [config.heads_of(index) for index in owners]
    num_kv_heads, size = heads[0].num_kv_heads, heads[0].size
    counts = [1] * len(heads)
    if any((one.num_kv_heads, one.size) != (num_kv_heads, size) for one in heads):
        num_kv_heads, size = 1, math.gcd(*(one.size for one in heads))
        counts = [one.num_kv_heads * one.size // size for one in heads]
    return (num_kv_heads, size), dict(zip(owners, counts, strict=True))
