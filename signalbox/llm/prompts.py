"""Prompts as callers give them, checked and tokenised: texts, token ids, conversations."""

import numbers
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from router import validation
from router.conversation import Conversation as ChatConversation
from router.conversation import Message
from router.model import ServedModel
from router.token_checks import check_token_ids
from signalbox.llm.errors import refusing

PromptInput = str | Mapping[str, Any] | Sequence[int]
"""A text, {"prompt": text}, {"prompt_token_ids": ids}, or token ids."""
Conversation = Sequence[Mapping[str, Any]]
"""Turns, each {"role": "system" | "user" | "assistant", "content": text}."""

ROLES = ("system", "user", "assistant")
_TEXT, _TOKENS = "prompt", "prompt_token_ids"


class Prompt(NamedTuple):
    """A prompt that fits the model; the text is None if it came as tokens."""

    text: str | None
    token_ids: list[int]


class Asked(NamedTuple):
    """A prompt as it was given; the tokens go before the text."""

    text: str | None = None
    token_ids: Sequence[int] | None = None


def asked(prompts: object, prompt_token_ids: object) -> list[Asked]:
    """Returns one entry for each prompt, whatever the form. Raises ValueError or TypeError."""
    if prompts is None and prompt_token_ids is None:
        raise ValueError("give prompts or prompt_token_ids")
    texts = None if prompts is None else [_asked(prompt) for prompt in _as_list(prompts)]
    if prompt_token_ids is None:
        return texts or []
    ids = _as_list(prompt_token_ids)
    if texts is None:
        return [Asked(token_ids=_checked_ids(one)) for one in ids]
    if len(texts) != len(ids):
        raise ValueError(f"{len(texts)} prompts and {len(ids)} prompt_token_ids do not match")
    return [Asked(one.text, _checked_ids(given)) for one, given in zip(texts, ids, strict=True)]


def _as_list(prompts: object) -> list[Any]:
    """One text, one dictionary and one list of token ids are a list of one prompt."""
    if isinstance(prompts, str | Mapping) or _are_ids(prompts):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise TypeError(f"a prompt is a text or a list of token ids, not {type(prompts).__name__}")
    return list(prompts)


def _asked(prompt: object) -> Asked:
    if isinstance(prompt, str):
        return Asked(text=prompt)
    if not isinstance(prompt, Mapping):
        return Asked(token_ids=_checked_ids(prompt))
    if unserved := prompt.keys() - {_TEXT, _TOKENS}:
        raise ValueError(f"prompt: {min(unserved)!r} is not served")
    text, token_ids = prompt.get(_TEXT), prompt.get(_TOKENS)
    if text is None and token_ids is None:
        raise ValueError(f"prompt: give {_TEXT!r} or {_TOKENS!r}")
    if text is not None and not isinstance(text, str):
        raise TypeError(f"prompt: {_TEXT!r} is a text, not {type(text).__name__}")
    return Asked(text, None if token_ids is None else _checked_ids(token_ids))


def _are_ids(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return False
    return isinstance(value[0], numbers.Integral)


def _checked_ids(value: object) -> list[int]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if set(map(type, value)) == {int}:  # at a tenth of the cost of asking each
            return list(value)
        if all(isinstance(one, numbers.Integral) for one in value):
            return [int(one) for one in value]
    raise TypeError("prompt_token_ids: a prompt's tokens are a list of integers")


class Encoder:
    """Tokenises for one model, by the router's checks; raises ValueError that names the prompt."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._max_text_bytes = model.max_model_len * model.tokenizer.max_token_bytes

    def encode(self, prompt: Asked, *, field: str = _TEXT, truncate: int | None = None) -> Prompt:
        """Returns the tokens of a prompt, on the calling thread.

        Args:
            truncate: keeps so many of the last tokens; -1 as many as fit.
        """
        ids = prompt.token_ids
        if ids is None:
            text = self.check_text(prompt, field=field, truncate=truncate)
            ids = self._model.tokenizer.encode_blocking(text, add_special_tokens=True)
        return self.check(Prompt(prompt.text, list(ids)), field=field, truncate=truncate)

    async def encode_async(
        self, prompt: Asked, *, field: str = _TEXT, truncate: int | None = None
    ) -> Prompt:
        """As `encode`, on the tokenizer's threads."""
        ids = prompt.token_ids
        if ids is None:
            text = self.check_text(prompt, field=field, truncate=truncate)
            ids = await self._model.tokenizer.encode(text, add_special_tokens=True)
        return self.check(Prompt(prompt.text, list(ids)), field=field, truncate=truncate)

    def encode_chat(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool,
        field: str,
        truncate: int | None = None,
    ) -> Prompt:
        """Renders a conversation by the model's template and tokenises it."""
        messages = [_message(turn, field=f"{field}[{i}]") for i, turn in enumerate(conversation)]
        if not messages:
            raise ValueError(f"{field}: a conversation has at least one message")
        tokenizer = self._model.tokenizer
        with refusing():
            text = tokenizer.render_chat(
                ChatConversation(messages=messages, add_generation_prompt=add_generation_prompt),
                max_bytes=self._max_text_bytes,
            )
        # The template writes the special tokens itself, the first one included.
        ids = tokenizer.encode_blocking(text, add_special_tokens=False)
        return self.check(Prompt(text, ids), field=field, truncate=truncate)

    def check_text(self, prompt: Asked, *, field: str, truncate: int | None) -> str:
        if not prompt.text:
            raise ValueError(f"{field}: the prompt is empty")
        if truncate is not None:
            return prompt.text
        with refusing():
            validation.check_text(prompt.text, field=field, max_bytes=self._max_text_bytes)
        return prompt.text

    def check(self, prompt: Prompt, *, field: str, truncate: int | None = None) -> Prompt:
        """Returns a prompt that fits the model's window and vocabulary."""
        model = self._model
        if truncate is not None:
            kept = truncate if truncate > 0 else model.max_model_len - 1
            prompt = prompt._replace(token_ids=prompt.token_ids[-kept:])
        token_ids = prompt.token_ids
        with refusing():
            validation.check_prompt_length(len(token_ids), field=field, model=model)
            check_token_ids(token_ids, field=field, model=model)
        if min(token_ids) < 0:
            raise ValueError(f"{field}: token ids are at least 0")
        return prompt


def _message(turn: object, *, field: str) -> Message:
    if not isinstance(turn, Mapping):
        raise TypeError(f'{field}: a message is {{"role": ..., "content": ...}}')
    if unserved := turn.keys() - {"role", "content"}:
        raise ValueError(f"{field}: {min(unserved)!r} is not served")
    role = turn.get("role")
    if role not in ROLES:
        raise ValueError(f"{field}: role is {role!r}; use one of {', '.join(ROLES)}")
    return Message(str(role), _content(turn.get("content"), field=field))


def _content(content: object, *, field: str) -> str:
    """A text, or a list of {"type": "text", "text": ...}."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list | tuple) else [content]:
        given = dict(part) if isinstance(part, Mapping) else {}
        text = given.pop("text", None)
        if given != {"type": "text"} or not isinstance(text, str):
            raise ValueError(f"{field}: content must be a text or a list of text parts")
        texts.append(text)
    return "".join(texts)
