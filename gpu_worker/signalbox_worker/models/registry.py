"""Which architectures a worker can serve; open to models outside the tree.

A model is registered under the architecture that its config.json names:

    register_model(ModelSpec("MyForCausalLM", read_config=my_config, build=MyModel))

What is not registered may run through transformers: see `find_model`.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.cohere_config import cohere2_config, cohere_config
from signalbox_worker.models.decoder_config import (
    granite_config,
    is_causal,
    llama_config,
    mistral_config,
    phi3_config,
    qwen2_config,
    qwen3_config,
)
from signalbox_worker.models.encoder_config import (
    bert_config,
    distilbert_config,
    modernbert_config,
    mpnet_config,
    nomic_bert_config,
    roberta_config,
    xlm_roberta_config,
)
from signalbox_worker.models.family_config import UnsoundConfig
from signalbox_worker.models.gemma4_config import gemma4_config
from signalbox_worker.models.gemma_config import gemma2_config, gemma3_config, gemma_config
from signalbox_worker.models.glm_config import glm4_config, glm_config
from signalbox_worker.models.gpt_oss_config import gpt_oss_config
from signalbox_worker.models.latent_config import (
    deepseek_v2_config,
    deepseek_v3_config,
    glm4_moe_lite_config,
)
from signalbox_worker.models.lfm2_config import lfm2_config, lfm2_moe_config
from signalbox_worker.models.llama_kin_config import helium_config, seed_oss_config
from signalbox_worker.models.mamba_config import granite_hybrid_config, nemotron_h_config
from signalbox_worker.models.ministral_config import ministral3_config
from signalbox_worker.models.mixture_config import (
    glm4_moe_config,
    granite_moe_config,
    mixtral_config,
    olmoe_config,
    qwen2_moe_config,
    qwen3_moe_config,
)
from signalbox_worker.models.post_norm_config import exaone4_config, olmo2_config, olmo3_config
from signalbox_worker.models.qwen_next_config import (
    qwen3_5_config,
    qwen3_5_moe_config,
    qwen3_next_config,
)
from signalbox_worker.models.rope_config import stretched_length
from signalbox_worker.models.smollm_config import smollm3_config

if TYPE_CHECKING:
    from signalbox_worker.models.layers import Model, ParallelGroup, Placement


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Functions that make a model of an architecture."""

    architecture: str
    read_config: Callable[[Mapping[str, Any]], Any]
    """Returns the family's configuration, a dataclass of which `ModelShape.of` reads the shape."""
    build: "Callable[[Any, int, Placement, ParallelGroup], Model]"
    """Takes what read_config returns, the longest sequence, the placement and the group."""
    has_stages: bool = False
    """True if the model holds the layers of `ParallelGroup.stage` alone, and reads and returns
    hidden states at its ends."""
    is_llama: bool = False
    """True if `read_config` returns a `DecoderConfig` that describes the whole model: a native
    program can compute it, and takes the weights by Llama's names, or in fused ones."""
    is_native_only: bool = False
    """True if nothing else of ours computes it: PyTorch does so through transformers."""
    refusal: str = ""
    """Reason why ours of this architecture does not compute the model; empty if there is none."""
    generates: bool = True
    """False for an architecture that only pools."""
    table: str = "model.embed_tokens.weight"
    """Name in checkpoints of the table of embeddings, which may be the head, too."""
    head: str = "lm_head.weight"
    """Name of its head, which counts if its content is another than the table's."""

    def make(
        self, config: Any, max_model_len: int, placement: "Placement", group: "ParallelGroup"
    ) -> "Model":
        """Builds a model, whose weights are not read yet."""
        from signalbox_worker.models.layers.model import as_model  # PyTorch's import takes seconds

        return as_model(self.build(config, max_model_len, placement, group))


_specs: dict[str, ModelSpec] = {}


def register_model(spec: ModelSpec) -> None:
    """Adds a model, or replaces the one of the same architecture."""
    _specs[spec.architecture] = spec


def architectures() -> frozenset[str]:
    return frozenset(_specs)


