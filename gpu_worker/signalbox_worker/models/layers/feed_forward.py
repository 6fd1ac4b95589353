"""The feed-forward of the first transformers: two products with an activation between."""

from torch import Tensor

from signalbox_worker.device.parallel_group import ParallelGroup
from signalbox_worker.models.layers.activation import Activation
from signalbox_worker.models.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from signalbox_worker.models.layers.weight_placement import Placement, WeightTarget


class PlainFeedForward:
    """down(activation(up(x)))."""

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
            out_features={"up": intermediate_size},
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

    def weight_targets(self, *, up: str, down: str) -> dict[str, WeightTarget]:
        """Args: up, down: names of the two matrices in the checkpoint."""
        return self.up.weight_targets(up=up) | self.down.weight_targets(down)

    def finish(self) -> None:
        self.up.finish()
        self.down.finish()
