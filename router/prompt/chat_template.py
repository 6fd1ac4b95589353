"""Renders conversations, by the model's own template or by one from the client.

The model's template runs in this process, on the caller's thread. A client's is untrusted: a
process that lives for one conversation renders it, see `template_sandbox`.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

import jinja2

from contract.errors import InvalidArgument
from router.prompt import template_sandbox, tool_prompt
from router.prompt.conversation import Conversation
from router.prompt.length_errors import TextTooLong
from router.prompt.provenance import Text
from router.prompt.template_facts import TemplateFacts, facts_of
from router.work_limits.fair_slots import FairSlots
from router.work_limits.payers import Payer
from router.work_limits.sandbox_process import run_limited
from rpc.limits.garbage_collection import without_full_collections

MANY_MESSAGES = 1 << 10
"""Messages beyond which rendering delays full garbage collections."""
MAX_PROCESSES = 3
"""Templates of clients that are rendered at once; one payer gets one fewer."""

T = TypeVar("T")


class ChatTemplate:
    """A compiled template with the model's special tokens."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        """Compiles the template. Raises jinja2.TemplateSyntaxError."""
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.facts = facts_of(source)
        self._template = template_sandbox.ENVIRONMENT.from_string(source)

    def render(self, conversation: Conversation, *, max_bytes: int) -> Text:
        """Returns the prompt. Raises InvalidArgument if the template refuses the conversation."""
        forms = tool_prompt.forms_of(conversation, self.facts)
        is_large = len(conversation.messages) > MANY_MESSAGES
        try:
            with without_full_collections() if is_large else nullcontext():
                return self._render(next(forms), max_bytes=max_bytes)
        except InvalidArgument:
            for form in forms:
                with suppress(InvalidArgument):
                    return self._render(form, max_bytes=max_bytes)
            raise

    def _render(self, conversation: Conversation, *, max_bytes: int) -> Text:
        mark = _mark_of(conversation)
        form = self.facts.content_form
        try:
            text = template_sandbox.render(
                self._template,
                conversation.variables(form, suffix=mark),
                special_tokens=self.special_tokens,
                max_bytes=max_bytes + len(mark),
            )
        except template_sandbox.TooLong:
            allowed = f"at most {max_bytes} bytes when rendered"
            raise TextTooLong("messages", _count(conversation), allowed) from None
        except Exception as error:  # a template may raise any exception
            allowed = f"what the model's chat template accepts ({error})"
            raise InvalidArgument("messages", _count(conversation), allowed) from error
        return _cut(text, mark)


def make_chat_template(source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """Returns a compiled template. Raises InvalidArgument for an invalid one."""
    try:
        return ChatTemplate(source, special_tokens=special_tokens)
    except jinja2.TemplateError as error:
        allowed = f"a template that can be rendered ({error})"
        raise InvalidArgument("chat_template", source, allowed) from None


class ClientTemplates:
    """Renders by clients' templates, a few at a time, shared fairly between payers."""

    def __init__(self, *, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = special_tokens
        self._processes = FairSlots(MAX_PROCESSES)

    async def render(self, conversation: Conversation, *, max_bytes: int, payer: Payer) -> Text:
        """Returns the prompt. Raises InvalidArgument for a template that fails or takes too
        long."""
        async with self._processes.slot(payer):  # parsing a template may take half a second
            facts = await _in_thread(facts_of, conversation.chat_template or "")
        first, *others = await _in_thread(_forms_of, conversation, facts)
        try:
            return await self._render(first, facts, max_bytes=max_bytes, payer=payer)
        except InvalidArgument:
            for form in others:
                with suppress(InvalidArgument):
                    return await self._render(form, facts, max_bytes=max_bytes, payer=payer)
            raise

    async def _render(
        self, conversation: Conversation, facts: TemplateFacts, *, max_bytes: int, payer: Payer
    ) -> Text:
        mark = _mark_of(conversation)
        job = await _in_thread(self._job_of, conversation, facts, mark, max_bytes)
        async with self._processes.slot(payer):
            answer = await run_limited(
                template_sandbox.__file__, job, cpu_limit_s=template_sandbox.CPU_LIMIT_S
            )
        if "text" not in answer:
            raise _refused(conversation, answer["error"])
        return _cut(template_sandbox.rendered(answer), mark)

    def _job_of(
        self, conversation: Conversation, facts: TemplateFacts, mark: str, max_bytes: int
    ) -> dict[str, Any]:
        return template_sandbox.job_of(
            conversation.chat_template or "",
            conversation.variables(facts.content_form, suffix=mark),
            special_tokens=self._special_tokens,
            max_bytes=max_bytes + len(mark),
        )


def _forms_of(conversation: Conversation, facts: TemplateFacts) -> list[Conversation]:
    return list(tool_prompt.forms_of(conversation, facts))


async def _in_thread(call: Callable[..., T], *args: Any) -> T:
    """Returns the call's result; it runs in a thread because many messages take 0.1 s."""
    return await asyncio.to_thread(without_full_collections()(call), *args)


def _refused(conversation: Conversation, reason: str) -> InvalidArgument:
    allowed = f"a template that can be rendered ({reason})"
    return InvalidArgument("chat_template", conversation.chat_template, allowed)


def _mark_of(conversation: Conversation) -> str:
    """Returns a mark for the end of an unfinished last message; no client can guess it.

    Its last character is a space: a template that trims the message drops it.
    """
    return f"<end {uuid.uuid4().hex}> " if conversation.continue_final_message else ""


def _cut(text: Text, mark: str) -> Text:
    """Removes the text that the template adds after the last message, and spaces it would trim."""
    if not mark:
        return text
    before: Text
    before, found, after = text.rpartition(mark.rstrip())
    if not found:
        allowed = "false: the chat template does not render the last message as it is"
        raise InvalidArgument("continue_final_message", True, allowed)
    return before if after.startswith(" ") else before.rstrip()


def _count(conversation: Conversation) -> str:
    return f"a conversation of {len(conversation.messages)} messages"
