"""Finds out whether and how an opened model pools, out of its files.

A directory of sentence-transformers says so itself. Another one does by its architecture: a
classifier has its own head, any other model makes embeddings as sentence-transformers would.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.pooling import Activation, PoolingModel
from gpu_worker.checkpoints.gguf.pooling import GGUF_POOLING
from gpu_worker.checkpoints.json_file import read_json
from gpu_worker.config import ModelConfig, ModelError
from gpu_worker.loading.model_source import ModelSource
from gpu_worker.loading.tokenizer_files import token_id
from gpu_worker.models import DecoderConfig, Pooled, ServedConfig, only_pools
from gpu_worker.pooling.classifier_heads import (
    Head,
    classifier_head,
    is_classifier,
    token_score_head,
)
from gpu_worker.pooling.module_weights import Stored
from gpu_worker.pooling.pooler import Pooler
from gpu_worker.pooling.sentence_transformers import (
    MODULES,
    SETTINGS,
    SavedModules,
    ScoredTokens,
    has_modules,
    read_modules,
    read_settings,
    transformer_config_file,
)
from gpu_worker.pooling.token_pooling import PoolingMode
from gpu_worker.pooling.transformer_settings import (
    check_transformer_settings,
    longest_sequence,
)
from gpu_worker.pooling.vector_modules import Truncate, VectorModule

_ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}
ModuleMaker = Callable[[Callable[[], Stored]], list[VectorModule]]
"""Makes modules; its argument returns the tensors of the model's checkpoint."""
_NO_LIMIT = 1 << 30
"""Tokenizers without a longest sequence name a larger number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPooling:
    """How a model pools; the weights of its head are not read yet."""

    model: PoolingModel
    modes: tuple[PoolingMode, ...]
    make_modules: ModuleMaker
    """Reads what follows pooling, of the model's checkpoint or of files of its own."""
    max_length: int | None
    """Longest sequence that the files name, in tokens."""
    files: tuple[Path, ...] = ()
    """Files beside the model's own that decide what is computed."""
    texts: Mapping[str, Path]
    """Files that say how texts become prompts and what outputs mean, by the names for routers."""

    def make_pooler(self, source: ModelSource) -> Pooler:
        """Reads the weights of what follows pooling. Raises ModelError."""
        return Pooler(self.modes, self.make_modules(source.stored))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outputs:
    """The part of `OpenedPooling` that tasks differ in."""

    task: str
    num_outputs: int
    activation: Activation
    modes: tuple[PoolingMode, ...]
    make_modules: ModuleMaker
    files: tuple[Path, ...] = ()


def is_pooling(model_config: ModelConfig, source: ModelSource) -> bool:
    """Says whether a model is to pool; it may not be able to."""
    if model_config.runner != "auto":
        return model_config.runner == "pooling"
    return has_modules(source.root) or only_pools(source.config) or GGUF_POOLING in source.config


def open_pooling(
    model_config: ModelConfig, source: ModelSource, config: ServedConfig
) -> OpenedPooling:
    """Reads how a model pools. Raises ModelError if it cannot."""
    if not isinstance(config, Pooled):
        raise ModelError(
            f"{config.architecture} is not served with --runner pooling; use an encoder, or a "
            "model of the Llama or Gemma family"
        )
    root = source.root
    transformer = _transformer_config_file(source)
    if transformer is not None:
        check_transformer_settings(transformer)
    saved = read_modules(root) if root is not None and has_modules(root) else None
    outputs = _outputs(model_config, source, config, saved)
    dimensions = _dimensions(source.config, outputs)
    return OpenedPooling(
        model=PoolingModel(
            task="classify" if outputs.task == "classify" else "embed",
            num_outputs=outputs.num_outputs,
            is_bidirectional=config.is_bidirectional,
            reads_all_tokens=config.is_bidirectional or outputs.modes != ("lasttoken",),
            activation=outputs.activation,
            dimensions=dimensions,
        ),
        modes=outputs.modes,
        make_modules=outputs.make_modules,
        max_length=_max_length(source),
        files=outputs.files,
        texts=_texts(source, saved),
    )


def _outputs(
    model_config: ModelConfig, source: ModelSource, config: Pooled, saved: SavedModules | None
) -> _Outputs:
    convert, size = model_config.convert, config.hidden_size
    architecture = (source.config.get("architectures") or [""])[0]
    if saved is not None and saved.pooling is not None:
        return _saved_outputs(source, saved, size)
    if saved is not None and saved.score is not None:
        return _classified(source, _token_head(source, config, saved.scored_tokens))
    if is_classifier(architecture):
        if convert == "embed":
            raise ModelError(f"{architecture} makes scores; leave --convert embed out")
        return _classified(source, classifier_head(source.config, size))
    if convert == "classify":
        return _classified(source, _token_head(source, config, _yes_and_no(source)))
    if (named := source.config.get(GGUF_POOLING)) is not None:
        return _embeddings(size, named, "normalize")  # as llama.cpp's server does
    mode: PoolingMode = "lasttoken" if architecture.endswith("ForCausalLM") else "mean"
    return _embeddings(size, mode, "identity")


