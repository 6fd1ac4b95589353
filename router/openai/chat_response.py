"""Answers of /v1/chat/completions, complete or as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from router.openai.logprobs import PromptBudget, Tokens, chat_logprobs, prompt_logprobs
from router.openai.multi_prompt import Part
from router.openai.requests.chat_types import ChatBody
from router.openai.response_fields import Head, UsageCounter, finish_fields, to_event, usage_plan
from router.requests.request_output import Delta, Finish, ToolCallDelta

KIND = "chat.completion"
CHUNK_KIND = "chat.completion.chunk"


@dataclass(slots=True)
class _Choice:
    """The received part of one choice's message."""

    text: list[str] = field(default_factory=list)
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, delta: Delta) -> None:
        self.text.append(delta.text)
        self.reasoning += delta.reasoning
        self.token_ids += delta.token_ids
        self.finish = delta.finish
        for call in delta.tool_calls:
            if call.id:
                self.calls.append(_call(call))
            else:
                self.calls[call.index]["function"]["arguments"] += call.arguments

    def message(self) -> dict[str, Any]:
        text = "".join(self.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self.calls else None,
            "refusal": None,
        }
        message |= _reasoning(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


class ChatAnswer:
    """Converts the updates of one generation to OpenAI's shape."""

    def __init__(self, body: ChatBody, head: Head) -> None:
        self._body = body
        self._head = head
        self._tokens = Tokens(head.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._usage = UsageCounter()

    async def whole(self, parts: AsyncIterator[Part]) -> dict[str, Any]:
        choices: dict[int, _Choice] = {}
        answer = self._head.fields(KIND)
        async for part in parts:
            self._usage.add(part)
            if update_logprobs := part.update.prompt_logprobs:
                PromptBudget().spend(update_logprobs)
                found = (self._tokens, part.update.request.prompt_token_ids, update_logprobs)
                answer["prompt_logprobs"] = await asyncio.to_thread(prompt_logprobs, *found)
            if self._body.return_token_ids:
                answer["prompt_token_ids"] = part.update.request.prompt_token_ids
            for delta in part.update.deltas:
                choice = choices.setdefault(delta.index, _Choice())
                choice.add(delta)
                if self._body.logprobs:
                    choice.logprobs += chat_logprobs(self._tokens, delta)["content"]
        answer["choices"] = [self._whole(index, choices[index]) for index in sorted(choices)]
        answer["usage"] = self._usage.body()
        return answer

    async def events(self, parts: AsyncIterator[Part]) -> AsyncIterator[bytes]:
        """Yields the bytes to send at once: an event for each sequence that has new output."""
        plan = usage_plan(self._body)
        head = self._head.fields(CHUNK_KIND)
        begun: set[int] = set()
        async for part in parts:
            deltas = part.update.deltas
            self._usage.open(part)
            if plan.at_the_end:
                head["usage"] = self._usage.so_far() if plan.in_every_event else None
            new = [delta.index for delta in deltas if delta.index not in begun]
            events = [to_event({**head, **self._opening(part, index)}) for index in new]
            begun.update(new)
            self._usage.add(part)
            if plan.in_every_event:
                head["usage"] = self._usage.so_far()
            events += [to_event({**head, "choices": [self._chunk(delta)]}) for delta in deltas]
            yield b"".join(events)
        if plan.at_the_end:
            yield to_event({**head, "choices": [], "usage": self._usage.body()})

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        logprobs = {"content": choice.logprobs, "refusal": None} if self._body.logprobs else None
        fields = {"index": index, "message": choice.message(), "logprobs": logprobs}
        fields |= finish_fields(choice.finish)
        if self._body.return_token_ids:
            fields["token_ids"] = choice.token_ids
        return fields

    def _opening(self, part: Part, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        fields: dict[str, Any] = {"choices": [choice]}
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = part.update.request.prompt_token_ids
        return fields

    def _chunk(self, delta: Delta) -> dict[str, Any]:
        content: dict[str, Any] = {"content": delta.text} if delta.text else {}
        content |= _reasoning(delta.reasoning)
        if delta.tool_calls:
            content["tool_calls"] = [_call_delta(call) for call in delta.tool_calls]
        logprobs = chat_logprobs(self._tokens, delta) if self._body.logprobs else None
        fields = {"index": delta.index, "delta": content, "logprobs": logprobs}
        fields |= finish_fields(delta.finish)
        if self._body.return_token_ids:
            fields["token_ids"] = delta.token_ids
        return fields


def _call(call: ToolCallDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    if call.id:
        return {"index": call.index, **_call(call)}
    return {"index": call.index, "function": {"arguments": call.arguments}}


def _reasoning(text: str) -> dict[str, str]:
    """Returns the reasoning under vLLM's name and DeepSeek's; empty if there is none."""
    return {"reasoning": text, "reasoning_content": text} if text else {}