def only_pools(config: Mapping[str, Any]) -> bool:
    """Says whether a config.json names an architecture that generates no tokens."""
    names = config.get("architectures") or ()
    known = any(name in _specs and not _specs[name].generates for name in names)
    both_ways = config.get("use_bidirectional_attention") not in (None, False, "vision")
    return known or both_ways or not is_causal(config)


def has_native_program(names: Iterable[str]) -> bool:
    """Says whether native programs are for one of the architectures that a config.json names."""
    return any(name in _specs and _specs[name].is_llama for name in names)


def model_spec(config: Mapping[str, Any]) -> ModelSpec:
    names = config.get("architectures") or []
    for name in names:
        if name in _specs:
            return _specs[name]
    named = ", ".join(names) if names else "none named in config.json"
    raise ModelError(
        f"architecture not supported: {named}; supported are {', '.join(sorted(_specs))}"
    )


def find_model(
    config: Mapping[str, Any], *, impl: str, directory: Path | None, trust_remote_code: bool
) -> ModelSpec:
    """Finds our model for a config.json, or that of transformers.

    Args:
        impl: "signalbox", "transformers", or "auto": ours if it serves this configuration.
        directory: where config.json lies, if it is a directory.
    """
    if impl == "signalbox":
        return model_spec(config)
    theirs = _transformers_spec(config, directory, trust_remote_code)
    if impl == "transformers":
        return theirs
    try:
        ours = model_spec(config)
        ours.read_config(config)
        return ours
    except UnsoundConfig:
        raise
    except ModelError as refusal:
        is_known = any(name in _specs for name in config.get("architectures") or ())
        try:
            read = theirs.read_config(config)
        except ModelError as error:
            raise (refusal if is_known else error) from None
        reason = str(refusal) if is_known else ""  # transformers ran the model, without weights
        return replace(theirs, read_config=lambda _: read, refusal=reason)


def _transformers_spec(
    config: Mapping[str, Any], directory: Path | None, trust_remote_code: bool
) -> ModelSpec:
    return ModelSpec(
        (config.get("architectures") or ["unknown"])[0],
        partial(
            _read_transformers_config, directory=directory, trust_remote_code=trust_remote_code
        ),
        _build_transformers_model,
    )


def _read_transformers_config(
    config: Mapping[str, Any], *, directory: Path | None, trust_remote_code: bool
) -> Any:
    from signalbox_worker.models.transformers.config import read_config  # its import takes seconds

    return read_config(
        config, directory, trust_remote_code=trust_remote_code, stretched=stretched_length
    )


def _build_transformers_model(
    config: Any, max_model_len: int, placement: "Placement", group: "ParallelGroup"
) -> "Model":
    from signalbox_worker.models.transformers.model import TransformersModel

    return TransformersModel(config, max_model_len, placement, group)


def _from(module: str, name: str) -> Callable[..., Any]:
    """Returns a function of a module beside this one, which is imported by the first call."""

    def call(*arguments: Any) -> Any:
        function = getattr(importlib.import_module(f"signalbox_worker.models.{module}"), name)
        return function(*arguments)

    return call


for _name, _reader in (
    ("GemmaForCausalLM", gemma_config),
    ("Gemma2ForCausalLM", gemma2_config),
    ("Gemma3ForCausalLM", gemma3_config),
    ("GraniteForCausalLM", granite_config),
    ("LlamaForCausalLM", llama_config),
    ("MistralForCausalLM", mistral_config),
    ("Qwen2ForCausalLM", qwen2_config),
    ("Qwen3ForCausalLM", qwen3_config),
    ("SeedOssForCausalLM", seed_oss_config),
):
    register_model(
        ModelSpec(_name, _reader, _from("llama", "Decoder"), has_stages=True, is_llama=True)
    )
register_model(
    ModelSpec(
        "Phi3ForCausalLM",
        phi3_config,
        _from("phi3", "Phi3Decoder"),
        has_stages=True,
        is_llama=True,
    )
)
# These are imported when they are asked for: a native program is compiled without PyTorch.
for _name, _module, _reader_name, _model_name, _table in (
    ("GPT2LMHeadModel", "gpt2", "gpt2_config", "Gpt2Decoder", "transformer.wte"),
    ("OPTForCausalLM", "opt", "opt_config", "OptDecoder", "model.decoder.embed_tokens"),
):
    _read, _build = _from(_module, _reader_name), _from(_module, _model_name)
    register_model(ModelSpec(_name, _read, _build, has_stages=True, table=f"{_table}.weight"))
