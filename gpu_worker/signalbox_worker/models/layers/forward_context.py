"""The inputs of a forward pass that layers read, beside its token ids and positions.

A capability that layers must see is a field of `ForwardContext`; `StepArrays` of the native program
has a field of the same name. A decode graph is recorded with one context and replayed for many
steps, so that the tensors behind a field may change their values, but not their shapes.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from signalbox_worker.models.layers.adapters import BatchAdapters
from signalbox_worker.models.layers.norm import RMSNorm
from signalbox_worker.models.layers.rotary import Angles


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


class SinkAttentionPlan(AttentionPlan, Protocol):
    """Attention whose softmax has sinks."""

    def attend_with_sinks(
        self, query: Tensor, key_value: Tensor, sinks: Tensor | None, *, layer: int
    ) -> Tensor:
        """Does as `__call__` does, with another score for each query head in the softmax.

        Args:
            sinks: [num_heads]; a sink has no value, so that the shares of the keys sum to less than
                1. None for a layer without.
        """
        ...


class BiasedAttentionPlan(AttentionPlan, Protocol):
    """Attention whose scores have biases by distance, over all tokens of each sequence."""

    def attend_with_biases(
        self, query: Tensor, key_value: Tensor, biases: Tensor, *, layer: int
    ) -> Tensor:
        """Does as `__call__` does, and adds biases to the scores.

        Args:
            biases: [num_heads, 2 * num_positions - 1], of keys from num_positions - 1 places before
                a query to as many behind it.
        """
        ...


class HeadNorms(NamedTuple):
    """Norms of each head of Q and K, before they are rotated."""

    query: RMSNorm
    key: RMSNorm

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        return self.query.weight, self.key.weight


class RotaryAttentionPlan(AttentionPlan, Protocol):
    """Attention that can norm and rotate on the way into the cache, which saves passes over Q and
    K."""

    def attend_rotated(
        self,
        query: Tensor,
        key_value: Tensor,
        angles: Angles,
        *,
        layer: int,
        norms: HeadNorms | None,
    ) -> Tensor:
        """Does as `__call__` does with queries and keys normed and rotated; may overwrite both."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """The part of a step that is the same for all layers of one forward pass."""

    attention: AttentionPlan
    hidden: Tensor | None = None
    """[num_tokens, hidden_size], what the pipeline stage before has computed, which may be
    overwritten; None on the first stage."""

    adapters: BatchAdapters = ()
    """Adapters of the batch; empty if no token has one."""
    token_types: Tensor | None = None
    """[num_tokens] int32, segment of each token; None if all are in segment 0."""

    @property
    def hidden_before(self) -> Tensor:
        assert self.hidden is not None, "only the first stage looks tokens up"
        return self.hidden
