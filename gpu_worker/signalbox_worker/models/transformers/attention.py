"""Our paged attention behind the attention interface of transformers.

A model of transformers calls a registered function in each of its layers. Which step is running is
known from a context variable, so nothing has to find its way through the model's arguments. A first
pass over a model without weights records what its layers ask for; later passes answer with the
step's plan, layer by layer in the order of the calls.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from signalbox_worker.config import ModelError
from signalbox_worker.models.layers import AttentionPlan, SinkAttentionPlan

IMPLEMENTATION = "signalbox"
"""Name of our function among transformers' attention implementations. It is given no masks."""
PROBE = "signalbox-probe"
"""The same function, with masks: they tell what a layer sees."""

# What a layer may pass beside queries, keys and values without asking for other mathematics.
_HARMLESS = {
    "dropout",
    "is_causal",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_ids",
    "cache_position",
    "use_cache",
    "return_dict",
    "logits_to_keep",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """Arguments of one layer's call."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    scale: float
    sliding_window: int | None
    has_sinks: bool = False


class _Step(Protocol):
    """Computes the attention calls of one forward pass."""

    def window(self, mask: Tensor | None, sliding_window: int | None) -> int | None:
        """Returns how many positions a layer sees, None for all, from what it passes."""
        ...

    def attend(
        self,
        call: AttentionCall,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        """[1, heads, num_tokens, size] each, to [1, num_tokens, num_heads, value_size]."""
        ...


_step: ContextVar[_Step] = ContextVar("signalbox_attention_step")


@contextmanager
def answering(step: _Step) -> Iterator[None]:
    """Lets `step` compute the attention of layers that run within the context."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


def register() -> None:
    """Makes our function known to transformers; once is enough, twice does no harm."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, _attention)
    AttentionInterface.register(PROBE, _attention)
    AttentionMaskInterface.register(PROBE, _record_mask)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **features: Any,
) -> tuple[Tensor, None]:
    """The registered function; [1, heads, num_tokens, size] to [1, num_tokens, heads, size]."""
    _refuse_features(module, features)
    step = _step.get()
    call = AttentionCall(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        key_size=key.shape[3],
        value_size=value.shape[3],
        scale=float(key.shape[3] ** -0.5 if scaling is None else scaling),
        sliding_window=step.window(attention_mask, sliding_window),
        has_sinks=s_aux is not None,
    )
    return step.attend(call, query, key, value, s_aux), None


def _refuse_features(module: nn.Module, features: Mapping[str, Any]) -> None:
    if not features.get("is_causal", getattr(module, "is_causal", True)):
        raise ModelError("its attention is not causal")
    for name, value in features.items():
        if name not in _HARMLESS and value is not None and value is not False:
            raise ModelError(f"its attention needs {name!r}, which paged attention does not have")


@dataclass(slots=True)
class CallRecorder:
    """Records the calls of the layers; each token attends to its own value only."""

    calls: list[AttentionCall] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    """Queries, keys and values in the order of the calls."""
    masks: list[tuple[Tensor, Callable[[], int | None]]] = field(default_factory=list)
    """Masks that transformers made, and what returns the number of positions that each lets a token
    see; a layer may use none of some."""

    def window(self, mask: Tensor | None, sliding_window: int | None) -> int | None:
        if mask is None:
            return sliding_window
        for known, window in self.masks:
            if mask is known or mask._base is known:  # Gemma 4 takes all of it
                return window()
        raise ModelError("its attention has a mask of its own")

    def attend(
        self,
        call: AttentionCall,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        if sinks is not None and sinks.shape != (call.num_heads,):
            raise ModelError("its attention sinks are not one for each head")
        if call.num_heads % call.num_kv_heads:
            raise ModelError("its query heads cannot be divided by its key heads")
        self.calls.append(call)
        self.inputs += [query, key, value]
        own = value.repeat_interleave(call.num_heads // call.num_kv_heads, dim=1)
        return own.transpose(1, 2).contiguous()


_FAR = 1 << 17
"""A window that reaches further is none."""


def _record_mask(
    *_: Any, mask_function: Callable[..., Tensor], device: torch.device, **__: Any
) -> Tensor:
    """The registered maker of masks: notes what a mask means; its values are never read."""
    recorder = _step.get()
    assert isinstance(recorder, CallRecorder)
    mask = torch.zeros(1, 1, 1, 1, device=device)
    recorder.masks.append((mask, cache(partial(_window, mask_function))))
    return mask


def _window(mask_function: Callable[..., Tensor]) -> int | None:
    keys = torch.arange(_FAR, device="cpu")
    windows = {_window_at(mask_function, position, keys) for position in (_FAR - 1, _FAR * 2 // 3)}
    if len(windows) > 1:
        raise ModelError("its attention has a mask of its own")
    return windows.pop()


def _window_at(mask_function: Callable[..., Tensor], position: int, keys: Tensor) -> int | None:
    """Returns how many keys, up to its own, the query at a position sees; None for all."""
    zero = torch.zeros((), dtype=torch.long, device="cpu")
    seen = mask_function(zero, zero, zero + position, keys).expand_as(keys)
    if bool(seen[position + 1 :].any()):
        raise ModelError("its attention is not causal")
    count = int(seen.sum())
    if not bool(seen[position - count + 1 : position + 1].all()):
        raise ModelError("its attention has a mask of its own")
    return None if count > position else count


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedLayers:
    """One size of heads for all layers: smaller ones are filled with zeros, fewer are repeated."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_windows: tuple[int | None, ...]
    has_sinks: bool
    """True if a layer has attention sinks."""

    @classmethod
    def of(cls, calls: list[AttentionCall]) -> "PagedLayers":
        """Raises ModelError where the layers' heads do not agree."""
        if not calls:
            raise ModelError("its attention does not use transformers' attention interface")
        first = calls[0]
        num_kv_heads = max(call.num_kv_heads for call in calls)
        for layer, call in enumerate(calls):
            if call.num_heads != first.num_heads or num_kv_heads % call.num_kv_heads:
                raise ModelError(f"layer {layer} has another number of heads than layer 0")
        return cls(
            num_heads=first.num_heads,
            num_kv_heads=num_kv_heads,
            head_size=max(max(call.key_size, call.value_size) for call in calls),
            scale=first.scale,
            sliding_windows=tuple(call.sliding_window for call in calls),
            has_sinks=any(call.has_sinks for call in calls),
        )


class PagedStep:
    """Computes the attention of one step from the paged cache, layer by layer."""

    def __init__(self, layers: PagedLayers, attention: AttentionPlan, dtype: torch.dtype) -> None:
        self._layers = layers
        self._attention = attention
        self._dtype = dtype
        self._next_layer = 0

    def window(self, mask: Tensor | None, sliding_window: int | None) -> int | None:
        assert mask is None, "no masks are made for our implementation"
        return sliding_window

    def attend(
        self,
        call: AttentionCall,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        layer, size = self._next_layer, self._layers.head_size
        self._next_layer += 1
        dtype = query.dtype
        if call.scale != self._layers.scale:
            query = query * (call.scale / self._layers.scale)
        heads = self._layers.num_kv_heads
        parts = (self._packed(key, size, heads), self._packed(value, size, heads))
        key_value = torch.stack(parts, dim=1)
        query, attend = self._packed(query, size, call.num_heads).contiguous(), self._attention
        if sinks is None:
            out = attend(query, key_value, layer=layer)
        else:
            with_sinks = cast(SinkAttentionPlan, attend)  # the backend was chosen for it
            out = with_sinks.attend_with_sinks(query, key_value, sinks, layer=layer)
        values = out.view(1, -1, call.num_heads, size)[..., : call.value_size]
        return values.to(dtype).contiguous()

    def _packed(self, states: Tensor, size: int, num_heads: int) -> Tensor:
        """[1, up to num_heads, num_tokens, up to size] to [num_tokens, num_heads, size]."""
        missing, repeats = size - states.shape[3], num_heads // states.shape[1]
        states = F.pad(states, (0, missing)) if missing else states
        states = states.repeat_interleave(repeats, dim=1) if repeats > 1 else states
        return states[0].transpose(0, 1).to(self._dtype)