def _embeddings(size: int, mode: PoolingMode, activation: Activation) -> _Outputs:
    return _Outputs(
        task="embed",
        num_outputs=size,
        activation=activation,
        modes=(mode,),
        make_modules=lambda _: [],
    )


def _saved_outputs(source: ModelSource, saved: SavedModules, size: int) -> _Outputs:
    """Outputs of modules that sentence-transformers saved."""
    modes = saved.modes
    width = size * len(modes)
    num_outputs, settings = saved.size_after(width), read_settings(source.root)
    truncated = settings.get("truncate_dim")
    cut = truncated if type(truncated) is int and 0 < truncated < num_outputs else None
    # A vector that is cut is not normed again: both are done here.
    is_normalized = saved.is_normalized and cut is None

    def make(_: Callable[[], Stored]) -> list[VectorModule]:
        modules = saved.make(width, without_last_normalize=is_normalized)
        return modules if cut is None else [*modules, Truncate(cut)]

    classifies = saved.makes_scores
    activation: Activation = "normalize" if is_normalized else "identity"
    if classifies:
        activation = _activation(source, num_outputs)
    return _Outputs(
        task="classify" if classifies else "embed",
        num_outputs=cut or num_outputs,
        activation=activation,
        modes=modes,
        make_modules=make,
        files=tuple(saved.files),
    )


def _classified(source: ModelSource, head: Head) -> _Outputs:
    return _Outputs(
        task="classify",
        num_outputs=head.num_outputs,
        activation=_activation(source, head.num_outputs),
        modes=(head.mode,),
        make_modules=lambda read: head.make(read()),
    )


def _token_head(source: ModelSource, config: Pooled, tokens: ScoredTokens) -> Head:
    if type(config) is not DecoderConfig or config.is_bidirectional:
        raise ModelError(
            "scores by logits of tokens are made of decoders of the Llama family alone; use one, "
            "or a model with a classifier"
        )
    return token_score_head(
        tokens, config.hidden_size, divisor=config.logit_divisor, tied=config.tie_embeddings
    )


def _yes_and_no(source: ModelSource) -> ScoredTokens:
    """Returns the tokens by which a reranker without modules answers, as Qwen3's do."""
    tokenizer = source.tokenizer_files()["tokenizer.json"]
    yes, no = (token_id(tokenizer, word) for word in ("yes", "no"))
    if yes is None or no is None:
        raise ModelError("--convert classify takes a tokenizer with the tokens 'yes' and 'no'")
    return ScoredTokens(yes, no)


def _activation(source: ModelSource, num_outputs: int) -> Activation:
    """Returns the function of a classifier that a file names, or the usual one."""
    config, inner = source.config, source.config.get("sentence_transformers")
    named = read_settings(source.root).get("activation_fn")
    if named is None and isinstance(inner, Mapping):
        named = inner.get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function")
    if named is None:
        if num_outputs == 1:
            return "sigmoid"
        kind = config.get("problem_type")
        usual: dict[Any, Activation] = {
            "multi_label_classification": "sigmoid",
            "regression": "identity",
        }
        return usual.get(kind, "softmax")
    name = str(named).rpartition(".")[2]
    if name not in _ACTIVATIONS:
        raise ModelError(
            f"the activation function {str(named)[:80]!r} of scores is not supported; use "
            f"torch.nn's {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def _dimensions(config: Mapping[str, Any], outputs: _Outputs) -> tuple[int, ...]:
    """Returns the sizes that embeddings may be cut to; config.json names them, or allows all."""
    named = config.get("matryoshka_dimensions")
    if outputs.task == "classify" or (named is None and not config.get("is_matryoshka")):
        return ()
    if named is None:
        return tuple(range(1, outputs.num_outputs + 1))
    if not isinstance(named, list) or not all(type(one) is int and one > 0 for one in named):
        raise ModelError(f"config.json says matryoshka_dimensions = {str(named)[:40]}")
    return tuple(sorted({one for one in named if one <= outputs.num_outputs}))


def _transformer_config_file(source: ModelSource) -> Path | None:
    return None if source.directory is None else transformer_config_file(source.directory)


def _max_length(source: ModelSource) -> int | None:
    """Returns the longest sequence by sentence-transformers' file, or else by the tokenizer's."""
    if source.directory is None:
        return None
    file = _transformer_config_file(source)
    length = longest_sequence(read_json(file)) if file is not None else None
    if length is None:
        tokenizer = json.loads(source.tokenizer_files()["tokenizer_config.json"])
        length = tokenizer.get("model_max_length")
    is_number = isinstance(length, int | float) and 1 < length < _NO_LIMIT
    return int(length) if is_number and length is not None else None


def _texts(source: ModelSource, saved: SavedModules | None) -> dict[str, Path]:
    """Returns the files for routers; those of the model itself by the same names everywhere."""
    if source.directory is None or source.root is None:
        return {}
    files = {"config.json": source.directory / "config.json"}
    transformer = _transformer_config_file(source)
    if transformer is not None:
        files["sentence_bert_config.json"] = transformer
    for name in (MODULES, SETTINGS):
        files[name] = source.root / name
    if saved is not None and saved.pooling is not None:
        files["pooling_config.json"] = saved.pooling.folder / "config.json"
    return {name: file for name, file in files.items() if file.is_file()}
