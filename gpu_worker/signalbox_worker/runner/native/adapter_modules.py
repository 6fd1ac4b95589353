"""Modules of Hugging Face's models that adapters may change, and the matrices of programs in them.

A module may have several matrices, as Phi-3's of Q, K and V. The one of gated attention is
multiplied in two parts: the queries of all heads, and their gates.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_worker.models.decoder_config import FUSED_PROJECTIONS, DecoderConfig
from signalbox_worker.runner.native.hybrid_tensors import SHARED_PROJECTIONS, their_module
from signalbox_worker.runner.native.weight_shapes import (
    GATED_PARTS,
    layer_prefix,
    linear_shapes,
)


class ModuleRows(NamedTuple):
    """Rows of a module of Hugging Face's model."""

    module: str
    rows: slice | NDArray[np.int64]


def module_rows(config: DecoderConfig) -> dict[str, ModuleRows]:
    """Returns the module of each matrix that is multiplied, by its name."""
    found = dict[str, ModuleRows]()
    shapes = linear_shapes(config)
    for name, module, start in _places(config):
        num_rows = shapes[name][0]
        if config.gates_attention and name.endswith(".q_proj"):
            of_heads = np.arange(num_rows).reshape(config.num_heads, 2, -1)
            for number, part in enumerate(GATED_PARTS):
                found[f"{name}.{part}"] = ModuleRows(module, of_heads[:, number].reshape(-1))
        else:
            found[name] = ModuleRows(module, slice(start, start + num_rows))
    return found


def module_shapes(config: DecoderConfig) -> dict[str, tuple[int, int]]:
    """Returns the shapes of the modules that adapters may change."""
    found, shapes = dict[str, tuple[int, int]](), linear_shapes(config)
    for name, module, start in _places(config):
        num_rows, num_columns = shapes[name]
        found[module] = (start + num_rows, num_columns)
    return found


def _places(config: DecoderConfig) -> Iterator[tuple[str, str, int]]:
    """Yields each matrix with its module, and the row of that with which it begins."""
    fused = {one: FUSED_PROJECTIONS[one] for one in config.fused_projections}
    fused |= SHARED_PROJECTIONS.get(config.architecture, {})
    module_of = {
        f"{layer_prefix(index)}{part}": f"{layer_prefix(index)}{module}"
        for index in range(config.num_layers)
        for module, parts in fused.items()
        for part in parts
    }
    ends = Counter[str]()
    for name, (num_rows, _) in linear_shapes(config).items():
        module = module_of.get(name) or their_module(name, config)
        yield name, module, ends[module]
        ends[module] += num_rows