for _name, _reader in (
    ("MixtralForCausalLM", mixtral_config),
    ("Qwen3MoeForCausalLM", qwen3_moe_config),
):
    register_model(
        ModelSpec(_name, _reader, _from("mixture", "MoeDecoder"), has_stages=True, is_llama=True)
    )
for _name, _reader in (
    ("Cohere2ForCausalLM", cohere2_config),
    ("CohereForCausalLM", cohere_config),
    ("DeepseekV2ForCausalLM", deepseek_v2_config),
    ("DeepseekV3ForCausalLM", deepseek_v3_config),
    ("Exaone4ForCausalLM", exaone4_config),
    ("Glm4ForCausalLM", glm4_config),
    ("Glm4MoeForCausalLM", glm4_moe_config),
    ("Glm4MoeLiteForCausalLM", glm4_moe_lite_config),
    ("GlmForCausalLM", glm_config),
    ("GptOssForCausalLM", gpt_oss_config),
    ("GraniteMoeForCausalLM", granite_moe_config),
    ("GraniteMoeHybridForCausalLM", granite_hybrid_config),
    ("HeliumForCausalLM", helium_config),
    ("Lfm2ForCausalLM", lfm2_config),
    ("Lfm2MoeForCausalLM", lfm2_moe_config),
    ("Ministral3ForCausalLM", ministral3_config),
    ("NemotronHForCausalLM", nemotron_h_config),
    ("Olmo2ForCausalLM", olmo2_config),
    ("Olmo3ForCausalLM", olmo3_config),
    ("OlmoeForCausalLM", olmoe_config),
    ("Qwen2MoeForCausalLM", qwen2_moe_config),
    ("Qwen3NextForCausalLM", qwen3_next_config),
    ("Qwen3_5ForCausalLM", qwen3_5_config),
    ("Qwen3_5MoeForCausalLM", qwen3_5_moe_config),
    ("SmolLM3ForCausalLM", smollm3_config),
):
    register_model(
        ModelSpec(
            _name,
            _reader,
            _build_transformers_model,
            has_stages=True,
            is_llama=True,
            is_native_only=True,
        )
    )
register_model(
    ModelSpec(
        "Gemma4ForCausalLM",
        gemma4_config,
        _build_transformers_model,
        is_llama=True,
        is_native_only=True,
    )
)
for _family, _reader in (
    ("Llama", llama_config),
    ("Mistral", mistral_config),
    ("Qwen2", qwen2_config),
    ("Qwen3", qwen3_config),
):
    for _end in ("Model", "ForSequenceClassification"):
        register_model(
            ModelSpec(
                f"{_family}{_end}",
                _reader,
                _from("llama", "Decoder"),
                is_llama=True,
                generates=False,
            )
        )
register_model(
    ModelSpec(
        "Gemma3TextModel",
        gemma3_config,
        _from("llama", "Decoder"),
        is_llama=True,
        generates=False,
    )
)
_encoder_reader: Callable[[Mapping[str, Any]], Any]
for _family, _encoder_reader, _module, _model_name in (
    ("Bert", bert_config, "bert", "BertEncoder"),
    ("DistilBert", distilbert_config, "bert", "BertEncoder"),
    ("Roberta", roberta_config, "bert", "BertEncoder"),
    ("XLMRoberta", xlm_roberta_config, "bert", "BertEncoder"),
    ("MPNet", mpnet_config, "bert", "BertEncoder"),
    ("ModernBert", modernbert_config, "modernbert", "ModernBertEncoder"),
    ("NomicBert", nomic_bert_config, "nomicbert", "NomicBertEncoder"),
):
    for _end in ("Model", "ForMaskedLM", "ForSequenceClassification"):
        _build = _from(_module, _model_name)
        register_model(ModelSpec(f"{_family}{_end}", _encoder_reader, _build, generates=False))
register_model(ModelSpec("HF_ColBERT", bert_config, _from("bert", "BertEncoder"), generates=False))
