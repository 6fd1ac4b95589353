"""Answers of /v1/chat/completions, complete or as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from signalbox_router.apis.openai.chat_calls import Call, ChatCalls, add_call
from signalbox_router.apis.openai.logprobs import (
    PromptBudget,
    Tokens,
    chat_logprobs,
    prompt_logprobs,
)
from signalbox_router.apis.openai.requests.chat_types import ChatBody
from signalbox_router.apis.openai.response_fields import (
    NULLS_OF_ANSWER,
    NULLS_OF_CHOICE,
    EventStream,
    ResponseHead,
    TextEvent,
    UsageCounter,
    finish_fields,
    to_event,
    usage_plan,
)
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta, Finish

KIND = "chat.completion"
CHUNK_KIND = "chat.completion.chunk"
_NULLS = dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text")) | NULLS_OF_ANSWER
_NULLS_OF_MESSAGE = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
"""Fields that whole answers have, as vLLM's do, also without a value."""


@dataclass(slots=True)
class _Choice:
    """The received part of one choice's message."""

    text: list[str] = field(default_factory=list)
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.reasoning += delta.reasoning
        self.token_ids += delta.token_ids
        self.finish = delta.finish

    def message(self) -> dict[str, Any]:
        text = "".join(self.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self.calls else None,
            **_NULLS_OF_MESSAGE,
        }
        message |= _reasoning(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class ChatAnswer(EventStream):
    """Converts the updates of one generation to OpenAI's shape."""

    def __init__(self, body: ChatBody, head: ResponseHead) -> None:
        """`body` must still have its messages, which are gone once they are converted."""
        self._body = body
        self._echoed = body.echoed
        self._head = head
        self._tokens = Tokens(head.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._plan = usage_plan(body)
        self._usage = UsageCounter(self._plan, is_chat=True)
        self._shows_reasoning = body.shows_reasoning
        self._shows_logprobs = bool(body.logprobs) and self._shows_reasoning
        self._shows_token_ids = bool(body.return_token_ids) and self._shows_reasoning
        self._top = head.fields(CHUNK_KIND)
        """The fields of an event beside its choices."""
        self._custom_tools = frozenset(one.custom.name for one in body.custom_tools.values())
        self._of_choices: dict[int, ChatCalls] = {}
        """The calls of choices that have called."""
        self._begun: set[int] = set()
        self._has_text_alone = not (
            self._shows_logprobs or self._shows_token_ids or self._plan.in_every_event
        )
        """True if events of a running sequence with text differ in this text alone."""
        self._text_events: dict[int, TextEvent] = {}
        """The events of deltas that have only text, by sequence."""

    async def whole(self, updates: AsyncIterator[Update]) -> dict[str, Any]:
        choices: dict[int, _Choice] = {}
        answer = self._head.fields(KIND) | _NULLS
        async for update in updates:
            self._usage.add(update)
            if update_logprobs := update.prompt_logprobs:
                PromptBudget().spend(update_logprobs)
                found = (self._tokens, update.request.prompt_token_ids, update_logprobs)
                answer["prompt_logprobs"] = await asyncio.to_thread(prompt_logprobs, *found)
            if self._body.return_token_ids:
                answer["prompt_token_ids"] = update.request.prompt_token_ids
            for delta in update.deltas:
                choice = choices.setdefault(delta.index, _Choice([self._echoed]))
                choice.add(self._shown(delta))
                for part in self._calls(delta):
                    add_call(choice.calls, part)
                if self._shows_logprobs:
                    choice.logprobs += self._logprobs(delta)["content"]
        answer["choices"] = [self._whole(index, choices[index]) for index in sorted(choices)]
        answer["usage"] = self._usage.body()
        return answer | self._usage.extras()

    def events(self, update: Update) -> bytes:
        """Returns the bytes to send at once: an event for each sequence that has new output."""
        deltas = update.deltas
        self._usage.open(update)
        if self._plan.at_the_end:
            self._top["usage"] = self._usage.so_far() if self._plan.in_every_event else None
        new = [delta.index for delta in deltas if delta.index not in self._begun]
        events = [to_event({**self._top, **self._opening(update, index)}) for index in new]
        self._begun.update(new)
        self._usage.add(update)
        if self._plan.in_every_event:
            self._top["usage"] = self._usage.so_far()
        events += [self._event(self._shown(delta)) for delta in deltas]
        return b"".join(events)

    async def last_event(self) -> bytes:
        """Returns the event with the usage and the receipt, if they were asked for."""
        last = self._usage.last_fields(self._plan)
        return to_event({**self._top, "choices": [], **last}) if last else b""

    def _shown(self, delta: Delta) -> Delta:
        if not self._shows_reasoning:
            delta.reasoning = ""
        return delta

    def _calls(self, delta: Delta) -> list[Call]:
        """Returns the new parts of the calls of a delta's choice."""
        if not (delta.tool_calls or delta.index in self._of_choices):
            return []
        if (calls := self._of_choices.get(delta.index)) is None:
            calls = self._of_choices[delta.index] = ChatCalls(self._custom_tools)
        return calls.deltas(delta)

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        names_tokens = bool(self._body.logprob_token_ids)
        return chat_logprobs(self._tokens, delta, adds_sampled=names_tokens)

    def _event(self, delta: Delta) -> bytes:
        if not self._shows_reasoning and not (delta.text or delta.tool_calls or delta.finish):
            return b""
        if (
            not self._has_text_alone
            or not delta.text
            or delta.reasoning
            or delta.tool_calls
            or delta.finish is not None
        ):
            return to_event({**self._top, "choices": [self._chunk(delta)]})
        event = self._text_events.get(delta.index)
        if event is None:
            chunk = self._chunk(Delta(index=delta.index, text=TextEvent.TEXT))
            event = self._text_events[delta.index] = TextEvent({**self._top, "choices": [chunk]})
        return event.of(delta.text)

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        logprobs = {"content": choice.logprobs, "refusal": None} if self._shows_logprobs else None
        fields = {"index": index, "message": choice.message(), "logprobs": logprobs}
        fields |= finish_fields(choice.finish)
        if self._shows_token_ids:
            fields["token_ids"] = choice.token_ids
        return NULLS_OF_CHOICE | fields

    def _opening(self, update: Update, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": self._echoed}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        fields: dict[str, Any] = {"choices": [choice]}
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = update.request.prompt_token_ids
        return fields

    def _chunk(self, delta: Delta) -> dict[str, Any]:
        content: dict[str, Any] = {"content": delta.text} if delta.text else {}
        content |= _reasoning(delta.reasoning)
        if calls := self._calls(delta):
            content["tool_calls"] = calls
        logprobs = self._logprobs(delta) if self._shows_logprobs else None
        fields = {"index": delta.index, "delta": content, "logprobs": logprobs}
        fields |= finish_fields(delta.finish)
        if self._shows_token_ids:
            fields["token_ids"] = delta.token_ids
        return fields


def _reasoning(text: str) -> dict[str, str]:
    """Returns the reasoning under vLLM's name and DeepSeek's; empty if there is none."""
    return {"reasoning": text, "reasoning_content": text} if text else {}
