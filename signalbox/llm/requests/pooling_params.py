"""`PoolingParams`: how prompts are pooled, under vLLM's names.

A field of vLLM's that is not served may be given at its default; another value is refused by name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from signalbox_contract.pooling import PoolingModel, Task

_KINDS: Mapping[str, type] = {
    "truncate_prompt_tokens": int,
    "dimensions": int,
    "normalize": bool,
    "use_activation": bool,
    "task": str,
}
"""Types of the fields that are served."""
_TASKS: tuple[Task, ...] = ("embed", "classify", "token_embed")
_UNSERVED = ("token_classify", "plugin")


@dataclass(slots=True, kw_only=True)
class PoolingParams:
    """Parameters of `LLM.embed`, `encode`, `classify` and `score`."""

    truncate_prompt_tokens: int | None = None
    """Tokens to which longer prompts are cut, special ones included; -1 is what the model takes.
    None makes a longer prompt an error."""
    dimensions: int | None = None
    """Elements of an embedding, one of the lengths that the model declares; None is all."""
    normalize: bool | None = None
    """vLLM's older name of use_activation, for embeddings."""
    use_activation: bool | None = None
    """False leaves the model's last function out: length 1, sigmoid or softmax."""
    task: str | None = None
    """"embed", "classify" or "token_embed"; None is what the call does."""
    step_tag_id: Any = field(default=None, repr=False)
    returned_token_ids: Any = field(default=None, repr=False)
    requires_token_ids: Any = field(default=False, repr=False)
    skip_reading_prefix_cache: Any = field(default=None, repr=False)
    late_interaction_params: Any = field(default=None, repr=False)
    late_chunking_params: Any = field(default=None, repr=False)
    extra_kwargs: Any = field(default=None, repr=False)

    def clone(self) -> Self:
        return replace(self)

    @property
    def is_activated(self) -> bool:
        chosen = self.normalize if self.use_activation is None else self.use_activation
        return chosen is not False


def checked_pooling(given: object) -> PoolingParams:
    """Returns the parameters, or the default ones for None. Raises TypeError or ValueError."""
    if given is None:
        return PoolingParams()
    if not isinstance(given, PoolingParams):
        raise TypeError(f"pooling_params is a {type(given).__name__}; give PoolingParams")
    for one in fields(PoolingParams):
        value = getattr(given, one.name)
        kind = _KINDS.get(one.name)
        if kind is None and value not in (None, False, [], {}):
            raise ValueError(f"pooling_params.{one.name} is not served; leave it {one.default!r}")
        if kind is not None and value is not None and type(value) is not kind:
            raise TypeError(f"pooling_params.{one.name} is {value!r}; give a {kind.__name__}")
    return given


def task_of(call: str, asked: str | None, model: PoolingModel | None) -> Task:
    """Returns the task of a call. Raises ValueError for one that the model does not serve.

    Args:
        call: name of the call, for the message.
        model: what the served model makes; None of one that generates.
    """
    if asked in _UNSERVED:
        raise ValueError(f"{call}: the task {asked!r} is not served")
    if asked not in (None, *_TASKS):
        allowed = ", ".join(map(repr, _TASKS))
        raise ValueError(f"{call}: the task is {asked!r}; it is one of {allowed}")
    if model is None:
        raise ValueError(f"{call}: the model generates text; make the LLM with runner='pooling'")
    if asked == "token_embed" and model.num_token_outputs:
        return "token_embed"
    if asked not in (None, model.task):
        raise ValueError(f"{call}: the model does not {asked}; its task is {model.task!r}")
    return model.task
