"""Turns what is to be pooled into tokens: prompts before texts, pairs, truncation."""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from tokenizers import normalizers

from contract.errors import FailedPrecondition, InvalidArgument
from contract.pooling import PoolingParams
from router.params.token_validation import check_token_ids
from router.prompt.conversation import Conversation, Message
from router.prompt.length_errors import ContextOverflow
from router.prompt.provenance import TEMPLATE, Text, concat, written_by
from router.prompt.template_facts import is_for_pairs
from router.requests.api_request import ApiRequest, PairPrompt, Pooled, TextPrompt, TokensPrompt
from router.served_model import ServedModel
from router.tokenization.pooling_texts import PairTemplate
from router.tokenization.segments import Segments, cut_longest
from router.work_limits.payers import Payer

ENTIRE = -1
"""truncate_prompt_tokens that keeps as many tokens as the model takes."""
_LOWERCASE = normalizers.Lowercase()
_FIELDS = re.compile(r"\{(instruction|query|document)\}")


class PooledPrompt(NamedTuple):
    """Tokens of a prompt, and how they are pooled."""

    token_ids: list[int]
    field: str
    """Name of the prompt's field in the client's API, for error messages."""
    params: PoolingParams = PoolingParams()


def check_kind(pooled: Pooled | None, model: ServedModel) -> None:
    """Raises FailedPrecondition for a request that is not of the served model's kind."""
    serves = model.pooling.task if model.pooling is not None else "generate"
    asked = pooled.task if pooled is not None else "generate"
    if asked == serves:
        return
    uses = {
        "generate": "generates text: use Generate or Chat, over HTTP /v1/chat/completions",
        "embed": "makes embeddings: use Embed or Score, over HTTP /v1/embeddings or /v1/score",
        "classify": "classifies: use Classify or Score, over HTTP /classify or /v1/score",
    }
    raise FailedPrecondition(f"model {model.name!r} cannot {asked}; it {uses[serves]}")


def check_truncation(asked: int | None) -> None:
    if asked is not None and asked != ENTIRE and asked < 1:
        raise InvalidArgument("pooling_params.truncate_prompt_tokens", asked, "at least 1, or -1")


def texts_of(prompt: object, pooled: Pooled) -> list[tuple[str, str]]:
    """Returns the fields of a prompt's texts, and the texts. Raises InvalidArgument if one is
    empty."""
    match prompt:
        case TextPrompt(text=text, field=field):
            texts = [(field, text)]
        case PairPrompt(query=query, document=document):
            texts = [(prompt.query_field, query), (prompt.document_field, document)]
        case _:
            return []
    for field, text in texts:
        if not text:
            raise InvalidArgument(field, text, "a text that is not empty")
    field, text = texts[0]
    return [(field, pooled.prefix + text), *texts[1:]]


async def encode_prompt(
    api_request: ApiRequest, model: ServedModel, *, max_bytes: int, payer: Payer
) -> PooledPrompt:
    """Returns the tokens, which fit the model. Raises InvalidArgument if they do not.

    Args:
        max_bytes: of the longest text that is made of a query and a document.
    """
    pooled, prompt = api_request.pooled, api_request.prompt
    assert pooled is not None
    most = _most_tokens(api_request, model)
    encoder = _Encoder(model, pooled, max_tokens=most, max_bytes=max_bytes, payer=payer)
    match prompt:
        case TextPrompt():
            encoded = await encoder.text(prompt)
        case PairPrompt():
            encoded = await encoder.pair(prompt)
        case TokensPrompt(token_ids=token_ids, field=field):
            check_token_ids(token_ids, field=field, model=model)
            encoded = PooledPrompt(encoder.cut(token_ids), field)
        case _:
            raise AssertionError("a conversation is not pooled")
    _check_length(encoded, model)
    return encoded


def _most_tokens(api_request: ApiRequest, model: ServedModel) -> int | None:
    """Returns the tokens to which a prompt is cut; None does not cut."""
    asked, most = api_request.truncate_prompt_tokens, model.window
    if asked is None:
        return None
    return most if asked == ENTIRE else min(asked, most)


