"""Tiny random encoders, classifiers and decoders, as transformers saves them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

VOCAB = 97
_CLS, _SEP, _PAD = 1, 2, 0
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 300,
    "initializer_range": 0.2,
    "bos_token_id": _CLS,
    "eos_token_id": _SEP,
    "pad_token_id": _PAD,
}
_GEMMA: dict[str, Any] = {
    "num_key_value_heads": 1,
    "head_dim": 16,
    "query_pre_attn_scalar": 24,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "use_bidirectional_attention": True,
}
_DECODER: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 16}
_WINDOW = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", {}),
    "roberta": ("RobertaConfig", {"type_vocab_size": 1, "pad_token_id": 1, "bos_token_id": 0}),
    "xlm-roberta": ("XLMRobertaConfig", {"type_vocab_size": 1, "pad_token_id": 1}),
    "modernbert": ("ModernBertConfig", {"local_attention": 20, "mlp_bias": True}),
    "modernbert-biased": (
        "ModernBertConfig",
        {"local_attention": 200, "norm_bias": True, "attention_bias": True, "norm_eps": 1e-3},
    ),
    "nomic-bert": ("NomicBertConfig", {"layer_norm_eps": 1e-3}),
    "distilbert": ("DistilBertConfig", {"dim": 48, "hidden_dim": 80, "n_layers": 3, "n_heads": 3}),
    "mpnet": ("MPNetConfig", {"pad_token_id": 1, "bos_token_id": 0}),
    "embedding-gemma": ("Gemma3TextConfig", _GEMMA),
    "qwen3": ("Qwen3Config", _DECODER),
    "qwen2": ("Qwen2Config", {"num_key_value_heads": 1}),
    "qwen2-both-ways": ("Qwen2Config", {"num_key_value_heads": 1, "is_causal": False, **_WINDOW}),
}


def architecture_of(family: str, end: str = "Model") -> str:
    """Returns what config.json of a model of a family names."""
    return CONFIGS[family][0].removesuffix("Config") + end


def _fill(model: Any) -> Any:
    """Makes every weight random: ones and zeros hide mistakes."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                is_norm = "norm" in name.lower() and name.endswith("weight")
                parameter.uniform_(0.5, 1.5) if is_norm else parameter.normal_(0, 0.3)
    return model.eval()


def make_model(family: str, kind: str = "AutoModel", **overrides: Any) -> Any:
    """Returns a random model of transformers.

    Args:
        kind: class that makes it of its configuration.
    """
    name, flags = CONFIGS[family]
    config = getattr(transformers, name)(**(_SHAPE | flags | overrides))
    torch.manual_seed(0)
    return _fill(getattr(transformers, kind).from_config(config))


def save_model(path: Path, family: str, kind: str = "AutoModel", **overrides: Any) -> Any:
    """Saves a random model with a tokenizer; returns it as transformers runs it."""
    model = make_model(family, kind, **overrides)
    model.save_pretrained(path)
    make_tokenizer(path, padding=model.config.pad_token_id)
    return model


def make_tokenizer(path: Path, *, padding: int = _PAD) -> None:
    """A tokenizer of words that puts tokens around texts, and gives pairs token types."""
    types = ["token_type_ids"] if padding == _PAD else []  # RoBERTa has one
    names = ["<pad>", "<s>"] if padding == _PAD else ["<s>", "<pad>"]
    words = [*names, "</s>", "yes", "no", *(f"w{i}" for i in range(5, VOCAB))]
    tokenizer = Tokenizer(models.WordLevel(dict(zip(words, range(VOCAB), strict=True)), "no"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    specials = [("<s>", tokenizer.token_to_id("<s>")), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=specials
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        model_max_length=256,
        model_input_names=["input_ids", *types, "attention_mask"],
    ).save_pretrained(path)


def make_texts(*lengths: int) -> list[str]:
    """Returns texts of so many words."""
    rng = np.random.default_rng(7)
    return [" ".join(f"w{i}" for i in rng.integers(5, VOCAB, length)) for length in lengths]


def edit_json(file: Path, **changes: Any) -> None:
    """Changes fields of a JSON object; None drops one."""
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def token_ids_of(tokenizer: Any, texts: Sequence[Any]) -> list[list[int]]:
    """Returns the tokens of texts, or of pairs of texts."""
    encoded = [tokenizer(*text) if isinstance(text, tuple) else tokenizer(text) for text in texts]
    return [one["input_ids"] for one in encoded]
