"""Finds the class of transformers for a config.json, and says why a model cannot be served by it.

A model is run once without weights (on PyTorch's meta device), which shows what its layers ask of
attention: that is more reliable than any list of architectures.
"""

import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.text_part import MULTIMODAL
from signalbox_worker.files.quantised.configuration import QUANTIZATION, quantised_checkpoint
from signalbox_worker.models.transformers.attention import (
    IMPLEMENTATION,
    PROBE,
    CallRecorder,
    PagedLayers,
    answering,
    register,
)
from signalbox_worker.models.transformers.longrope import original_length
from signalbox_worker.models.transformers.text_model import text_class

_LAYER_TYPES = {"full_attention", "sliding_attention", "attention"}
_CHUNKED = "chunked_attention"
_PROBE_TOKENS = 3
Stretch = Callable[[Mapping[str, Any], int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformersConfig:
    """A model of transformers with what a worker must know of it."""

    architecture: str
    model_class: Any
    hf_config: Any
    vocab_size: int
    max_position: int
    usual_length: int
    """Longest window, in tokens, that keeps the original rotary embedding."""
    layers: PagedLayers
    """The layers, one for each call of attention in a forward pass."""
    is_part: bool = False
    """True if the files hold a larger model, of whose names of tensors these are a part."""

    @property
    def num_layers(self) -> int:
        return len(self.layers.sliding_windows)

    @property
    def num_heads(self) -> int:
        return self.layers.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.layers.num_kv_heads

    @property
    def head_size(self) -> int:
        return self.layers.head_size

    @property
    def scale(self) -> float:
        return self.layers.scale

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        return self.layers.sliding_windows

    @property
    def has_sinks(self) -> bool:
        return self.layers.has_sinks


def read_config(
    config: Mapping[str, Any],
    directory: Path | None,
    *,
    trust_remote_code: bool,
    stretched: Stretch,
) -> TransformersConfig:
    """Reads a configuration.

    Args:
        stretched: returns the window of a rotation's parameters and max_position_embeddings.

    Raises ModelError with the reason, in one line, for a model that cannot be served.
    """
    architecture = (config.get("architectures") or ["none named in config.json"])[0]
    architecture, is_part = config.get(MULTIMODAL, architecture), False
    try:
        if trust_remote_code and "auto_map" in config and directory is not None:
            model_class, hf_config = _remote(config, directory)
        else:
            model_class = _model_class(architecture, config)
            is_part = MULTIMODAL in config and model_class.__name__ != architecture
            hf_config = _hf_config(model_class, config, None if is_part else directory)
        _set_quantization(hf_config, config)
        read = _inspect(architecture, model_class, hf_config, stretched)
        return replace(read, is_part=is_part)
    except ModelError as error:
        raise ModelError(
            f"architecture not supported: {architecture}: {error}, so it cannot run through "
            "transformers either; docs/reference/models.md lists what is served"
        ) from None


def _model_class(architecture: str, config: Mapping[str, Any]) -> Any:
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if MULTIMODAL in config:
        return text_class(config, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    if architecture in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return getattr(transformers, architecture)
    if "auto_map" in config:
        raise ModelError("it is code in the model's own repository, and trust_remote_code is off")
    version = transformers.__version__
    if hasattr(transformers, architecture):
        raise ModelError(f"it is no causal language model of transformers {version}")
    raise ModelError(f"transformers {version} does not know it")


def _hf_config(model_class: Any, config: Mapping[str, Any], directory: Path | None) -> Any:
    """Makes transformers' own configuration, from the file itself if there is one."""
    base = _kept_base(config)
    try:
        if directory is not None and not base:
            return model_class.config_class.from_pretrained(directory)
        return model_class.config_class.from_dict(copy.deepcopy({**config, **base}))
    except Exception as error:  # each class has its own checks
        raise ModelError(f"its configuration is not valid ({_line(error)})") from None


def _kept_base(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the base of rope_parameters where rope_scaling counts instead and says none, which
    transformers would forget."""
    before, scaling = config.get("rope_parameters"), config.get("rope_scaling")
    if not (scaling and isinstance(before, Mapping) and isinstance(scaling, Mapping)):
        return {}
    if "rope_theta" in config or "rope_theta" in scaling or "rope_theta" not in before:
        return {}
    return {"rope_theta": before["rope_theta"]}


def _set_quantization(hf_config: Any, config: Mapping[str, Any]) -> None:
    """Takes over how the weights are quantised, which transformers reads under one name alone."""
    described = config.get(QUANTIZATION)
    if _has_floats(config):
        if hasattr(hf_config, QUANTIZATION):
            del hf_config.quantization_config
    elif isinstance(described, Mapping):
        hf_config.quantization_config = dict(described)


def _has_floats(config: Mapping[str, Any]) -> bool:
    try:
        return quantised_checkpoint(config) is None
    except ModelError:  # transformers may know that form
        return False


def _remote(config: Mapping[str, Any], directory: Path) -> tuple[Any, Any]:
    """Loads the classes that come with the weights."""
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    reference = config["auto_map"].get("AutoModelForCausalLM")
    if reference is None:
        raise ModelError("its own code names no AutoModelForCausalLM")
    try:
        hf_config = AutoConfig.from_pretrained(str(directory), trust_remote_code=True)
        return get_class_from_dynamic_module(reference, str(directory)), hf_config
    except Exception as error:  # foreign code may raise anything
        raise ModelError(f"its own code cannot be loaded ({_line(error)})") from None


def _inspect(
    architecture: str, model_class: Any, hf_config: Any, stretched: Stretch
) -> TransformersConfig:
    text_config = hf_config.get_text_config(decoder=True)
    chunk = _as_full_attention(text_config)
    _refuse_configuration(model_class, text_config)
    layers = PagedLayers.of(_recorded_calls(model_class, hf_config).calls)
    max_position = min(chunk, _max_position(text_config, stretched))
    _refuse_cache(text_config, layers.sliding_windows, max_position)
    return TransformersConfig(
        architecture=architecture,
        model_class=model_class,
        hf_config=hf_config,
        vocab_size=int(text_config.vocab_size),
        max_position=max_position,
        usual_length=min(max_position, original_length(text_config) or max_position),
        layers=layers,
    )


def _as_full_attention(text_config: Any) -> int:
    """Returns the longest window in which chunked attention (Llama 4) is full attention, and makes
    its layers ask for that; a step's tokens have no place from which to scale queries."""
    kinds = getattr(text_config, "layer_types", None) or []
    if _CHUNKED not in kinds:
        return sys.maxsize
    text_config.layer_types = ["full_attention" if one == _CHUNKED else one for one in kinds]
    if not text_config.attn_temperature_tuning:
        return int(text_config.attention_chunk_size)
    text_config.attn_temperature_tuning = False  # its factor is 1 up to floor_scale
    return min(int(text_config.attention_chunk_size), int(text_config.floor_scale) - 1)


def _refuse_configuration(model_class: Any, text_config: Any) -> None:
    # Decoders that are cut out of such a model say so in their class alone.
    if getattr(type(text_config), "is_encoder_decoder", False) is True:
        raise ModelError("it is an encoder with a decoder")
    if not getattr(text_config, "is_causal", True):
        raise ModelError("is_causal is false, and paged attention sees no later tokens")
    kinds = set(getattr(text_config, "layer_types", None) or ())
    if others := kinds - _LAYER_TYPES:
        raise ModelError(f"it has layers of type {min(others)!r}, which a KV cache cannot hold")
    if not kinds and getattr(model_class, "_is_stateful", False):
        raise ModelError("its layers keep states, which a KV cache cannot hold")


def _refuse_cache(text_config: Any, windows: Sequence[int | None], max_position: int) -> None:
    """Raises ModelError where transformers' cache forgets what a layer's mask lets it see."""
    from transformers.cache_utils import get_layer_types_and_kwargs

    _, kept = get_layer_types_and_kwargs(text_config)
    for window, arguments in zip(windows, kept, strict=False):
        length = arguments.get("sliding_window")
        if length is not None and length != window and length < max_position:
            raise ModelError(f"its cache has a sliding_window of {length}, and its masks have none")


def _max_position(text_config: Any, stretched: Stretch) -> int:
    """Returns the longest window, which scaling of the rotation stretches as in vLLM."""
    length = getattr(text_config, "max_position_embeddings", None)
    if length is None:
        raise ModelError("its configuration has no max_position_embeddings")
    rope = getattr(text_config, "rope_parameters", None) or {}
    nested = [one for one in rope.values() if isinstance(one, dict)] or [rope]
    if "gemma3" in text_config.model_type:  # whose field counts it
        return int(length)
    return max(stretched(one, int(length)) for one in nested)


def _recorded_calls(model_class: Any, hf_config: Any) -> CallRecorder:
    """Runs the model without weights; raises ModelError if that fails."""
    recorder = CallRecorder()
    probed = copy.deepcopy(hf_config)
    probed._experts_implementation = "batched_mm"  # others choose by the values of tensors
    try:
        with torch.device("meta"):
            model = make_model(model_class, probed, torch.float32, attention=PROBE)
            ids = torch.zeros(1, _PROBE_TOKENS, dtype=torch.long)
        with torch.no_grad(), answering(recorder):
            # A mask of no padding keeps transformers from looking for packed sequences by value.
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    except ModelError:
        raise
    except Exception as error:  # whatever the model's code meets, it cannot be served
        if isinstance(error, KeyError) and error.args == (PROBE,):
            return CallRecorder()  # it chooses among implementations of its own
        raise ModelError(f"it does not run on packed tokens ({_line(error)})") from None
    return recorder


def make_model(
    model_class: Any, hf_config: Any, dtype: torch.dtype, *, attention: str = IMPLEMENTATION
) -> Any:
    """Makes the model with our attention, on the current default device."""
    register()
    return prepared(model_class._from_config(hf_config, dtype=dtype, attn_implementation=attention))


def prepared(model: Any) -> Any:
    """Readies a model for steps; a look at the ids for padding would wait for the device."""
    for module in model.modules():
        if hasattr(module, "warn_if_padding_and_no_attention_mask"):
            module.warn_if_padding_and_no_attention_mask = _silent
    return model.eval()


def _silent(*_: Any, **__: Any) -> None:
    """Warns of nothing."""


def _line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip()[:200] if lines else type(error).__name__
