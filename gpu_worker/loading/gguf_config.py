"""A GGUF file's fields as Hugging Face's config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpu_worker.config import ModelError
from gpu_worker.loading.gguf_names import FAMILIES, MIXTRAL, Family
from gpu_worker.loading.gguf_reader import GGUFContent

_GEMMA_WINDOW = 4096
_GEMMA3_LOCAL_BASE = 10000.0
_GEMMA3_PERIOD = 6
_GEMMA2_27B_LAYERS = 46
_GEMMA3_27B_LAYERS = 62
_PARTS_OF_CONFIG = ("rope_freqs.weight",)


class GGUFConfig:
    """Reads the fields of one file; names the file where one is missing."""

    def __init__(self, content: GGUFContent, path: Path) -> None:
        self._content = content
        self._path = path
        self._kind = str(self.field("general.architecture"))
        self.family = self._family()

    def _family(self) -> Family:
        if self._kind not in FAMILIES:
            raise ModelError(
                f"architecture not supported: {self._kind} in {self._path}; "
                f"GGUF files of {', '.join(FAMILIES)} are"
            )
        is_mixture = self._kind == "llama" and int(self._of_model("expert_count", 0))
        return MIXTRAL if is_mixture else FAMILIES[self._kind]

    def field(self, key: str, *default: Any) -> Any:
        """Returns a field, or the default if there is one."""
        value = self._content.fields.get(key)
        if value is not None:
            return value
        if default:
            return default[0]
        raise ModelError(f"{self._path} has no {key!r}; it is incomplete")

    def is_part(self, tensor: str) -> bool:
        """Says whether a tensor belongs to the configuration."""
        return tensor in _PARTS_OF_CONFIG

    def _of_model(self, key: str, *default: Any) -> Any:
        return self.field(f"{self._kind}.{key}", *default)

    def config(self) -> Mapping[str, Any]:
        return self._shapes() | self._mixture() | self._extras() | self._token_ids()

    def _shapes(self) -> dict[str, Any]:
        tensors = self._content.tensors
        num_heads = int(self._of_model("attention.head_count"))
        hidden_size = int(self._of_model("embedding_length"))
        head_size = int(self._of_model("attention.key_length", hidden_size // num_heads))
        self._refuse_variants(head_size)
        return {
            "architectures": [self.family.architecture],
            "vocab_size": self._vocab_size(),
            "hidden_size": hidden_size,
            "intermediate_size": int(self._of_model("feed_forward_length")),
            "num_hidden_layers": int(self._of_model("block_count")),
            "num_attention_heads": num_heads,
            "num_key_value_heads": int(self._of_model("attention.head_count_kv", num_heads)),
            "head_dim": head_size,
            "rms_norm_eps": float(self._of_model("attention.layer_norm_rms_epsilon")),
            "max_position_embeddings": int(self._of_model("context_length")),
            "rope_parameters": self._rope_parameters(),
            "tie_word_embeddings": "output.weight" not in tensors,
            "attention_bias": "blk.0.attn_output.bias" in tensors,
        }

    def _refuse_variants(self, head_size: int) -> None:
        if int(self._of_model("rope.dimension_count", head_size)) != head_size:
            raise ModelError(f"{self._path} rotates a part of each head, which is not supported")
        if self._of_model("attention.value_length", head_size) != head_size:
            raise ModelError(f"{self._path} has values of another head size than its keys")
        if any(name.startswith("rope_factors_") for name in self._content.tensors):
            raise ModelError(
                f"{self._path} rotates long contexts by factors of their own, which is not "
                "supported; use the model's safetensors"
            )

    def _vocab_size(self) -> int:
        """The embedding's rows: the metadata may name fewer."""
        embedding = self._content.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelError(f"{self._path} has no embedding; it is incomplete")
        return embedding.shape[0]

    def _rope_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "rope_theta": float(self._of_model("rope.freq_base", 10000.0)),
            "rope_type": "default",
        }
        kind = str(self._of_model("rope.scaling.type", "none"))
        if kind != "none":
            factor = float(self._of_model("rope.scaling.factor", 1.0))
            parameters |= {"rope_type": kind, "factor": factor}
        divisors = self._content.tensors.get("rope_freqs.weight")
        if divisors is not None:
            values = divisors.data.view(torch.float32).tolist()
            parameters |= {"rope_type": "divisors", "divisors": values}
        return parameters

    def _mixture(self) -> dict[str, Any]:
        num_experts = int(self._of_model("expert_count", 0))
        if not num_experts:
            return {}
        per_token = int(self._of_model("expert_used_count"))
        width = int(self._of_model("expert_feed_forward_length", 0))
        return {
            "num_experts": num_experts,
            "num_local_experts": num_experts,
            "num_experts_per_tok": per_token,
            "norm_topk_prob": True,  # llama.cpp does so for both families
            **({"moe_intermediate_size": width} if width else {}),
        }

    def _extras(self) -> dict[str, Any]:
        match self._kind:
            case "gemma":
                return {"hidden_act": "gelu_pytorch_tanh"}
            case "gemma2":
                return self._gemma2()
            case "gemma3":
                return self._gemma3()
            case "phi3":
                window = int(self._of_model("attention.sliding_window", 0))
                return {"sliding_window": window or None}
        return {}

    def _gemma2(self) -> dict[str, Any]:
        """Queries of the largest model are scaled by width over heads, others by head size."""
        shapes = self._shapes()
        is_largest = shapes["num_hidden_layers"] == _GEMMA2_27B_LAYERS
        per_head = shapes["hidden_size"] // shapes["num_attention_heads"]
        return {
            "sliding_window": int(self._of_model("attention.sliding_window", _GEMMA_WINDOW)),
            "attn_logit_softcapping": float(self._of_model("attn_logit_softcapping", 50.0)),
            "final_logit_softcapping": float(self._of_model("final_logit_softcapping", 30.0)),
            "query_pre_attn_scalar": per_head if is_largest else shapes["head_dim"],
        }

    def _gemma3(self) -> dict[str, Any]:
        shapes = self._shapes()
        is_largest = shapes["num_hidden_layers"] == _GEMMA3_27B_LAYERS
        per_head = shapes["hidden_size"] // shapes["num_attention_heads"]
        local = float(self._of_model("rope.freq_base_swa", _GEMMA3_LOCAL_BASE))
        return {
            "sliding_window": int(self._of_model("attention.sliding_window")),
            "sliding_window_pattern": int(
                self._of_model("attention.sliding_window_pattern", _GEMMA3_PERIOD)
            ),
            "rope_parameters": {
                "full_attention": shapes["rope_parameters"],
                "sliding_attention": {"rope_type": "default", "rope_theta": local},
            },
            "query_pre_attn_scalar": per_head if is_largest else shapes["head_dim"],
        }

    def _token_ids(self) -> dict[str, Any]:
        names = {"bos": "bos", "eos": "eos", "pad": "padding"}
        return {
            f"{ours}_token_id": self.field(f"tokenizer.ggml.{theirs}_token_id", None)
            for ours, theirs in names.items()
        }