def _check_length(prompt: PooledPrompt, model: ServedModel) -> None:
    num_tokens, most = len(prompt.token_ids), model.max_model_len
    if num_tokens < 1:
        raise InvalidArgument(prompt.field, "a prompt of 0 tokens", "at least 1 token")
    if num_tokens > most:
        allowed = f"at most {most}, or truncate_prompt_tokens"
        found = f"a prompt of {num_tokens} tokens"
        raise ContextOverflow(prompt.field, found, allowed, window=most)


class _Encoder:
    """Encodes one prompt."""

    def __init__(
        self,
        model: ServedModel,
        pooled: Pooled,
        *,
        max_tokens: int | None,
        max_bytes: int,
        payer: Payer,
    ) -> None:
        self._tokenizer = model.tokenizer
        self._texts = model.tokenizer.pooling_texts
        self._reads_all_tokens = model.pooling is not None and model.pooling.reads_all_tokens
        self._pooled = pooled
        self._max_tokens = max_tokens
        self._max_bytes = max_bytes
        self._payer = payer

    def cut(self, token_ids: Sequence[int]) -> list[int]:
        most = len(token_ids) if self._max_tokens is None else self._max_tokens
        return list(cut_longest((token_ids,), most, keeps_end=self._pooled.truncate_start)[0])

    async def text(self, prompt: TextPrompt) -> PooledPrompt:
        """Encodes a text after its prefix, as sentence-transformers does."""
        prefix = self._pooled.prefix
        token_ids = await self._plain(prefix + prompt.text)
        if not prompt.add_special_tokens:
            return PooledPrompt(self.cut(token_ids), prompt.field)
        affixes = self._tokenizer.affixes
        self._check_room(len(affixes.before) + len(affixes.after))
        joined = self._join(token_ids)
        num_skipped = 0
        if prefix and not self._texts.include_prompt:
            num_prefix = len(affixes.before) + len(await self._plain(prefix))
            num_skipped = min(num_prefix, len(joined.token_ids) - 1)
        params = PoolingParams(num_skipped_tokens=num_skipped)
        return PooledPrompt(joined.token_ids, prompt.field, params)

    async def pair(self, prompt: PairPrompt) -> PooledPrompt:
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

    async def _templated(self, prompt: PairPrompt, template: PairTemplate) -> list[int]:
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

    async def _chat(self, prompt: PairPrompt, variables: Mapping[str, Any]) -> list[int]:
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
        self, prompt: PairPrompt, document: str, variables: Mapping[str, Any]
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
        return await self._tokenizer.encode_chat(
            conversation, max_bytes=self._max_bytes, payer=self._payer
        )

    async def _plain(self, text: str) -> list[int]:
        if self._texts.do_lower_case:
            text = _LOWERCASE.normalize_str(text)
        return await self._tokenizer.encode(text, add_special_tokens=False, payer=self._payer)

    def _join(self, *texts: Sequence[int]) -> Segments:
        affixes = self._tokenizer.affixes if len(texts) == 1 else self._tokenizer.pair_affixes
        return affixes.join(
            *texts, max_tokens=self._max_tokens, keeps_end=self._pooled.truncate_start
        )

    def _check_room(self, num_special: int) -> None:
        """Raises InvalidArgument if truncation would leave nothing but special tokens."""
        if self._max_tokens is not None and self._max_tokens <= num_special:
            field = "pooling_params.truncate_prompt_tokens"
            allowed = f"more than the {num_special} tokens that every input has"
            raise InvalidArgument(field, self._max_tokens, allowed)


def check_one_output(model: ServedModel) -> None:
    """Raises FailedPrecondition if a classifier gives a pair more than one score."""
    pooling = model.pooling
    if pooling is not None and pooling.task == "classify" and pooling.num_outputs != 1:
        raise FailedPrecondition(
            f"model {model.name!r} has {pooling.num_outputs} classes, and a score is of one;"
            " use Classify, over HTTP /classify"
        )
