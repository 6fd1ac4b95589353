"""A GGUF file's fields as Hugging Face's config.json."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.families import READERS, granite, layer_types
from signalbox_worker.files.checkpoints.gguf.fields import GGUFFields
from signalbox_worker.files.checkpoints.gguf.hybrids import HYBRIDS
from signalbox_worker.files.checkpoints.gguf.names import FAMILIES, MISTRAL, MIXTRAL, Family
from signalbox_worker.files.checkpoints.gguf.pooling import pooling_of
from signalbox_worker.files.checkpoints.gguf.reader import GGUFContent
from signalbox_worker.files.checkpoints.gguf.rotary import (
    FREQUENCY_DIVISORS,
    LONG_FACTORS,
    SHORT_FACTORS,
    rope_parameters,
)

MAX_CONTEXT_LENGTH = 1 << 22
"""Largest window in tokens that a file may declare, more than any served family has. The rotary
factors of every position are kept in memory, 512 bytes each at a head size of 64."""
_GEMMA_WINDOW = 4096
_MIXTURES = ("llama", "qwen3moe", "qwen3vlmoe")
_LATENT = "deepseek2"
_OF_EACH_LAYER = ("gemma4", *HYBRIDS)
"""Architectures that may have a number for each layer."""
_LAYER = re.compile(r"blk\.(\d+)\.")
_GEMMA3_LOCAL_BASE = 10000.0
_GEMMA3_PERIOD = 6
_GEMMA2_27B_LAYERS = 46
_GEMMA3_27B_LAYERS = 62
_PARTS_OF_CONFIG = (FREQUENCY_DIVISORS, LONG_FACTORS, SHORT_FACTORS)


class GGUFConfig:
    """Makes a config.json of one file's fields."""

    def __init__(self, content: GGUFContent, path: Path) -> None:
        self._content = content
        self._path = path
        self.fields = GGUFFields(content.fields, path)
        self._whole, self._real = self.fields.whole_of_model, self.fields.real_of_model
        self._size = self.fields.size_of_model
        self.family = self._family()

    def _family(self) -> Family:
        kind = self.fields.kind
        if kind not in FAMILIES:
            raise ModelError(
                f"architecture not supported: {kind} in {self._path}; "
                f"GGUF files of {', '.join(sorted(FAMILIES))} are"
            )
        if kind == "llama" and self._whole("expert_count", 0):
            return MIXTRAL
        if kind == "llama" and self._window():
            return MISTRAL
        if kind == "mistral3" and not self._real("attention.temperature_scale", 0.0):
            return MISTRAL
        return FAMILIES[kind]

    def is_weight(self, tensor: str) -> bool:
        """Says whether a tensor belongs to the model: neither to the configuration, nor to layers
        that predict further tokens."""
        return tensor not in _PARTS_OF_CONFIG and not self.is_further(tensor)

    def is_further(self, tensor: str) -> bool:
        """Says whether a tensor belongs to a layer that predicts further tokens."""
        layer = _LAYER.match(tensor)
        return layer is not None and int(layer[1]) >= self._num_layers()

    def config(self) -> Mapping[str, Any]:
        """Raises ModelError for a field that is not served, or not known."""
        config = self._shapes() | self._mixture() | self._extras() | self._token_ids()
        config |= pooling_of(self.fields, self._path)
        self.fields.refuse_unread()
        return config

    def _most(self, key: str, *default: int) -> int:
        """Returns a number; of one for each layer, where a family may have it, the largest."""
        value = self.fields.each_of_model(key, *default)
        are_numbers = isinstance(value, list) and all(type(one) is int for one in value)
        has_several = are_numbers and self.fields.kind in _OF_EACH_LAYER and value
        return max(value) if has_several else self._whole(key, *default)

    @property
    def _norm(self) -> str:
        return "" if self.fields.kind in ("bert", "cohere2", "nomic-bert") else "rms_"

    @property
    def _biased(self) -> str:
        """Projection whose bias tells of those of all."""
        return "q" if self.fields.kind in ("glm4", "glm4moe") else "output"

    def _shapes(self) -> dict[str, Any]:
        tensors = self._content.tensors
        num_heads = self._size("attention.head_count")
        hidden_size = self._size("embedding_length")
        head_size = self._size("attention.key_length", hidden_size // num_heads)
        if self.fields.kind == _LATENT:
            self._whole("attention.value_length", 0)
            head_size = self._size("rope.dimension_count")
        elif self._whole("attention.value_length", head_size) != head_size:
            raise ModelError(f"{self._path} has values of another head size than its keys")
        return {
            "architectures": [self.family.architecture],
            "vocab_size": self._vocab_size(),
            "hidden_size": hidden_size,
            "intermediate_size": self._inner_size(),
            "num_hidden_layers": self._num_layers(),
            "num_attention_heads": num_heads,
            "num_key_value_heads": self._most("attention.head_count_kv", num_heads),
            "head_dim": head_size,
            "rms_norm_eps": self._real(f"attention.layer_norm_{self._norm}epsilon"),
            "max_position_embeddings": self._context_length(),
            "rope_parameters": rope_parameters(
                self.fields, self._content, head_size=head_size, path=self._path
            ),
            "tie_word_embeddings": "output.weight" not in tensors,
            "attention_bias": any(one.endswith(f".attn_{self._biased}.bias") for one in tensors),
            "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        }

    def _inner_size(self) -> int:
        """Returns the inner columns of a feed-forward; mixtures of Qwen3.5 have no dense one."""
        is_mixed = self.fields.kind == "qwen35moe"
        usual = [self._whole("expert_feed_forward_length")] if is_mixed else []
        return self._most("feed_forward_length", *usual)

    def _num_layers(self) -> int:
        """Returns the number of layers, each of which has a tensor."""
        num_layers = self._size("block_count") - self._whole("nextn_predict_layers", 0)
        if not 0 < num_layers <= len(self._content.tensors):
            raise ModelError(
                f"{self._path} says {num_layers} layers, of which it lacks tensors; fetch it again"
            )
        return num_layers

    def _context_length(self) -> int:
        """Returns the model's window in tokens."""
        length = self._whole("context_length")
        if not 0 < length <= MAX_CONTEXT_LENGTH:
            raise ModelError(
                f"{self._path} has a context_length of {length}, which is not in"
                f" [1, {MAX_CONTEXT_LENGTH}]; fetch a sound file"
            )
        return length

    def _vocab_size(self) -> int:
        """Returns the number of the embedding's rows; the metadata may name fewer."""
        embedding = self._content.tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelError(
                f"{self._path} has no embedding; it is incomplete, fetch or convert it again"
            )
        return embedding.shape[0]

    def _window(self) -> int | None:
        """Returns the number of positions that a token sees; None for the whole context."""
        window = self._whole("attention.sliding_window", 0)
        return window if 0 < window < self._whole("context_length") else None

    def _mixture(self) -> dict[str, Any]:
        num_experts = self._whole("expert_count", 0)
        if not num_experts or self.fields.kind not in _MIXTURES:
            return {}
        per_token = self._whole("expert_used_count")
        width = self._whole("expert_feed_forward_length", 0)  # or else, as llama.cpp takes it
        width = width or self._whole("feed_forward_length") // max(1, per_token)
        return {
            "num_experts": num_experts,
            "num_local_experts": num_experts,
            "num_experts_per_tok": per_token,
            "norm_topk_prob": True,  # llama.cpp does so for both families
            "moe_intermediate_size": width,
        }

    def _extras(self) -> dict[str, Any]:
        if (reader := (READERS | HYBRIDS).get(self.fields.kind)) is not None:
            return reader(self.fields, self._shapes(), self._content.tensors)
        match self.fields.kind:
            case "gemma2":
                return self._gemma2()
            case "gemma3":
                return self._gemma3()
            case "granite" if self._window() is None:
                return granite(self.fields, self._shapes())
            case "llama":
                return {"sliding_window": self._window()}
            case "phi3":
                return self._phi3()
        if self._window() is not None:
            raise ModelError(
                f"{self._path} does not say which layers its sliding window is for; "
                "use the model's safetensors"
            )
        return {"hidden_act": "gelu_pytorch_tanh"} if self.fields.kind == "gemma" else {}

    def _phi3(self) -> dict[str, Any]:
        """The original length stands beside the rotation's parameters too, and counts there."""
        name = "original_max_position_embeddings"
        original = self._shapes()["rope_parameters"].get(name)
        return {
            "sliding_window": self._window(),
            **({} if original is None else {name: original}),
        }

    def _gemma2(self) -> dict[str, Any]:
        """Queries of the largest model are scaled by width over heads, others by head size."""
        shapes = self._shapes()
        is_largest = shapes["num_hidden_layers"] == _GEMMA2_27B_LAYERS
        per_head = shapes["hidden_size"] // shapes["num_attention_heads"]
        return {
            "sliding_window": self._whole("attention.sliding_window", _GEMMA_WINDOW),
            "attn_logit_softcapping": self._real("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": self._real("final_logit_softcapping", 30.0),
            "query_pre_attn_scalar": per_head if is_largest else shapes["head_dim"],
        }

    def _gemma3(self) -> dict[str, Any]:
        shapes = self._shapes()
        is_largest = shapes["num_hidden_layers"] == _GEMMA3_27B_LAYERS
        per_head = shapes["hidden_size"] // shapes["num_attention_heads"]
        local = self._real("rope.freq_base_swa", _GEMMA3_LOCAL_BASE)
        return {
            "sliding_window": self._whole("attention.sliding_window"),
            "layer_types": layer_types(self.fields, self._num_layers(), _GEMMA3_PERIOD),
            **{f"{kind}_logit_softcapping": self._cap(kind) for kind in ("attn", "final")},
            "rope_parameters": {
                "full_attention": shapes["rope_parameters"],
                "sliding_attention": {"rope_type": "default", "rope_theta": local},
            },
            "query_pre_attn_scalar": per_head if is_largest else shapes["head_dim"],
        }

    def _cap(self, kind: str) -> float | None:
        return self._real(f"{kind}_logit_softcapping", 0.0) or None

    def _token_ids(self) -> dict[str, Any]:
        names = {"bos": "bos", "eos": "eos", "pad": "padding"}
        return {
            f"{ours}_token_id": self.fields.get(f"tokenizer.ggml.{theirs}_token_id", None)
            for ours, theirs in names.items()
        }
