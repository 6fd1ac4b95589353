"""Finds out what a model that pools makes of its hidden states: an embedding, or scores of classes.

Modules that sentence-transformers saved say so, or else the architecture: a classifier has its own
head, a decoder may answer yes or no, and any other model makes embeddings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from signalbox_contract.pooling import Activation, Task
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.checkpoints.gguf.pooling import GGUF_POOLING
from signalbox_worker.models import DecoderConfig, ModelShape
from signalbox_worker.models.pooling.classifier_heads import (
    Head,
    classifier_head,
    is_classifier,
    token_score_head,
)
from signalbox_worker.models.pooling.module_weights import Stored, find, read_weight
from signalbox_worker.models.pooling.pooler import Pooler
from signalbox_worker.models.pooling.sentence_transformers import (
    SavedModules,
    ScoredTokens,
    read_settings,
)
from signalbox_worker.models.pooling.token_pooling import PoolingMode
from signalbox_worker.models.pooling.vector_modules import Dense, Truncate, VectorModule
from signalbox_worker.runner.loading.model_source import ModelSource
from signalbox_worker.runner.loading.tokenizer_files import token_id

_ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
}
COLBERT = "HF_ColBERT"
"""Architecture of the checkpoints of ColBERT (Khattab and Zaharia, 2020): a BERT and a matrix."""
ModuleMaker = Callable[[Callable[[], Stored]], list[VectorModule]]
"""Makes modules; its argument returns the tensors of the model's checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledOutputs:
    """Layers that make outputs of a prompt's hidden states; weights are not read yet."""

    task: Task
    num_outputs: int
    activation: Activation
    modes: tuple[PoolingMode, ...]
    make_modules: ModuleMaker
    """Reads what follows pooling, of the model's checkpoint or of files of its own."""
    num_token_outputs: int
    """Elements of the vector of a token."""
    make_token_modules: ModuleMaker = lambda _: []
    """Reads what a token's own vector passes through."""
    files: tuple[Path, ...] = ()
    """Files beside the model's own that decide what is computed."""

    def make_pooler(self, source: ModelSource) -> Pooler:
        """Reads the weights of what follows pooling. Raises ModelError."""
        modules = self.make_modules(source.stored)
        return Pooler(self.modes, modules, self.make_token_modules(source.stored))


def pooled_outputs(
    model_config: ModelConfig,
    source: ModelSource,
    config: Any,
    shape: ModelShape,
    saved: SavedModules,
) -> PooledOutputs:
    """Returns the outputs of a model. Raises ModelError.

    Args:
        config: the family's own.
        saved: modules of the model.
    """
    convert, size = model_config.convert, shape.hidden_size
    architecture = (source.config.get("architectures") or [""])[0]
    if saved.have_pooling:
        return _saved_outputs(source, saved, size)
    if saved.token_modules:
        return _late_interaction(saved, size)
    if architecture == COLBERT:
        return _colbert(source, size)
    if saved.have_score:
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


def _embeddings(size: int, mode: PoolingMode, activation: Activation) -> PooledOutputs:
    return PooledOutputs(
        task="embed",
        num_outputs=size,
        activation=activation,
        modes=(mode,),
        make_modules=lambda _: [],
        num_token_outputs=size,
    )


def _late_interaction(saved: SavedModules, size: int) -> PooledOutputs:
    """Vectors of tokens alone, by modules that sentence-transformers or PyLate saved."""
    num_outputs = saved.size_after(size)
    is_normalized = saved.is_normalized or saved.are_pylates
    return PooledOutputs(
        task="token_embed",
        num_outputs=num_outputs,
        activation="normalize" if is_normalized else "identity",
        modes=(),
        make_modules=lambda _: [],
        num_token_outputs=num_outputs,
        make_token_modules=lambda _: saved.make(size, without_last_normalize=True),
        files=tuple(saved.files),
    )


def _colbert(source: ModelSource, size: int) -> PooledOutputs:
    """Vectors of tokens alone, by the projection that ColBERT's own checkpoints have."""
    name = "linear.weight"
    num_outputs = find(source.stored(), name).shape[0]
    return PooledOutputs(
        task="token_embed",
        num_outputs=num_outputs,
        activation="normalize",
        modes=(),
        make_modules=lambda _: [],
        num_token_outputs=num_outputs,
        make_token_modules=lambda read: [Dense(read_weight(read(), name, (num_outputs, size)))],
    )


def _saved_outputs(source: ModelSource, saved: SavedModules, size: int) -> PooledOutputs:
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
    return PooledOutputs(
        task="classify" if classifies else "embed",
        num_outputs=cut or num_outputs,
        activation=activation,
        modes=modes,
        make_modules=make,
        num_token_outputs=0 if classifies else size,
        files=tuple(saved.files),
    )


def _classified(source: ModelSource, head: Head) -> PooledOutputs:
    return PooledOutputs(
        task="classify",
        num_outputs=head.num_outputs,
        activation=_activation(source, head.num_outputs),
        modes=(head.mode,),
        make_modules=lambda read: head.make(read()),
        num_token_outputs=0,
    )


def _token_head(source: ModelSource, config: Any, tokens: ScoredTokens) -> Head:
    is_plain = type(config) is DecoderConfig and config.logit_soft_cap is None
    if not is_plain or config.is_bidirectional:
        raise ModelError(
            "scores by logits of tokens are made of decoders of the Llama family alone, and not of "
            "capped logits; use another one, or a model with a classifier"
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
