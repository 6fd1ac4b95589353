"""Phi-3 and Phi-4: Llama with Q, K and V, and gate and up, in one matrix each of a checkpoint."""

from signalbox_worker.models.decoder_config import FUSED_PROJECTIONS
from signalbox_worker.models.layers import WeightTarget
from signalbox_worker.models.layers.linear import FusedTarget, MatrixTarget
from signalbox_worker.models.llama import Decoder, DecoderLayer


class Phi3Layer(DecoderLayer):
    """A layer of Llama that takes fused matrices apart."""

    def weight_targets(self) -> dict[str, WeightTarget]:
        targets = super().weight_targets()
        for fused, parts in FUSED_PROJECTIONS.items():
            own = [targets.pop(f"{part}.weight") for part in parts]
            targets[f"{fused}.weight"] = FusedTarget(
                [one for one in own if isinstance(one, MatrixTarget)]
            )
        return targets


class Phi3Decoder(Decoder):
    """The whole model."""

    layer_type = Phi3Layer
