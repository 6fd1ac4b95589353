"""Maps GGUF's names of architectures and tensors to those of Hugging Face's checkpoints.

llama.cpp's converter changes some values too: it stores the Q and K rows of Llama-like models in
the order of interleaved rotation, and Gemma's norms as 1 + w. Both are undone here.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_worker.files.checkpoints.gguf.joins import (
    GPT_OSS_JOINS,
    GRANITE_JOINS,
    LATENT_JOINS,
    Join,
)

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "per_layer_token_embd.weight": "model.embed_tokens_per_layer.weight",
    "per_layer_model_proj.weight": "model.per_layer_model_projection.weight",
    "per_layer_proj_norm.weight": "model.per_layer_projection_norm.weight",
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
    "nextn.eh_proj": "eh_proj",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.enorm": "enorm",
    "nextn.hnorm": "hnorm",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm",
}
_GEMMA2_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA4 = {
    "layer_output_scale.weight": "layer_scalar",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "ffn_gate_inp": "router.proj",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_down_exps.weight": "experts.down_proj",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
_OLMO2_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM4 = {
    "ffn_up": "mlp.gate_up_proj",
    "post_attention_norm": "post_self_attn_layernorm",
    "post_ffw_norm": "post_mlp_layernorm",
}
_BIASED_CHOICE = {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"}
_LATENT = {
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
}
_BERT_TOP = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
_BERT = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
_NOMIC_BERT = {
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "attn_output_norm": "norm1",
    "ffn_up": "mlp.fc11",
    "ffn_gate": "mlp.fc12",
    "ffn_down": "mlp.fc2",
    "layer_output_norm": "norm2",
}
"""The names of the code beside the weights, of which `old_names.py` makes those of today."""
_SHORT_CONVOLUTION = {
    "shortconv.conv": "recurrent.conv1d",
    "shortconv.in_proj": "recurrent.in_proj",
    "shortconv.out_proj": "recurrent.out_proj",
}
_MAMBA = {
    "ssm_in": "recurrent.in_proj",
    "ssm_conv1d": "recurrent.conv1d",
    "ssm_dt.bias": "recurrent.dt_bias",
    "ssm_a": "recurrent.A",
    "ssm_d": "recurrent.D",
    "ssm_norm": "recurrent.norm",
    "ssm_out": "recurrent.out_proj",
}
_DELTA_RULE = {
    "attn_qkv": "recurrent.in_proj_qkv",
    "attn_gate": "recurrent.in_proj_z",
    "ssm_in": "recurrent.in_proj_qkvz",
    "ssm_alpha": "recurrent.in_proj_a",
    "ssm_beta": "recurrent.in_proj_b",
    "ssm_ba": "recurrent.in_proj_ba",
    "ssm_conv1d": "recurrent.conv1d",
    "ssm_dt.bias": "recurrent.dt_bias",
    "ssm_a": "recurrent.A",
    "ssm_norm": "recurrent.norm",
    "ssm_out": "recurrent.out_proj",
    "post_attention_norm": "post_attention_layernorm",
}
"""The names of native programs, which alone compute recurrent layers."""
_OF_MAMBA = ("ssm_a", "ssm_d", "ssm_norm")
_PHI3 = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_MIXTRAL_EXPERTS = {"gate": "w1", "up": "w3", "down": "w2"}
_QWEN_EXPERTS = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.([\w.]+?)(?:\.(weight|bias|scale))?")
_EXPERTS = re.compile(r"ffn_(gate|up|down)_exps")


def _shared_expert(prefix: str) -> dict[str, str]:
    return {f"ffn_{part}_shexp": f"{prefix}.{part}_proj" for part in ("gate", "up", "down")}


_QWEN_SHARED = {
    **_shared_expert("mlp.shared_expert"),
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}


class Renamed(NamedTuple):
    """A checkpoint's tensor that is made of one of the file."""

    name: str
    change: Callable[[AnyArray], AnyArray]
    """Makes its values, or its rows of blocks, of the file's."""
    expert: int | None = None
    """Place of its expert in the file's tensor of all experts."""
    is_vector: bool = False
    """True if the file has it with more dimensions than one."""

    @property
    def keeps_values(self) -> bool:
        """True if the file's values are those of the checkpoint, in their order."""
        return self.change is _same


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """An architecture of GGUF files."""

    architecture: str
    layer_names: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors that differ from Llama's; whole ones of those with another end, or none."""
    top_names: Mapping[str, str] = field(default_factory=dict)
    """Names without ends of tensors outside of layers, of a family without Llama's."""
    layers: str = "model.layers"
    """Beginning of the names of layers."""
    is_interleaved: bool = False
    norm_offset: float = 0.0
    expert_block: str = ""
    expert_names: Mapping[str, str] = field(default_factory=dict)
    vectors: Collection[str] = ()
    """Tensors of a layer that are vectors, which the file has with more dimensions."""
    joins: tuple[Join, ...] = ()

    def joined(self, names: Collection[str]) -> Iterator[tuple[str, Join, list[str]]]:
        """Yields the checkpoint's tensors that are made of several, each with those."""
        for name in names:
            match = _LAYER_TENSOR.fullmatch(name)
            if match is None:
                continue
            for join in self.joins:
                parts = [f"blk.{match[1]}.{part}" for part in join.parts]
                if name == parts[0] and set(parts) <= {*names}:
                    yield f"model.layers.{match[1]}.{join.name}", join, parts

    def of_experts(self, name: str, shape: tuple[int, ...]) -> Iterator[Renamed]:
        """Yields the matrices of each expert in one of the file's that a join takes, by their names
        within the experts; nothing of another tensor."""
        match = _LAYER_TENSOR.fullmatch(name)
        experts = match and _EXPERTS.fullmatch(match[2])
        if match and experts and match[3] == "weight" and self.expert_names:
            for index in range(shape[0]):
                yield Renamed(f"{index}.{self.expert_names[experts[1]]}.weight", _same, index)

    def renamed(
        self, name: str, shape: tuple[int, ...], heads: Callable[[str], int]
    ) -> Iterator[Renamed]:
        """Yields the checkpoint's tensor, or tensors, for one of the file.

        Args:
            heads: number of heads of "attn_q" or "attn_k".
        """
        match = _LAYER_TENSOR.fullmatch(name)
        change = _same
        if self.norm_offset and "norm" in name and "ssm_norm" not in name:
            change = partial(_less, offset=self.norm_offset)
        if match is None or not (match[3] or match[2] in self.layer_names):
            own, _, end = name.rpartition(".")
            top = self.top_names.get(own)
            yield Renamed(f"{top}.{end}" if top else _TOP.get(name, name), change)
            return
        layer, part, kind = match.groups()
        if self.is_interleaved and part in ("attn_q", "attn_k"):
            change = partial(half_split, num_heads=heads(part))
        prefix, experts = f"{self.layers}.{layer}.", _EXPERTS.fullmatch(part)
        if experts and self.expert_block:
            ours = self.expert_names[experts[1]]
            for index in range(shape[0]):
                named = f"{prefix}{self.expert_block}.experts.{index}.{ours}.{kind}"
                yield Renamed(named, change, index)
        elif whole := self.layer_names.get(f"{part}.{kind}" if kind else part):
            yield Renamed(f"{prefix}{whole}", change, is_vector=part in self.vectors)
        elif part == "ffn_gate_inp" and self.expert_block:
            yield Renamed(f"{prefix}{self.expert_block}.gate.{kind}", change)
        else:
            known = self.layer_names.get(part) or _LAYER.get(part)
            own = f"{prefix}{known}.{kind}" if known else name
            yield Renamed(own, change, is_vector=part in self.vectors)


