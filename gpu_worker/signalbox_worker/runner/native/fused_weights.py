"""Takes fused matrices of a checkpoint apart, into those that a native program is built of."""

from collections.abc import Mapping
from itertools import accumulate

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import check_shape
from signalbox_worker.models.decoder_config import FUSED_PROJECTIONS, DecoderConfig
from signalbox_worker.runner.native.weight_shapes import layer_prefix, weight_shapes


def without_fused(
    stored: Mapping[str, StoredTensor], config: DecoderConfig
) -> dict[str, StoredTensor]:
    """Returns the tensors with each of FUSED_PROJECTIONS replaced by its parts, which are not read
    yet. Raises ModelError for one that has other rows."""
    found, shapes = dict(stored), weight_shapes(config)
    for index in range(config.num_layers if config.has_fused_projections else 0):
        for fused, parts in FUSED_PROJECTIONS.items():
            name = f"{layer_prefix(index)}{fused}.weight"
            tensor = found.pop(name, None)
            if tensor is None:  # made-up weights have the parts
                continue
            names = [f"{layer_prefix(index)}{part}.weight" for part in parts]
            if double := sorted(found.keys() & {*names}):
                raise ModelError(f"{name} stands beside {double[0]}; remove what is not meant")
            found |= zip(names, _parts(name, tensor, [shapes[one] for one in names]), strict=True)
    return found


def _parts(name: str, tensor: StoredTensor, shapes: list[tuple[int, ...]]) -> list[StoredTensor]:
    ends = list(accumulate(shape[0] for shape in shapes))
    check_shape(name, tensor.shape, (ends[-1], *shapes[0][1:]))
    return [_rows(tensor, end - shape[0], shape) for end, shape in zip(ends, shapes, strict=True)]


def _rows(tensor: StoredTensor, start: int, shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(
        shape,
        lambda: tensor.read()[start : start + shape[0]],
        blocks=None if tensor.blocks is None else tensor.blocks.rows(start, shape[0]),
        dtype=tensor.dtype,
    )
