"""Answers of /v1/completions, complete or as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_router.apis.openai.logprobs import (
    CompletionLogprobs,
    PromptBudget,
    Tokens,
    prompt_logprobs,
)
from signalbox_router.apis.openai.requests.request_codec import only_echoes
from signalbox_router.apis.openai.requests.types import CompletionBody
from signalbox_router.apis.openai.response_fields import (
    NULLS_OF_ANSWER,
    NULLS_OF_CHOICE,
    NULLS_OF_USAGE,
    EventStream,
    ResponseHead,
    TextEvent,
    UsageCounter,
    finish_fields,
    to_event,
    usage_plan,
)
from signalbox_router.requests.active_request import ActiveRequest, Update
from signalbox_router.requests.request_output import Delta, Echo

KIND = "text_completion"
_NULLS = dict.fromkeys(("prompt_logprobs", "prompt_token_ids")) | NULLS_OF_CHOICE
"""Fields that a choice of a whole answer has, as vLLM's does, also without a value."""


@dataclass(slots=True)
class _Choice:
    """The received part of one sequence of one prompt."""

    index: int
    logprobs: CompletionLogprobs | None
    has_begun: bool = False
    text_event: TextEvent | None = None
    """The event of a delta that has only text."""


@dataclass(slots=True)
class _Prompt:
    """A prompt's tokens, and their log probabilities if requested."""

    token_ids: list[int]
    echo: Echo | None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    bodies: list[dict[str, Any] | None] = field(default_factory=list)
    """The log probabilities in vLLM's form, which all choices share."""

    def scored(self) -> list[tuple[int, TokenLogprobs | None]]:
        """Returns pairs of a token and its log probabilities; the first token has none."""
        return list(zip(self.token_ids, [None, *self.logprobs], strict=False))


class CompletionAnswer(EventStream):
    """Converts the updates of one HTTP request's generations to OpenAI's shape."""

    def __init__(self, body: CompletionBody, head: ResponseHead) -> None:
        self._body = body
        self._head = head
        self._tokens = Tokens(head.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._choices: dict[int, _Choice] = {}
        self._prompts: dict[int, _Prompt] = {}
        self._budget = PromptBudget()
        self._plan = usage_plan(body)
        self._usage = UsageCounter(self._plan, echoes=bool(body.echo))
        self._top = head.fields(KIND)
        """The fields of an event beside its choices."""
        self._has_text_alone = (
            body.logprobs is None
            and body.prompt_logprobs is None
            and not body.return_token_ids
            and not self._plan.in_every_event
        )
        """True if events of a running sequence differ in their text alone."""

    async def whole(self, updates: AsyncIterator[Update]) -> dict[str, Any]:
        choices: dict[int, dict[str, Any]] = {}
        async for update in updates:
            self._record(update)
            if self._body.prompt_logprobs is not None:
                prompt = self._prompts[update.position]
                found = (self._tokens, prompt.token_ids, prompt.logprobs)
                prompt.bodies = await asyncio.to_thread(prompt_logprobs, *found)
            for delta in update.deltas:
                fields = self._fields(update, delta)
                known = choices.get(fields["index"])
                choices[fields["index"]] = fields if known is None else _joined(known, fields)
        if only_echoes(self._body):
            self._drop_generated(choices)
        return {
            **self._head.fields(KIND),
            **NULLS_OF_ANSWER,
            "choices": [_NULLS | choices[index] for index in sorted(choices)],
            "usage": self._usage.body() | NULLS_OF_USAGE,
            **self._usage.extras(),
        }

    def events(self, update: Update) -> bytes:
        """Returns the bytes to send at once: an event for each sequence that has new output."""
        self._record(update)
        if self._plan.at_the_end:
            self._top["usage"] = self._usage.so_far() if self._plan.in_every_event else None
        return b"".join([self._event(update, delta) for delta in update.deltas])

    async def last_event(self) -> bytes:
        """Returns the event with the usage and the receipt, if they were asked for."""
        last = self._usage.last_fields(self._plan)
        return to_event({**self._top, "choices": [], **last}) if last else b""

    def _event(self, update: Update, delta: Delta) -> bytes:
        choice = self._choice(update, delta)
        if not self._has_text_alone or delta.finish is not None or not choice.has_begun:
            return to_event({**self._top, "choices": [self._fields(update, delta)]})
        if choice.text_event is None:
            fields = self._fields(update, Delta(index=delta.index, text=TextEvent.TEXT))
            choice.text_event = TextEvent({**self._top, "choices": [fields]})
        return choice.text_event.of(delta.text)

    def _fields(self, update: Update, delta: Delta) -> dict[str, Any]:
        """Returns the fields that a delta adds to a choice."""
        prompt, choice = self._prompts[update.position], self._choice(update, delta)
        begins, choice.has_begun = not choice.has_begun, True
        fields: dict[str, Any] = {"index": choice.index, "text": delta.text, "logprobs": None}
        echo = prompt.echo if begins else None
        if choice.logprobs is not None:
            echoed = () if echo is None else prompt.scored()
            fields["logprobs"] = choice.logprobs.body(echoed, delta, echo=echo)
        fields |= finish_fields(delta.finish)
        if self._body.return_token_ids:
            fields["token_ids"] = delta.token_ids[0 if echo is None else len(echo.token_ids) :]
            if begins:
                fields["prompt_token_ids"] = prompt.token_ids
        if self._body.prompt_logprobs is not None:
            fields["prompt_logprobs"] = prompt.bodies
        return fields

    def _record(self, update: Update) -> None:
        self._usage.add(update)
        request = update.request
        if update.position not in self._prompts:
            self._prompts[update.position] = _Prompt(request.prompt_token_ids, request.echo)
        if update.prompt_logprobs:
            self._budget.spend(update.prompt_logprobs, num_choices=request.params.n)
            self._prompts[update.position].logprobs += update.prompt_logprobs

    def _choice(self, update: Update, delta: Delta) -> _Choice:
        index = update.position * update.request.params.n + delta.index
        choice = self._choices.get(index)
        if choice is None:
            logprobs = None if self._body.logprobs is None else self._logprobs(update.request)
            choice = self._choices[index] = _Choice(index, logprobs)
        return choice

    def _logprobs(self, request: ActiveRequest) -> CompletionLogprobs:
        detokenizer = self._head.tokenizer.vocabulary.make_detokenizer(
            request.prompt_token_ids, skip_special_tokens=request.params.skip_special_tokens
        )
        return CompletionLogprobs(self._tokens, detokenizer)

    def _drop_generated(self, choices: dict[int, dict[str, Any]]) -> None:
        """Reduces each choice to its echoed prompt."""
        self._usage.forget_completions()
        num_choices = len(choices) // len(self._prompts)
        for index, fields in choices.items():
            prompt = self._prompts[index // num_choices]
            assert prompt.echo is not None
            fields |= {"text": prompt.echo.text, "finish_reason": "length", "stop_reason": None}
            if "token_ids" in fields:
                fields["token_ids"] = []
            if fields["logprobs"] is not None:
                fields["logprobs"] = {
                    key: values[: len(prompt.token_ids)]
                    for key, values in fields["logprobs"].items()
                }


def _joined(known: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns a choice's fields joined with later ones."""
    joined = {**known, **new, "text": known["text"] + new["text"]}
    if known["logprobs"] is not None:
        joined["logprobs"] = {
            key: values + new["logprobs"][key] for key, values in known["logprobs"].items()
        }
    if "token_ids" in known:
        joined["token_ids"] = known["token_ids"] + new["token_ids"]
    return joined