FAMILIES: Mapping[str, Family] = {
    "bert": Family(
        architecture="BertModel", layer_names=_BERT, top_names=_BERT_TOP, layers="encoder.layer"
    ),
    "nomic-bert": Family(
        architecture="NomicBertModel",
        layer_names=_NOMIC_BERT,
        top_names=_BERT_TOP,
        layers="encoder.layers",
    ),
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
    "qwen3vl": Family(architecture="Qwen3ForCausalLM"),
    "qwen3vlmoe": Family(
        architecture="Qwen3MoeForCausalLM", expert_block="mlp", expert_names=_QWEN_EXPERTS
    ),
    "qwen2moe": Family(
        architecture="Qwen2MoeForCausalLM",
        layer_names=_QWEN_SHARED,
        expert_block="mlp",
        expert_names=_QWEN_EXPERTS,
    ),
    "qwen3next": Family(
        architecture="Qwen3NextForCausalLM",
        layer_names=_DELTA_RULE | _QWEN_SHARED,
        norm_offset=1.0,
        expert_block="mlp",
        expert_names=_QWEN_EXPERTS,
    ),
    "qwen35": Family(architecture="Qwen3_5ForCausalLM", layer_names=_DELTA_RULE, norm_offset=1.0),
    "qwen35moe": Family(
        architecture="Qwen3_5MoeForCausalLM",
        layer_names=_DELTA_RULE | _QWEN_SHARED,
        norm_offset=1.0,
        expert_block="mlp",
        expert_names=_QWEN_EXPERTS,
    ),
    "olmoe": Family(
        architecture="OlmoeForCausalLM", expert_block="mlp", expert_names=_QWEN_EXPERTS
    ),
    "olmo2": Family(architecture="Olmo2ForCausalLM", layer_names=_OLMO2_NORMS),
    "smollm3": Family(architecture="SmolLM3ForCausalLM", is_interleaved=True),
    "mistral3": Family(architecture="Ministral3ForCausalLM", is_interleaved=True),
    "glm4": Family(architecture="Glm4ForCausalLM", layer_names=_GLM4),
    "glm4moe": Family(
        architecture="Glm4MoeForCausalLM",
        layer_names=_BIASED_CHOICE
        | _shared_expert("mlp.shared_experts")
        | {"post_attention_norm": "post_attention_layernorm"},
        expert_block="mlp",
        expert_names=_QWEN_EXPERTS,
    ),
    "gemma4": Family(architecture="Gemma4ForCausalLM", layer_names=_GEMMA2_NORMS | _GEMMA4),
    "cohere2": Family(architecture="Cohere2ForCausalLM"),
    "granitemoe": Family(
        architecture="GraniteMoeForCausalLM",
        layer_names={
            "ffn_gate_inp": "block_sparse_moe.router.layer",
            "ffn_down_exps": "block_sparse_moe.output_linear",
            "ffn_down_shexp": "shared_mlp.output_linear",
        },
        is_interleaved=True,
        joins=GRANITE_JOINS,
    ),
    "gpt-oss": Family(
        architecture="GptOssForCausalLM",
        layer_names={
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks.weight": "self_attn.sinks",
            "ffn_gate_inp": "mlp.router",
            "ffn_down_exps.bias": "mlp.experts.down_proj_bias",
        },
        expert_names=_QWEN_EXPERTS,
        joins=GPT_OSS_JOINS,
    ),
    "deepseek2": Family(
        architecture="DeepseekV3ForCausalLM",
        layer_names=_BIASED_CHOICE | _LATENT | _shared_expert("mlp.shared_experts"),
        expert_block="mlp",
        expert_names=_QWEN_EXPERTS,
        joins=LATENT_JOINS,
    ),
    "lfm2": Family(
        architecture="Lfm2ForCausalLM",
        layer_names=_SHORT_CONVOLUTION,
        top_names={"token_embd_norm": "model.embedding_norm"},
    ),
    "lfm2moe": Family(
        architecture="Lfm2MoeForCausalLM",
        layer_names=_SHORT_CONVOLUTION | _BIASED_CHOICE,
        top_names={"token_embd_norm": "model.embedding_norm"},
        expert_block="mlp",
        expert_names=_QWEN_EXPERTS,
    ),
    "granitehybrid": Family(
        architecture="GraniteMoeHybridForCausalLM",
        layer_names=_MAMBA | _shared_expert("block_sparse_moe.shared_mlp"),
        vectors=_OF_MAMBA,
        is_interleaved=True,
        expert_block="block_sparse_moe",
        expert_names=_QWEN_EXPERTS,
    ),
    "nemotron_h": Family(
        architecture="NemotronHForCausalLM",
        layer_names=_MAMBA,
        vectors=_OF_MAMBA,
        is_interleaved=True,
    ),
    "nemotron_h_moe": Family(
        architecture="NemotronHForCausalLM",
        layer_names=_MAMBA
        | _BIASED_CHOICE
        | _shared_expert("mlp.shared_experts")
        | {"ffn_latent_down": "mlp.fc1_latent_proj", "ffn_latent_up": "mlp.fc2_latent_proj"},
        vectors=_OF_MAMBA,
        is_interleaved=True,
        expert_block="mlp",
        expert_names=_QWEN_EXPERTS,
    ),
}
MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    is_interleaved=True,
    expert_block="block_sparse_moe",
    expert_names=_MIXTRAL_EXPERTS,
)
"""Files of "llama" with experts."""
MISTRAL = Family(architecture="MistralForCausalLM", is_interleaved=True)
"""Files of "llama" with a sliding window, and of "mistral3" whose queries have one scale."""


def _same(values: AnyArray) -> AnyArray:
    return values


def _less(values: AnyArray, *, offset: float) -> AnyArray:
    return to_float32(values) - offset


def half_split(values: AnyArray, *, num_heads: int) -> AnyArray:
    """Puts rows (0, half, 1, half + 1, ...) of each head into the order (0, 1, ..., half, ...)."""
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)
