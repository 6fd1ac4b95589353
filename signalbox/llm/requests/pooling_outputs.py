"""Outputs of requests that are pooled, under vLLM's names."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from signalbox_contract.pooling import Vector

T = TypeVar("T")


@dataclass(slots=True)
class PoolingOutput:
    """Vector that a prompt was pooled to, or the vectors of its tokens."""

    data: Vector
    """[hidden_size] or [num_classes], or [num_tokens, size] of `token_embed`; float32."""


@dataclass(slots=True)
class EmbeddingOutput:
    """The embedding of a prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ClassificationOutput:
    """Probabilities of classes."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(slots=True)
class ScoringOutput:
    """Score of a pair of texts."""

    score: float


@dataclass(slots=True, kw_only=True)
class PoolingRequestOutput(Generic[T]):
    """The output of one prompt, or of one pair."""

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """The output of `LLM.embed`."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """The output of `LLM.classify`."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """The output of `LLM.score`."""
