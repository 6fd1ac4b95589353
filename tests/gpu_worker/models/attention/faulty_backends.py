"""Backends that a trial must find out; another process imports them by name."""

from torch import Tensor

from signalbox_worker.batch.batch import Batch
from signalbox_worker.models.attention.backend import AttentionBackend, AttentionShape
from signalbox_worker.models.attention.torch_backend import TorchAttention
from signalbox_worker.models.layers import AttentionPlan, HeadNorms
from signalbox_worker.models.layers.rotary import Angles


class MisrotatingPlan:
    """Right until it is to rotate."""

    def __init__(self, plan: AttentionPlan) -> None:
        self._plan = plan

    def __call__(self, query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
        return self._plan(query, key_value, layer=layer)

    def attend_rotated(
        self,
        query: Tensor,
        key_value: Tensor,
        angles: Angles,
        *,
        layer: int,
        norms: HeadNorms | None,
    ) -> Tensor:
        angles.rotate(query)
        return self._plan(query, key_value, layer=layer)


class MisrotatingAttention(TorchAttention):
    """Whose plans leave keys as they are."""

    def plan(self, batch: Batch) -> AttentionPlan:
        return MisrotatingPlan(super().plan(batch))


class ForgetfulAttention(TorchAttention):
    """Whose results are right until it has been used."""

    num_plans = 0

    def plan(self, batch: Batch) -> AttentionPlan:
        self.num_plans += 1
        plan = super().plan(batch)
        return plan if self.num_plans <= 3 else lambda q, kv, *, layer: plan(q, kv, layer=layer) * 0


class BrokenAttention(TorchAttention):
    """Whose plans lose the last head's result."""

    def plan(self, batch: Batch) -> AttentionPlan:
        plan = super().plan(batch)

        def broken(query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
            out = plan(query, key_value, layer=layer).clone()
            out[:, -1] = float("nan")
            return out

        return broken


def fail(shape: AttentionShape) -> AttentionBackend:
    class Failing(TorchAttention):
        def plan(self, batch: Batch) -> AttentionPlan:
            raise RuntimeError("no kernel image is available\nfor this device")

    return Failing(shape)
