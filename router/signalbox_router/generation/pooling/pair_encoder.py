"""Encodes a query and a document as the one prompt that a reranker reads."""

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingParams
from signalbox_router.generation.pooling.text_encoder import PooledPrompt, TextEncoder
from signalbox_router.limits.payers import Payer
from signalbox_router.prompt.chat.conversation import Conversation, Message
from signalbox_router.prompt.chat.provenance import TEMPLATE, Text, concat, written_by
from signalbox_router.prompt.chat.template_facts import is_for_pairs
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.pooling_texts import PairTemplate
from signalbox_router.prompt.tokenization.segments import cut_longest
from signalbox_router.requests.api_request import PoolingRequest, PromptPair

_FIELDS = re.compile(r"\{(instruction|query|document)\}")


class PairEncoder(TextEncoder):
    """Joins a pair by the tokenizer, by the model's chat template, or by Qwen3's template."""

    def __init__(
        self,
        model: ServedModel,
        pooled: PoolingRequest,
        *,
        max_tokens: int | None,
        max_bytes: int,
        payer: Payer,
    ) -> None:
        """Args: max_bytes: of the longest text that the chat template may make."""
        super().__init__(model, pooled, max_tokens=max_tokens, payer=payer)
        self._reads_all_tokens = model.pooling is not None and model.pooling.reads_all_tokens
        self._max_bytes = max_bytes

    async def pair(self, prompt: PromptPair) -> PooledPrompt:
        """Encodes a query and a document as one prompt."""
        variables, template = self._texts.chat_variables, self._tokenizer.chat_template
        if variables is not None and template is not None and is_for_pairs(template.source):
            token_ids = await self._chat(prompt, variables)
            return PooledPrompt(token_ids, prompt.document_field)
        if self._texts.template is not None:
            token_ids = await self._templated(prompt, self._texts.template)
            return PooledPrompt(token_ids, prompt.document_field)
        if prompt.instruction is not None:
            raise InvalidArgument("instruction", prompt.instruction, "unset for this model")
        affixes = self._tokenizer.pair_affixes
        self._check_room(len(affixes.before) + len(affixes.between) + len(affixes.after))
        query = await self._plain(self._pooled.prefix + prompt.query)
        document = await self._plain(prompt.document)
        token_ids, num_first = self._join(query, document)
        if not self._reads_all_tokens:  # a causal model shares prefixes, and knows no segments
            num_first = 0
        params = PoolingParams(num_first_segment_tokens=num_first)
        return PooledPrompt(token_ids, prompt.document_field, params)

    async def _templated(self, prompt: PromptPair, template: PairTemplate) -> list[int]:
        """Encodes a pair by a template, whose own parts are never cut."""
        given = {
            "instruction": template.instruction
            if prompt.instruction is None
            else prompt.instruction,
            "query": prompt.query,
            "document": prompt.document,
        }
        parts = _FIELDS.split(template.pair)  # texts and names in turn
        body = concat(
            Text(given[part]) if i % 2 else written_by(TEMPLATE, part)
            for i, part in enumerate(parts)
        )
        before, after = [
            await self._tokenizer.encode(part, add_special_tokens=False, payer=self._payer)
            for part in (template.prefix, template.suffix)
        ]
        self._check_room(len(before) + len(after))
        token_ids = await self._tokenizer.encode_written(
            body, field=prompt.document_field, payer=self._payer
        )
        most = len(token_ids)
        if self._max_tokens is not None:
            most = min(most, self._max_tokens - len(before) - len(after))
        kept = cut_longest((token_ids,), most, keeps_end=self._pooled.truncate_start)[0]
        return [*before, *kept, *after]

    async def _chat(self, prompt: PromptPair, variables: Mapping[str, Any]) -> list[int]:
        """Encodes a pair by the model's own chat template, whose end is never cut."""
        token_ids = await self._rendered(prompt, prompt.document, variables)
        if self._max_tokens is None or len(token_ids) <= self._max_tokens:
            return token_ids
        ends = [await self._rendered(prompt, text, variables) for text in ("a", "b")]
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(*map(reversed, ends), strict=False))
        num_end = len(list(equal))
        self._check_room(num_end)
        return token_ids[: self._max_tokens - num_end] + token_ids[len(token_ids) - num_end :]

    async def _rendered(
        self, prompt: PromptPair, document: str, variables: Mapping[str, Any]
    ) -> list[int]:
        name = self._texts.default_prompt_name
        instruction = self._texts.prompts.get(name or "")
        instruction = instruction if prompt.instruction is None else prompt.instruction
        messages = [Message("query", prompt.query), Message("document", document)]
        if instruction is not None:
            messages.insert(0, Message("system", instruction))
        kept = dict(variables)
        opens = bool(kept.pop("add_generation_prompt", False))
        conversation = Conversation(
            messages=messages, add_generation_prompt=opens, template_kwargs=kept
        )
        encode = self._tokenizer.encode_chat(
            conversation, max_bytes=self._max_bytes, payer=self._payer
        )
        return (await encode).token_ids
