"""Places of the layers' K and V in a block of a native program's cache."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

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


def kv_places(config: DecoderConfig, stage: StageLayers) -> KVPlaces:
    """Places the layers of a stage; those that read another layer's K and V take none."""
    owners = [index for index in stage.indices if config.kv_layer(index) == index]
    heads = [config.heads_of(index) for index in owners]
    num_kv_heads, size = heads[0].num_kv_heads, heads[0].size
    counts = [1] * len(heads)
    if any((one.num_kv_heads, one.size) != (num_kv_heads, size) for one in heads):
        num_kv_heads, size = 1, math.gcd(*(one.size for one in heads))
        counts = [one.num_kv_heads * one.size // size for one in heads]
    ends = accumulate(counts)
    first = {index: end - count for index, end, count in zip(owners, ends, counts, strict=True)}
    return KVPlaces(sum(counts), num_kv_heads, size, first)
