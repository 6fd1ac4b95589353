"""The inputs of a forward pass that layers read, beside its token ids and positions.

A capability that layers must see is a field of `ForwardContext`; `StepArrays` of the native program
has a field of the same name. A decode graph is recorded with one context and replayed for many
steps, so that the tensors behind a field may change their values, but not their shapes.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gpu_worker.layers.rotary import Angles


class AttentionPlan(Protocol):
    """Attention of one step, bound to its batch and its cache."""

    def __call__(self, query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
        """Stores K and V and attends.

        Args:
            query: [num_tokens, num_heads, head_size].
            key_value: [num_tokens, 2, num_kv_heads, head_size].
            layer: index of the layer.

        Returns:
            [num_tokens, num_heads * head_size].
        """
        ...


class RotaryAttentionPlan(AttentionPlan, Protocol):
    """Attention that can rotate on the way into the cache, which saves a pass over Q and K."""

    def attend_rotated(
        self, query: Tensor, key_value: Tensor, angles: Angles, *, layer: int
    ) -> Tensor:
        """Does as `__call__` does with queries and keys rotated by `angles`; may overwrite both."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The part of a step that is the same for all layers of one forward pass."""

    attention: AttentionPlan
