"""Phi-3 and Phi-4: Llama with Q, K and V, and gate and up, in one matrix each of a checkpoint."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from gpu_worker.config import ModelError
from gpu_worker.layers import WeightTarget
from gpu_worker.layers.linear import MatrixTarget
from gpu_worker.models.decoder_config import FUSED_PROJECTIONS
from gpu_worker.models.llama import Decoder, DecoderLayer


class Phi3Layer(DecoderLayer):
    """A layer of Llama that takes fused matrices apart."""

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = super().weight_targets()
        for fused, parts in FUSED_PROJECTIONS.items():
            own = [targets.pop(f"{part}.weight") for part in parts]
            targets[f"{fused}.weight"] = partial(_load_parts, own)
        return targets


def _load_parts(targets: Sequence[WeightTarget], tensor: Tensor) -> None:
    """Gives each target its rows of the checkpoint's tensor."""
    own = [target for target in targets if isinstance(target, MatrixTarget)]
    rows = [target.layer.whole_shape(target.part)[0] for target in own]
    if len(tensor) != sum(rows):
        raise ModelError(
            f"a fused matrix has {len(tensor)} rows where {sum(rows)} are expected; config.json "
            "does not belong to these weights"
        )
    start = 0
    for target, count in zip(own, rows, strict=True):
        target(tensor[start : start + count])
        start += count


class Phi3Decoder(Decoder):
    """Satisfies `Model`."""

    layer_type = Phi3Layer
