"""Maps GGUF's names of architectures and tensors to those of Hugging Face's checkpoints.

llama.cpp's converter changes some values too: it stores the Q and K rows of Llama-like models in
the order of interleaved rotation, and Gemma's norms as 1 + w. Both are undone here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from signalbox_kernels.floats import AnyArray, to_float32

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA2_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PHI3 = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_MIXTRAL_EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}
_QWEN_EXPERTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_EXPERTS = re.compile(r"ffn_(gate|up|down)_exps")


class Renamed(NamedTuple):
    """A checkpoint's tensor that is made of one of the file."""

    name: str
    change: Callable[[AnyArray], AnyArray]
    """Makes its values, or its rows of blocks, of the file's."""
    expert: int | None = None
    """Place of its expert in the file's tensor of all experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture of GGUF files."""

    architecture: str
    layer_names: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors that differ from Llama's."""
    is_interleaved: bool = False
    norm_offset: float = 0.0
    expert_block: str = ""
    expert_names: Mapping[str, str] = field(default_factory=dict)

    def renamed(
        self, name: str, shape: tuple[int, ...], heads: Callable[[str], int]
    ) -> Iterator[Renamed]:
        """Yields the checkpoint's tensor, or tensors, for one of the file.

        Args:
            heads: number of heads of "attn_q" or "attn_k".
        """
        match = _LAYER_TENSOR.fullmatch(name)
        change = _same
        if self.norm_offset and "norm" in name:
            change = partial(_less, offset=self.norm_offset)
        if match is None:
            yield Renamed(_TOP.get(name, name), change)
            return
        layer, part, kind = match.groups()
        if self.is_interleaved and part in ("attn_q", "attn_k"):
            change = partial(half_split, num_heads=heads(part))
        prefix, experts = f"model.layers.{layer}.", _EXPERTS.fullmatch(part)
        if experts and self.expert_block:
            ours = self.expert_names[experts[1]]
            for index in range(shape[0]):
                named = f"{prefix}{self.expert_block}.experts.{index}.{ours}.{kind}"
                yield Renamed(named, change, index)
        elif part == "ffn_gate_inp" and self.expert_block:
            yield Renamed(f"{prefix}{self.expert_block}.gate.{kind}", change)
        else:
            known = self.layer_names.get(part) or _LAYER.get(part)
            yield Renamed(f"{prefix}{known}.{kind}" if known else name, change)


FAMILIES: Mapping[str, Family] = {
    "llama": Family(architecture="LlamaForCausalLM", is_interleaved=True),
    "granite": Family(architecture="GraniteForCausalLM", is_interleaved=True),
    "qwen2": Family(architecture="Qwen2ForCausalLM"),
    "qwen3": Family(architecture="Qwen3ForCausalLM"),
    "qwen3moe": Family(
        architecture="Qwen3MoeForCausalLM", expert_block="mlp", expert_names=_QWEN_EXPERTS
    ),
    "gemma": Family(architecture="GemmaForCausalLM", norm_offset=1.0),
    "gemma2": Family(architecture="Gemma2ForCausalLM", layer_names=_GEMMA2_NORMS, norm_offset=1.0),
    "gemma3": Family(architecture="Gemma3ForCausalLM", layer_names=_GEMMA2_NORMS, norm_offset=1.0),
    "phi3": Family(architecture="Phi3ForCausalLM", layer_names=_PHI3),
}
MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    is_interleaved=True,
    expert_block="block_sparse_moe",
    expert_names=_MIXTRAL_EXPERTS,
)
"""Files of "llama" with experts."""
MISTRAL = Family(architecture="MistralForCausalLM", is_interleaved=True)
"""Files of "llama" with a sliding window."""


def _same(values: AnyArray) -> AnyArray:
    return values


def _less(values: AnyArray, *, offset: float) -> AnyArray:
    return to_float32(values) - offset


def half_split(values: AnyArray, *, num_heads: int) -> AnyArray:
    """Puts rows (0, half, 1, half + 1, ...) of each head into the order (0, 1, ..., half, ...)."""
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)
