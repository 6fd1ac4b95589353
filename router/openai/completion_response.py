"""Answers of /v1/completions, complete or as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from contract.logprobs import TokenLogprobs
from router.openai.logprobs import CompletionLogprobs, PromptBudget, Tokens, prompt_logprobs
from router.openai.multi_prompt import Part
from router.openai.requests.request_codec import only_echoes
from router.openai.requests.types import CompletionBody
from router.openai.response_fields import Head, UsageCounter, finish_fields, to_event, usage_plan
from router.requests.request_output import Delta, Echo

KIND = "text_completion"


@dataclass(slots=True)
class _Choice:
    """The received part of one sequence of one prompt."""

    index: int
    logprobs: CompletionLogprobs | None
    has_begun: bool = False


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


class CompletionAnswer:
    """Converts the parts of one HTTP request's generations to OpenAI's shape."""

    def __init__(self, body: CompletionBody, head: Head) -> None:
        self._body = body
        self._head = head
        self._tokens = Tokens(head.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._choices: dict[int, _Choice] = {}
        self._prompts: dict[int, _Prompt] = {}
        self._budget = PromptBudget()
        self._usage = UsageCounter(echoes=bool(body.echo))

    async def whole(self, parts: AsyncIterator[Part]) -> dict[str, Any]:
        choices: dict[int, dict[str, Any]] = {}
        async for part in parts:
            self._record(part)
            if self._body.prompt_logprobs is not None:
                prompt = self._prompts[part.position]
                found = (self._tokens, prompt.token_ids, prompt.logprobs)
                prompt.bodies = await asyncio.to_thread(prompt_logprobs, *found)
            for delta in part.update.deltas:
                fields = self._fields(part, delta)
                known = choices.get(fields["index"])
                choices[fields["index"]] = fields if known is None else _joined(known, fields)
        if only_echoes(self._body):
            self._drop_generated(choices)
        return {
            **self._head.fields(KIND),
            "choices": [choices[index] for index in sorted(choices)],
            "usage": self._usage.body(),
        }

    async def events(self, parts: AsyncIterator[Part]) -> AsyncIterator[bytes]:
        """Yields the bytes to send at once: an event for each sequence that has new output."""
        plan = usage_plan(self._body)
        head = self._head.fields(KIND)
        async for part in parts:
            self._record(part)
            if plan.at_the_end:
                head["usage"] = self._usage.so_far() if plan.in_every_event else None
            choices = [self._fields(part, delta) for delta in part.update.deltas]
            yield b"".join([to_event({**head, "choices": [one]}) for one in choices])
        if plan.at_the_end:
            yield to_event({**head, "choices": [], "usage": self._usage.body()})

    def _fields(self, part: Part, delta: Delta) -> dict[str, Any]:
        """Returns the fields that a delta adds to a choice."""
        prompt, choice = self._prompts[part.position], self._choice(part, delta)
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

    def _record(self, part: Part) -> None:
        self._usage.add(part)
        update, request = part.update, part.update.request
        if part.position not in self._prompts:
            self._prompts[part.position] = _Prompt(request.prompt_token_ids, request.echo)
        if update.prompt_logprobs:
            self._budget.spend(update.prompt_logprobs, num_choices=request.params.n)
            self._prompts[part.position].logprobs += update.prompt_logprobs

    def _choice(self, part: Part, delta: Delta) -> _Choice:
        index = part.position * part.update.request.params.n + delta.index
        choice = self._choices.get(index)
        if choice is None:
            logprobs = None if self._body.logprobs is None else self._logprobs(part)
            choice = self._choices[index] = _Choice(index, logprobs)
        return choice

    def _logprobs(self, part: Part) -> CompletionLogprobs:
        request = part.update.request
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
