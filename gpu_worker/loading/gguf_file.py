"""A model in one GGUF file: its metadata as a config.json, its tensors dequantised.

llama.cpp stores the Q and K rows of Llama-like models in the order of interleaved rotation;
`_half_split` puts them back into the order of rotation by halves.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.config import ModelError
from gpu_worker.loading.gguf_tokenizer import GGUFVocab, TokenType, build, can_build
from gpu_worker.loading.tokenizer import convert_tokenizer

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_INTERLEAVED = ("llama",)
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
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
_LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_QUANTISATION = re.compile(r"[.-](I?Q\d\w*|F16|F32|BF16)$", re.IGNORECASE)
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>")


class _Reader(GGUFReader):
    """Reads through a plain array: a million slices of a np.memmap take seconds."""

    @property  # type: ignore[override]
    def data(self) -> NDArray[np.uint8]:
        return self._plain

    @data.setter
    def data(self, mapped: NDArray[np.uint8]) -> None:
        self._plain = mapped.view(np.ndarray)


class GGUFSource:
    """Satisfies `ModelSource`."""

    is_half = True  # quantised, or 16 bits; 32 are rare, and lose nothing that matters

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._reader = _Reader(path)
        except (ValueError, IndexError, KeyError) as error:
            raise ModelError(f"{path} is no readable GGUF file ({error}); fetch it again") from None
        self._kind = str(self._field("general.architecture"))
        if self._kind not in _ARCHITECTURES:
            raise ModelError(
                f"architecture not supported: {self._kind} in {path}; "
                f"GGUF files of {', '.join(_ARCHITECTURES)} are"
            )

    @property
    def name(self) -> str:
        return _QUANTISATION.sub("", self._path.stem)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        names = {tensor.name for tensor in self._reader.tensors}
        num_heads = int(self._of_model("attention.head_count"))
        hidden_size = int(self._of_model("embedding_length"))
        head_size = int(self._of_model("attention.key_length", hidden_size // num_heads))
        self._refuse_variants(head_size)
        return {
            "architectures": [_ARCHITECTURES[self._kind]],
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
            "tie_word_embeddings": "output.weight" not in names,
            "attention_bias": "blk.0.attn_output.bias" in names,
        }

    def _refuse_variants(self, head_size: int) -> None:
        if int(self._of_model("expert_count", 0)):
            raise ModelError(f"{self._path} is a mixture of experts, which is not supported")
        if int(self._of_model("rope.dimension_count", head_size)) != head_size:
            raise ModelError(f"{self._path} rotates a part of each head, which is not supported")

    def _vocab_size(self) -> int:
        """The embedding's rows: the metadata may name fewer."""
        for tensor in self._reader.tensors:
            if tensor.name == "token_embd.weight":
                return int(tensor.shape[1])
        raise ModelError(f"{self._path} has no embedding; it is incomplete")

    def _rope_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = {
            "rope_theta": float(self._of_model("rope.freq_base", 10000.0)),
            "rope_type": "default",
        }
        kind = str(self._of_model("rope.scaling.type", "none"))
        if kind != "none":
            factor = float(self._of_model("rope.scaling.factor", 1.0))
            parameters |= {"rope_type": kind, "factor": factor}
        for tensor in self._reader.tensors:
            if tensor.name == "rope_freqs.weight":
                parameters |= {"rope_type": "divisors", "divisors": tensor.data.tolist()}
        return parameters

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for tensor in self._reader.tensors:
            if tensor.name == "rope_freqs.weight":
                continue  # part of the configuration
            try:
                values = dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError:
                raise ModelError(
                    f"{self._path}: weights of type {tensor.tensor_type.name} are not supported"
                ) from None
            # Unquantised tensors are views of the file, which is mapped read-only.
            values = np.require(values, dtype=np.float32, requirements="W")
            yield self._renamed(tensor.name, values)

    def _renamed(self, name: str, values: NDArray[np.float32]) -> tuple[str, Tensor]:
        match = _LAYER_TENSOR.fullmatch(name)
        if match is None or match[2] not in _LAYER_NAMES:
            return _TOP_NAMES.get(name, name), torch.from_numpy(values)
        layer, part, kind = match.groups()
        if self._kind in _INTERLEAVED and part in ("attn_q", "attn_k"):
            heads = "num_attention_heads" if part == "attn_q" else "num_key_value_heads"
            values = _half_split(values, self.config[heads])
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}", torch.from_numpy(values)

    def tokenizer_files(self) -> dict[str, bytes]:
        vocab = self._vocab
        if not can_build(vocab):
            return convert_tokenizer(str(self._path.parent), gguf_file=self._path.name)
        config = {
            "add_bos_token": vocab.add_bos,
            "add_eos_token": vocab.add_eos,
            "bos_token": vocab.bos,
            "eos_token": vocab.eos,
            "unk_token": self._token("unknown_token_id"),
            "pad_token": self._token("padding_token_id"),
            "chat_template": self._field("tokenizer.chat_template", None),
        }
        kept = {key: value for key, value in config.items() if value is not None}
        return {
            "tokenizer.json": build(vocab).encode(),
            "tokenizer_config.json": json.dumps(kept, ensure_ascii=False, indent=1).encode(),
        }

    def eos_token_ids(self) -> tuple[int, ...]:
        fields = ("eos_token_id", "eot_token_id", "eom_token_id")
        ids = {self._field(f"tokenizer.ggml.{name}", None) for name in fields} - {None}
        typed = zip(self._vocab.tokens, self._vocab.token_types, strict=True)
        ids |= {
            index
            for index, (token, kind) in enumerate(typed)
            if kind == TokenType.CONTROL and token in _END_OF_TURN
        }
        return tuple(sorted(int(token_id) for token_id in ids))

    @cached_property
    def _vocab(self) -> GGUFVocab:
        tokens = self._field("tokenizer.ggml.tokens", None)
        if not tokens:
            raise ModelError(f"{self._path} has no tokenizer; fetch a file that has one")
        return GGUFVocab(
            model=self._field("tokenizer.ggml.model", ""),
            pre=self._field("tokenizer.ggml.pre", "default"),
            tokens=tokens,
            token_types=self._field("tokenizer.ggml.token_type", [1] * len(tokens)),
            merges=self._field("tokenizer.ggml.merges", []),
            bos=self._token("bos_token_id", tokens),
            eos=self._token("eos_token_id", tokens),
            add_bos=bool(self._field("tokenizer.ggml.add_bos_token", False)),
            add_eos=bool(self._field("tokenizer.ggml.add_eos_token", False)),
        )

    def _token(self, field: str, tokens: list[str] | None = None) -> str | None:
        token_id = self._field(f"tokenizer.ggml.{field}", None)
        known = self._vocab.tokens if tokens is None else tokens
        return None if token_id is None else known[token_id]

    def _of_model(self, key: str, *default: Any) -> Any:
        return self._field(f"{self._kind}.{key}", *default)

    def _field(self, key: str, *default: Any) -> Any:
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default:
            return default[0]
        raise ModelError(f"{self._path} has no {key!r}; it is incomplete")


def _half_split(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows (0, half, 1, half + 1, ...) of each head to (0, 1, ..., half, half + 1, ...)."""
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(values.shape))
