"""Checks and tokenises prompts in the forms that callers give: texts, token ids, conversations."""

import numbers
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

from signalbox.llm.requests.errors import refusing
from signalbox_contract.pooling import PoolingParams
from signalbox_router.params import params_validation
from signalbox_router.params.token_validation import check_token_ids
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.chat.provenance import plain
from signalbox_router.prompt.served_model import ServedModel

_TRUNCATION = "sampling_params.truncate_prompt_tokens"


class TextPrompt(TypedDict):
    """A prompt as a text; each field but the first may be left out."""

    prompt: str
    cache_salt: NotRequired[str]
    add_special_tokens: NotRequired[bool]


class TokensPrompt(TypedDict):
    """A prompt as token ids; a text beside them only appears in the output."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


PromptInput = str | Mapping[str, Any] | Sequence[int]
"""A text, {"prompt": text}, {"prompt_token_ids": ids}, or token ids. A dictionary may also have
"cache_salt", which limits shared cached prefixes to requests with the same salt, and beside a
text "add_special_tokens", which is True by default."""

PromptType = PromptInput
"""vLLM's other name."""

_TEXT, _TOKENS = "prompt", "prompt_token_ids"
_SALT, _SPECIAL = "cache_salt", "add_special_tokens"


class Prompt(NamedTuple):
    """A prompt that fits the model; the text is None if tokens were given."""

    text: str | None
    token_ids: list[int]
    cache_salt: str = ""
    adapter: str = ""
    """SHA-256 of the adapter that computes it; empty is the base model."""
    pooling: PoolingParams | None = None
    """Pooling of the prompt; None continues it."""
    kept_token_ids: frozenset[int] = frozenset()
    """Special tokens that the text always shows."""


class GivenPrompt(NamedTuple):
    """A prompt as given; tokens take precedence over the text."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    cache_salt: str = ""
    add_special_tokens: bool = True


def given_prompts(prompts: object, prompt_token_ids: object) -> list[GivenPrompt]:
    """Returns one entry for each prompt, for every form. Raises ValueError or TypeError."""
    if prompts is None and prompt_token_ids is None:
        raise ValueError("give prompts or prompt_token_ids")
    texts = None if prompts is None else [_given_prompt(prompt) for prompt in _as_list(prompts)]
    if prompt_token_ids is None:
        return texts or []
    ids = _as_list(prompt_token_ids)
    if texts is None:
        return [GivenPrompt(token_ids=_checked_ids(one)) for one in ids]
    if len(texts) != len(ids):
        raise ValueError(f"{len(texts)} prompts and {len(ids)} prompt_token_ids do not match")
    pairs = zip(texts, ids, strict=True)
    return [one._replace(token_ids=_checked_ids(given)) for one, given in pairs]


def _as_list(prompts: object) -> list[Any]:
    """Returns a list of prompts; one text, one dictionary or one list of token ids is one
    prompt."""
    if isinstance(prompts, str | Mapping) or _are_ids(prompts):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise TypeError(f"a prompt is a text or a list of token ids, not {type(prompts).__name__}")
    return list(prompts)


def _given_prompt(prompt: object) -> GivenPrompt:
    if isinstance(prompt, str):
        return GivenPrompt(text=prompt)
    if not isinstance(prompt, Mapping):
        return GivenPrompt(token_ids=_checked_ids(prompt))
    given = {name for name, value in prompt.items() if value is not None}
    if unserved := given - {_TEXT, _TOKENS, _SALT, _SPECIAL}:
        raise ValueError(f"prompt: {min(unserved)!r} is not served")
    text, token_ids = prompt.get(_TEXT), prompt.get(_TOKENS)
    if text is None and token_ids is None:
        raise ValueError(f"prompt: give {_TEXT!r} or {_TOKENS!r}")
    if text is not None and not isinstance(text, str):
        raise TypeError(f"prompt: {_TEXT!r} is a text, not {type(text).__name__}")
    salt, special = prompt.get(_SALT) or "", prompt.get(_SPECIAL)
    special = True if special is None else special
    if not isinstance(salt, str) or not isinstance(special, bool):
        raise TypeError(f"prompt: {_SALT!r} is a text, {_SPECIAL!r} True or False")
    with refusing():
        params_validation.check_cache_salt(salt)
    return GivenPrompt(text, None if token_ids is None else _checked_ids(token_ids), salt, special)


def _are_ids(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return isinstance(value[0], numbers.Integral)


def _checked_ids(value: object) -> list[int]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if set(map(type, value)) == {int}:  # a tenth of the cost of checking each
            return list(value)
        if all(isinstance(one, numbers.Integral) for one in value):
            return [int(one) for one in value]
    raise TypeError("prompt_token_ids: a prompt's tokens are a list of integers")


class PromptEncoder:
    """Tokenises for one model with the router's checks; raises ValueError that names the prompt."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model

    def encode(
        self, prompt: GivenPrompt, *, field: str = _TEXT, truncate: int | None = None
    ) -> Prompt:
        """Returns the tokens of a prompt, on the calling thread.

        Args:
            truncate: number of last tokens to keep; -1 keeps as many as fit.
        """
        ids = prompt.token_ids
        if ids is None:
            text = _text_of(prompt, field=field)
            tokenizer, special = self._model.tokenizer, prompt.add_special_tokens
            ids = tokenizer.encode_blocking(text, add_special_tokens=special)
        encoded = Prompt(prompt.text, list(ids), prompt.cache_salt)
        return self.check(encoded, field=field, truncate=truncate)

    async def encode_async(
        self, prompt: GivenPrompt, *, field: str = _TEXT, truncate: int | None = None
    ) -> Prompt:
        """Returns the same as `encode`, computed on the tokenizer's threads."""
        ids = prompt.token_ids
        if ids is None:
            text = _text_of(prompt, field=field)
            tokenizer, special = self._model.tokenizer, prompt.add_special_tokens
            ids = await tokenizer.encode(text, add_special_tokens=special)
        encoded = Prompt(prompt.text, list(ids), prompt.cache_salt)
        return self.check(encoded, field=field, truncate=truncate)

    def encode_chat(
        self, conversation: Conversation, *, field: str, truncate: int | None = None
    ) -> Prompt:
        """Renders a conversation by its own template or the model's, and tokenises it."""
        tokenizer = self._model.tokenizer
        with refusing():
            conversation.check()
            text = tokenizer.render_chat(conversation, max_bytes=sys.maxsize)
        ids = tokenizer.encode_rendered(text, conversation)
        return self.check(Prompt(plain(text), ids), field=field, truncate=truncate)

    def check(self, prompt: Prompt, *, field: str, truncate: int | None = None) -> Prompt:
        """Returns a prompt that fits the model's window and vocabulary."""
        model = self._model
        if truncate is not None:
            with refusing():
                params_validation.check_truncation(truncate, model, field=_TRUNCATION, or_all=True)
            kept = truncate if truncate > 0 else model.max_model_len - 1
            prompt = prompt._replace(token_ids=prompt.token_ids[-kept:])
        token_ids = prompt.token_ids
        with refusing():
            params_validation.check_prompt_length(len(token_ids), field=field, model=model)
            check_token_ids(token_ids, field=field, model=model)
        return prompt


def _text_of(prompt: GivenPrompt, *, field: str) -> str:
    if not prompt.text:
        raise ValueError(f"{field}: the prompt is empty")
    return prompt.text
