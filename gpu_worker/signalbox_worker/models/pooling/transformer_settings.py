"""Checks the settings of the model itself in a directory of sentence-transformers.

They are in sentence_bert_config.json, also under the names of old releases. A setting that would
change a vector, and that nothing here reads, is refused by its name.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.json_file import read_json

_TASKS = ("feature-extraction", "sequence-classification", "text-generation")
_OUTPUTS = ("token_embeddings", "causal_logits", "scores")
_HIDDEN = ("last_hidden_state", "logits")
_OF_TEXTS = ("document_length", "query_length", "query_expansion")
"""Settings of late interaction, whose clients cut texts and add tokens to queries."""
_OF_CALLS = frozenset({"padding", "return_tensors", "truncation"})
_OF_LOADING = frozenset(
    {
        "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "padding_side",
        "torch_dtype", "trust_remote_code", "use_fast", "add_pooling_layer",
    }
)  # fmt: skip
"""Arguments that change how transformers computes, or computes what is not used."""


def check_transformer_settings(file: Path, *, makes_token_vectors: bool = False) -> None:
    """Raises ModelError for a setting that is not served.

    Args:
        makes_token_vectors: whether the model is for late interaction alone.
    """
    for name, value in read_json(file).items():
        if value is None or value == {} or (makes_token_vectors and name in _OF_TEXTS):
            continue
        judge = _JUDGES.get(name)
        if judge is None or (fault := judge(value)) is None:
            _refuse(file, name, value)
        elif fault:
            _refuse(file, f"{name}.{fault}", value)


def longest_sequence(settings: Mapping[str, Any]) -> Any:
    """Returns max_seq_length, or what stands in its place; None if nothing does."""
    for name in ("max_seq_length", "document_length"):
        if (length := settings.get(name)) is not None:
            return length
    of_tokenizer = settings.get("processor_kwargs") or settings.get("tokenizer_args") or {}
    return of_tokenizer.get("model_max_length")


def _refuse(file: Path, name: str, value: Any) -> None:
    raise ModelError(
        f"{file.name} says {name} = {str(value)[:80]}, which is not supported and may change "
        "vectors; write it into config.json or tokenizer_config.json if it belongs there"
    )


def _any(_: Any) -> str:
    return ""


def _one_of(*allowed: Any) -> Callable[[Any], str | None]:
    return lambda value: "" if value in allowed else None


def _only(names: frozenset[str]) -> Callable[[Any], str | None]:
    """Takes a mapping with these names; another name with a value is the fault."""

    def judge(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return None
        return next((one for one in value if one not in names and value[one] is not None), "")

    return judge


def _modalities(value: Any) -> str | None:
    """Takes the hidden states or logits of texts; other modalities are never asked for."""
    if not isinstance(value, Mapping):
        return None
    texts = [value[one] for one in ("text", "message") if one in value]
    is_served = all(
        isinstance(one, Mapping) and one.get("method_output_name") in (*_HIDDEN, None)
        for one in texts
    )
    return "" if is_served else None


def _processing(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return None
    for name in ("common", "text"):
        fault = _only(_OF_CALLS)(value.get(name) or {})
        if fault != "":
            return f"{name}.{fault}" if fault else name
    return ""


_JUDGES: Mapping[str, Callable[[Any], str | None]] = {
    "max_seq_length": _any,
    "do_lower_case": _one_of(True, False),
    "transformer_task": _one_of(*_TASKS),
    "module_output_name": _one_of(*_OUTPUTS),
    "modality_config": _modalities,
    "processing_kwargs": _processing,
    "unpad_inputs": _one_of(True, False),
    **dict.fromkeys(
        ("model_args", "model_kwargs", "config_args", "config_kwargs"), _only(_OF_LOADING)
    ),
    **dict.fromkeys(
        ("tokenizer_args", "processor_kwargs"), _only(_OF_LOADING | {"model_max_length"})
    ),
}
"""Fault of a setting: "" is none, None the value, another text a name in it."""
