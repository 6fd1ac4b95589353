"""A model that schedulers' workers serve, as the router knows it."""

from dataclasses import dataclass, field, fields
from typing import Self

from signalbox_contract.model import Adapter, ModelInfo
from signalbox_contract.pooling import PoolingModel
from signalbox_contract.sampling_defaults import NO_DEFAULTS, SamplingDefaults
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """Properties of the model that requests are checked against; see worker.proto for the
    fields."""

    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer
    sampling_defaults: SamplingDefaults = NO_DEFAULTS
    pooling: PoolingModel | None = None
    """Pooling of a model that pools; None generates."""
    aliases: tuple[str, ...] = field(default=(), compare=False)
    """Other names that requests may use. Not compared: the router gives them."""
    adapters: tuple[Adapter, ...] = field(default=(), compare=False)
    """LoRA adapters, each of which is a model that requests may name. Not compared: they come and
    go while the model is the same."""
    started_as: tuple[str, ...] = field(default=(), compare=False)
    """Texts that named the model on command lines: names that requests may use, which are not
    listed. Not compared: replicas may have been started by different ones."""
    effective_max_model_len: int = field(default=0, compare=False)
    """Tokens of the longest sequence that some worker's KV cache holds, when last queried; 0 is
    unknown. Not compared, because it is not part of the model's identity."""
    takes_snapshot_positions: bool = field(default=False, compare=False)
    """True if requests should name positions for snapshots of recurrent layers."""
    fingerprint: str = field(default="", compare=False)
    """Identity of configuration and weights, for receipts."""

    @classmethod
    def of(
        cls,
        model: ModelInfo,
        tokenizer: Tokenizer,
        *,
        effective_max_model_len: int = 0,
        takes_snapshot_positions: bool = False,
    ) -> Self:
        """Returns the model that workers announce, with a tokenizer made of its files."""
        shared = {one.name for one in fields(cls)} & {one.name for one in fields(model)}
        return cls(
            **{name: getattr(model, name) for name in shared},
            tokenizer=tokenizer,
            effective_max_model_len=effective_max_model_len,
            takes_snapshot_positions=takes_snapshot_positions,
        )

    @property
    def task(self) -> str:
        """Task of the model: "generate", "embed", "token_embed" or "classify"."""
        return "generate" if self.pooling is None else self.pooling.task

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of a classifier's outputs, in order; config.json may leave them out."""
        if self.pooling is None or self.pooling.task != "classify":
            return ()
        named = self.tokenizer.pooling_texts.labels
        return named or tuple(f"LABEL_{i}" for i in range(self.pooling.num_outputs))

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use, the model's own first."""
        return (self.name, *self.aliases)

    def adapter(self, name: str) -> Adapter | None:
        """Returns the adapter that requests name so; None for the base model, and unknown names."""
        return next((one for one in self.adapters if one.name == name), None)

    def knows(self, name: str) -> bool:
        """Returns whether a name is the model's, or an adapter's; the empty one is the model's."""
        return self._is_own(name) or self.adapter(name) is not None

    def has(self, sha256: str) -> bool:
        """Returns whether the adapter with a content is served; "" is the base model."""
        return not sha256 or any(one.sha256 == sha256 for one in self.adapters)

    def names_of(self, name: str) -> tuple[str, ...]:
        """Returns all names of the model or the adapter that a request names, loaded or not."""
        return self.names if self._is_own(name) else (name,)

    def answers_as(self, name: str) -> str:
        """Returns the name in answers to requests that name the model or an adapter so."""
        return self.name if self._is_own(name) else name

    def _is_own(self, name: str) -> bool:
        return not name or name in self.names or name in self.started_as

    @property
    def window(self) -> int:
        """Tokens of the longest sequence, as far as known."""
        return self.effective_max_model_len or self.max_model_len
