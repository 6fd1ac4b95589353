"""Encodes a text as sentence-transformers does: with its prompt, in lower case, cut."""

from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import normalizers

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingParams
from signalbox_router.limits.payers import Payer
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.segments import Segments, cut_longest
from signalbox_router.requests.api_request import PoolingRequest, PromptText

_LOWERCASE = normalizers.Lowercase()


class PooledPrompt(NamedTuple):
    """Tokens of a prompt, and how they are pooled."""

    token_ids: list[int]
    field: str
    """Name of the prompt's field in the client's API, for error messages."""
    params: PoolingParams = PoolingParams()


class TextEncoder:
    """Encodes one prompt of one text, or of token ids."""

    def __init__(
        self,
        model: ServedModel,
        pooled: PoolingRequest,
        *,
        max_tokens: int | None,
        payer: Payer,
    ) -> None:
        """Args: max_tokens: those to which the prompt is cut; None does not cut."""
        self._tokenizer = model.tokenizer
        self._texts = model.tokenizer.pooling_texts
        self._pooled = pooled
        self._max_tokens = max_tokens
        self._payer = payer

    def cut(self, token_ids: Sequence[int]) -> list[int]:
        most = len(token_ids) if self._max_tokens is None else self._max_tokens
        return list(cut_longest((token_ids,), most, keeps_end=self._pooled.truncate_start)[0])

    async def text(self, prompt: PromptText) -> PooledPrompt:
        """Encodes a text after its prefix."""
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
