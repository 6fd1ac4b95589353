"""Checks and encodes prompts that a call of an engine has pooled, and finishes their vectors."""

import sys
from collections.abc import Sequence
from typing import Any

from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.requests.errors import refusing
from signalbox.llm.requests.outputs import RequestOutput
from signalbox.llm.requests.pooling_params import PoolingParams, checked_pooling, task_of
from signalbox.llm.requests.prompts import GivenPrompt, Prompt
from signalbox_contract.pooling import Vector
from signalbox_router.generation.pooling.activations import activated
from signalbox_router.generation.pooling.calls import (
    EmbedCall,
    check_dimensions,
    pooling_of,
    token_vectors,
)
from signalbox_router.generation.pooling.prompt_encoder import (
    check_truncation,
    encode_prompt,
    texts_of,
)
from signalbox_router.limits.payers import ANYONE
from signalbox_router.requests.api_request import ApiRequest, PromptText, PromptTokens


class PooledRun:
    """The prompts of one call, and what it asks of their vectors."""

    def __init__(
        self, core: EngineCore, name: str, params: PoolingParams | None, task: str | None
    ) -> None:
        """Raises ValueError or TypeError for what the model does not serve.

        Args:
            name: of the call, for messages.
            task: "embed", "classify" or "token_embed"; None is what the model does.
        """
        self.model = core.model
        self.params = checked_pooling(params)
        self.task = task_of(name, self.params.task or task, core.model.pooling)
        if name in ("embed", "classify"):
            task_of(name, name, core.model.pooling)
            if self.task != name:
                raise ValueError(f"{name}: its task is not {self.task!r}; use encode")
        with refusing():
            check_dimensions(self.params.dimensions, pooling_of(core.model), task=self.task)

    def requests(self, prompts: Sequence[GivenPrompt]) -> list[ApiRequest]:
        """Returns a request for each prompt. Raises ValueError."""
        asked = EmbedCall(
            inputs=[_prompt(one, f"prompts[{i}]") for i, one in enumerate(prompts)],
            truncate_prompt_tokens=self.params.truncate_prompt_tokens,
        )
        with refusing():
            prefix = "" if self.task == "classify" else asked.prefix(self.model)
            return asked.requests(asked.inputs, task=self.task, prefix=prefix)

    async def encoded(self, requests: Sequence[ApiRequest]) -> list[Prompt]:
        """Returns the tokens of all prompts. Raises ValueError."""
        with refusing():
            for one in requests:
                assert one.pooled is not None
                check_truncation(one.truncate_prompt_tokens, self.model)
                texts_of(one.prompt, one.pooled)
            return [await self._encoded(one) for one in requests]

    async def _encoded(self, request: ApiRequest) -> Prompt:
        pooled = await encode_prompt(request, self.model, max_bytes=sys.maxsize, payer=ANYONE)
        text = request.prompt.text if isinstance(request.prompt, PromptText) else None
        return Prompt(text, pooled.token_ids, pooling=pooled.params)

    def finished(self, vector: Vector) -> Vector:
        """Returns a vector of the asked dimensions, or the vectors of tokens, with the model's last
        function applied."""
        if self.task == "token_embed":
            pooling = pooling_of(self.model)
            return token_vectors(vector, pooling, is_activated=self.params.is_activated)
        activation = pooling_of(self.model).activation if self.params.is_activated else "identity"
        return activated(vector[: self.params.dimensions], activation)


def pooled_fields(output: RequestOutput) -> dict[str, Any]:
    """Returns what outputs of all tasks have in common."""
    assert output.usage is not None
    return {
        "request_id": output.request_id,
        "prompt_token_ids": output.prompt_token_ids,
        "num_cached_tokens": output.usage.cached_tokens,
    }


def _prompt(given: GivenPrompt, field: str) -> PromptText | PromptTokens:
    if given.token_ids is not None:
        return PromptTokens(list(given.token_ids), field)
    return PromptText(given.text or "", given.add_special_tokens, field)
