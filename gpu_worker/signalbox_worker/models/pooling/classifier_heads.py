"""The heads of sequence classifiers: how tokens are pooled, and the modules that make scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from signalbox_kernels.floats import to_float32
from signalbox_worker.config import ModelError
from signalbox_worker.models.family_config import FamilyConfig, small
from signalbox_worker.models.pooling.module_weights import Stored, find, read_weight
from signalbox_worker.models.pooling.sentence_transformers import ScoredTokens
from signalbox_worker.models.pooling.token_pooling import PoolingMode
from signalbox_worker.models.pooling.vector_modules import (
    Dense,
    Function,
    LogitDifference,
    VectorLayerNorm,
    VectorModule,
    config_function,
)

CLASSIFIER = "ForSequenceClassification"
"""End of the architectures that are classifiers."""


_POOLERS = {"Bert": "bert.pooler.dense", "NomicBert": "nomic_bert.pooler.dense"}
"""Names of the product before a classifier, in families that keep it beside the encoder."""
_OF_ROBERTA = ("MPNet", "Roberta", "XLMRoberta")
"""Families that name both products of the head as RoBERTa does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head without its weights."""

    mode: PoolingMode
    num_outputs: int
    make: Callable[[Stored], list[VectorModule]]
    """Reads the weights of the modules out of the model's checkpoint."""


def is_classifier(architecture: str) -> bool:
    return architecture.endswith(CLASSIFIER)


def classifier_head(config: Mapping[str, Any], hidden_size: int) -> Head:
    """Returns the head of a classifier by its config.json. Raises ModelError."""
    family = config["architectures"][0].removesuffix(CLASSIFIER)
    config = FamilyConfig.of_file(config)
    num_labels = _num_labels(config)

    def make(stored: Stored) -> list[VectorModule]:
        if family in _POOLERS:
            return _dense_pair(stored, _POOLERS[family], "classifier", hidden_size, num_labels)
        if family == "DistilBert":
            names = ("pre_classifier", "classifier")
            relu = config_function("relu", "the classifier")
            return _dense_pair(stored, *names, hidden_size, num_labels, function=relu)
        if family in _OF_ROBERTA:
            names = ("classifier.dense", "classifier.out_proj")
            return _dense_pair(stored, *names, hidden_size, num_labels)
        if family == "ModernBert":
            return _modernbert_modules(stored, config, hidden_size, num_labels)
        return [Dense(read_weight(stored, "score.weight", (num_labels, hidden_size)))]

    mode: PoolingMode = "lasttoken"
    if family in (*_POOLERS, "DistilBert", *_OF_ROBERTA):
        mode = "cls"
    elif family == "ModernBert":
        mode = _modernbert_mode(config)
    return Head(mode=mode, num_outputs=num_labels, make=make)


def token_score_head(tokens: ScoredTokens, hidden_size: int, *, divisor: float, tied: bool) -> Head:
    """Returns the head of a reranker that scores by logits of the last token.

    Args:
        divisor: of logits.
        tied: True if the table of embeddings is the language model's head.
    """
    name = "model.embed_tokens.weight" if tied else "lm_head.weight"
    rows = [row for row in tokens if row is not None]

    def make(stored: Stored) -> list[VectorModule]:
        table = find(stored, name).read()
        if table.shape[1:] != (hidden_size,) or max(rows) >= len(table):
            raise ModelError(f"{name} has no rows of the tokens that make the score")
        weight = np.ascontiguousarray(to_float32(table[rows])) / np.float32(divisor)
        return [Dense(weight), LogitDifference()] if len(rows) > 1 else [Dense(weight)]

    return Head(mode="lasttoken", num_outputs=1, make=make)


def _num_labels(config: Mapping[str, Any]) -> int:
    labels = config.get("id2label")
    num_labels = len(labels) if isinstance(labels, Mapping) else config["num_labels"]
    if type(num_labels) is not int or num_labels < 1:
        raise ModelError(f"config.json says num_labels = {str(num_labels)[:40]}")
    return num_labels


def _dense_pair(
    stored: Stored,
    first: str,
    second: str,
    hidden_size: int,
    num_labels: int,
    *,
    function: Function = np.tanh,
) -> list[VectorModule]:
    return [
        Dense(
            read_weight(stored, f"{first}.weight", (hidden_size, hidden_size)),
            read_weight(stored, f"{first}.bias", (hidden_size,)),
            function,
        ),
        _classifier(stored, second, hidden_size, num_labels),
    ]


def _classifier(stored: Stored, name: str, hidden_size: int, num_labels: int) -> Dense:
    return Dense(
        read_weight(stored, f"{name}.weight", (num_labels, hidden_size)),
        read_weight(stored, f"{name}.bias", (num_labels,)),
    )


def _modernbert_mode(config: Mapping[str, Any]) -> PoolingMode:
    mode = config["classifier_pooling"]
    if mode == "cls":
        return "cls"
    if mode == "mean":
        return "mean"
    raise ModelError(f"config.json says classifier_pooling = {str(mode)[:40]}; use cls or mean")


def _modernbert_modules(
    stored: Stored, config: Mapping[str, Any], hidden_size: int, num_labels: int
) -> list[VectorModule]:
    def vector(name: str, flag: str) -> Any:
        return read_weight(stored, name, (hidden_size,)) if config[flag] else None

    function = config_function(config["classifier_activation"], "the classifier")
    dense = read_weight(stored, "head.dense.weight", (hidden_size, hidden_size))
    norm = read_weight(stored, "head.norm.weight", (hidden_size,))
    return [
        Dense(dense, vector("head.dense.bias", "classifier_bias"), function),
        VectorLayerNorm(norm, vector("head.norm.bias", "norm_bias"), small(config, "norm_eps")),
        _classifier(stored, "classifier", hidden_size, num_labels),
    ]
