"""Similarity of two embeddings, by the functions that sentence-transformers names."""

from collections.abc import Callable, Mapping

import numpy as np

from signalbox_contract.errors import FailedPrecondition
from signalbox_contract.pooling import Vector
from signalbox_router.generation.pooling.activations import normalized
from signalbox_router.prompt.served_model import ServedModel

Similarity = Callable[[Vector, Vector], float]
"""Similarity of two vectors of float32, or of those of two texts' tokens; higher is nearer."""


def similarity_of(model: ServedModel) -> Similarity:
    """Returns the model's function. Raises FailedPrecondition for one that is not served."""
    texts = model.tokenizer.pooling_texts
    if model.task == "token_embed":
        if texts.has_unread_marks:
            raise FailedPrecondition(
                f"model {model.name!r} scores texts that are marked as query and document, and"
                " queries that are padded with mask tokens, which is not supported; its vectors"
                " are served (/pooling with token ids), and so are scores of the same model as"
                " sentence-transformers or PyLate save it"
            )
        return maxsim
    name = texts.similarity
    if name not in _FUNCTIONS:
        known = ", ".join(_FUNCTIONS)
        raise FailedPrecondition(
            f"model {model.name!r} scores by similarity_fn_name {name!r}, which is not supported;"
            f" supported are {known}; its embeddings are served"
        )
    return _FUNCTIONS[name]


def cosine(a: Vector, b: Vector) -> float:
    """Returns the cosine of the angle between two vectors, 0 if one is all zeros."""
    return _dot(normalized(a), normalized(b))


def maxsim(query: Vector, document: Vector) -> float:
    """Returns the sum of each query token's largest product with a token of the document, as
    ColBERT scores (Khattab and Zaharia, 2020).

    Args:
        query, document: [num_tokens, size].
    """
    return float((query @ document.T).max(axis=1).sum())


def _dot(a: Vector, b: Vector) -> float:
    return float(np.dot(a, b))


def _euclidean(a: Vector, b: Vector) -> float:
    return -float(np.linalg.norm(a - b))


def _manhattan(a: Vector, b: Vector) -> float:
    return -float(np.abs(a - b).sum())


_FUNCTIONS: Mapping[str, Similarity] = {
    "cosine": cosine,
    "dot": _dot,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}
