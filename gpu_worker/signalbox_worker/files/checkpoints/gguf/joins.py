"""Tensors of checkpoints that are made of several of a GGUF file, or of parts of them."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_worker.config import ModelError


class Join(NamedTuple):
    """A tensor of a layer of a checkpoint that is made of several of the file, or of a part."""

    name: str
    parts: Mapping[str, str]
    """A letter for each dimension of a part; those of one letter are equal."""
    make: Callable[..., AnyArray]
    shape: Callable[..., tuple[int, ...]]
    """Returns the shape for the sizes of these letters."""

    def shape_of(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Args: shapes: of the parts, in order, by their names in the file.

        Raises ModelError if they do not go together.
        """
        sizes = dict[str, int]()
        for (name, shape), letters in zip(shapes.items(), self.parts.values(), strict=True):
            pairs = zip(letters, shape, strict=False)
            if len(shape) != len(letters) or any(sizes.setdefault(*one) != one[1] for one in pairs):
                raise ModelError(f"{name} has shape {shape}, which does not fit the model's others")
        return self.shape(**sizes)


def _beside(*parts: AnyArray) -> AnyArray:
    """[..., rows, columns] each, to one with the rows of all."""
    return np.concatenate([to_float32(part) for part in parts], axis=-2)


def _in_turn(gate: AnyArray, up: AnyArray) -> AnyArray:
    """[experts, rows, ...] each, to rows in turn."""
    turns = np.stack((to_float32(gate), to_float32(up)), axis=2)
    return turns.reshape(gate.shape[0], -1, *gate.shape[2:])


def _columns_in_turn(gate: AnyArray, up: AnyArray) -> AnyArray:
    return _in_turn(gate, up).swapaxes(1, 2)


def _columns(values: AnyArray) -> AnyArray:
    return to_float32(values).swapaxes(1, 2)


def _expanded(keys: AnyArray, values: AnyArray) -> AnyArray:
    """[heads, rank, size] and [heads, size, rank] of latent attention, to rows of all heads."""
    return _beside(to_float32(keys).swapaxes(1, 2), values).reshape(-1, keys.shape[1])


GRANITE_JOINS = (
    Join(
        "block_sparse_moe.input_linear.weight",
        {"ffn_gate_exps.weight": "egc", "ffn_up_exps.weight": "euc"},
        _beside,
        lambda e, g, u, c: (e, g + u, c),
    ),
    Join(
        "shared_mlp.input_linear.weight",
        {"ffn_gate_shexp.weight": "gc", "ffn_up_shexp.weight": "uc"},
        _beside,
        lambda g, u, c: (g + u, c),
    ),
)
GPT_OSS_JOINS = (
    Join(
        "mlp.experts.gate_up_proj",
        {"ffn_gate_exps.weight": "erc", "ffn_up_exps.weight": "erc"},
        _columns_in_turn,
        lambda e, r, c: (e, c, 2 * r),
    ),
    Join(
        "mlp.experts.gate_up_proj_bias",
        {"ffn_gate_exps.bias": "er", "ffn_up_exps.bias": "er"},
        _in_turn,
        lambda e, r: (e, 2 * r),
    ),
    Join(
        "mlp.experts.down_proj",
        {"ffn_down_exps.weight": "erc"},
        _columns,
        lambda e, r, c: (e, c, r),
    ),
)
LATENT_JOINS = (
    Join(
        "self_attn.kv_b_proj.weight",
        {"attn_k_b.weight": "hrk", "attn_v_b.weight": "hvr"},
        _expanded,
        lambda h, r, k, v: (h * (k + v), r),
    ),
)
