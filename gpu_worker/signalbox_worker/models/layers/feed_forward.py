"""The feed-forward of the first transformers: products with an activation between, or a gate."""

from torch import Tensor

from signalbox_worker.device.parallel_group import ParallelGroup
from signalbox_worker.models.layers.activation import Activation
from signalbox_worker.models.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from signalbox_worker.models.layers.weight_placement import Placement, WeightTarget


class PlainFeedForward:
    """down(activation(up(x)))."""

    inputs: tuple[str, ...] = ("up",)
    """Matrices that are multiplied with x, in the order of their rows."""

    def __init__(
        self,
        *,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation,
        bias: bool,
        placement: Placement,
        group: ParallelGroup,
    ) -> None:
        self._activation = activation
        self.up = MergedColumnParallelLinear(
            in_features=hidden_size,
            out_features=dict.fromkeys(self.inputs, intermediate_size),
            bias=bias,
            placement=placement,
            group=group,
        )
        self.down = RowParallelLinear(
            in_features=intermediate_size,
            out_features=hidden_size,
            bias=bias,
            placement=placement,
            group=group,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._activation(self.up(x)))

    def weight_targets(self, *, down: str, **inputs: str) -> dict[str, WeightTarget]:
        """Args: down, inputs: names of the matrices in the checkpoint."""
        return self.up.weight_targets(**inputs) | self.down.weight_targets(down)

    def finish(self) -> None:
        self.up.finish()
        self.down.finish()


class GatedFeedForward(PlainFeedForward):
    """down(activation(gate(x)) * up(x))."""

    inputs = ("gate", "up")

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(self._activation(gate).mul_(up))
