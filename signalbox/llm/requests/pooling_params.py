"""`PoolingParams`: the name can be imported, but its use is refused.

No pooling model is served, only the log probabilities of a decoder.
"""

from dataclasses import dataclass, replace
from typing import NoReturn, Self


@dataclass(slots=True, kw_only=True)
class PoolingParams:
    """vLLM's parameters of embedding and classifying models; no call accepts them."""

    truncate_prompt_tokens: int | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    task: str | None = None

    def clone(self) -> Self:
        return replace(self)


def refuse_pooling(call: str) -> NoReturn:
    """Raises NotImplementedError that names the call."""
    raise NotImplementedError(f"{call} is not served: models here generate text, and pool nothing")
