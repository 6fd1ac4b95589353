"""Renders conversations: by the model's own template, or by one that the client has sent.

The model's runs in this process, on the caller's thread. A client's is untrusted: it is rendered by
a process that lives for one conversation, see `template_sandbox`.
"""

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import suppress

import jinja2

from router import template_sandbox, tool_prompt
from router.conversation import Conversation
from router.limited_process import run_limited
from router.template_facts import TemplateFacts, facts_of
from rpc.errors import InvalidArgument, TextTooLong

MAX_PROCESSES = 2


class ChatTemplate:
    """A compiled template with the model's special tokens."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        """Raises jinja2.TemplateSyntaxError."""
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.facts = facts_of(source)
        self._template = template_sandbox.ENVIRONMENT.from_string(source)

    def render(self, conversation: Conversation, *, max_bytes: int) -> str:
        """Returns the prompt. Raises InvalidArgument if the template refuses the conversation."""
        first, *others = tool_prompt.forms_of(conversation, self.facts)
        try:
            return self._render(first, max_bytes=max_bytes)
        except InvalidArgument:
            for form in others:
                with suppress(InvalidArgument):
                    return self._render(form, max_bytes=max_bytes)
            raise

    def _render(self, conversation: Conversation, *, max_bytes: int) -> str:
        mark = _mark_of(conversation)
        form = self.facts.content_form
        variables = {**self.special_tokens, **conversation.variables(form, suffix=mark)}
        try:
            text = template_sandbox.render(
                self._template, variables, max_bytes=max_bytes + len(mark)
            )
        except template_sandbox.TooLong:
            allowed = f"at most {max_bytes} bytes when rendered"
            raise TextTooLong("messages", _count(conversation), allowed) from None
        except Exception as error:  # a template may raise whatever Python does
            allowed = f"what the model's chat template accepts ({error})"
            raise InvalidArgument("messages", _count(conversation), allowed) from error
        return _cut(text, mark)


def make_chat_template(source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """Raises InvalidArgument for what is no template."""
    try:
        return ChatTemplate(source, special_tokens=special_tokens)
    except jinja2.TemplateError as error:
        allowed = f"a template that can be rendered ({error})"
        raise InvalidArgument("chat_template", source, allowed) from None


class ClientTemplates:
    """Renders by templates that clients have sent, a few at a time."""

    def __init__(self, *, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = special_tokens
        self._processes = asyncio.Semaphore(MAX_PROCESSES)

    async def render(self, conversation: Conversation, *, max_bytes: int) -> str:
        """Returns the prompt. Raises InvalidArgument for a template that fails, or takes long."""
        facts = await asyncio.to_thread(facts_of, conversation.chat_template or "")
        first, *others = tool_prompt.forms_of(conversation, facts)
        try:
            return await self._render(first, facts, max_bytes=max_bytes)
        except InvalidArgument:
            for form in others:
                with suppress(InvalidArgument):
                    return await self._render(form, facts, max_bytes=max_bytes)
            raise

    async def _render(
        self, conversation: Conversation, facts: TemplateFacts, *, max_bytes: int
    ) -> str:
        mark = _mark_of(conversation)
        variables = conversation.variables(facts.content_form, suffix=mark)
        job = {
            "source": conversation.chat_template,
            "variables": {**self._special_tokens, **variables},
            "max_bytes": max_bytes + len(mark),
        }
        async with self._processes:
            answer = await run_limited(
                template_sandbox.__file__, job, cpu_limit_s=template_sandbox.CPU_LIMIT_S
            )
        if "text" not in answer:
            raise _refused(conversation, answer["error"])
        return _cut(answer["text"], mark)


def _refused(conversation: Conversation, reason: str) -> InvalidArgument:
    allowed = f"a template that can be rendered ({reason})"
    return InvalidArgument("chat_template", conversation.chat_template, allowed)


def _mark_of(conversation: Conversation) -> str:
    """Returns what marks the end of a last message that is left open; no client can guess it.

    Its last character is a space: a template that trims the message drops it.
    """
    return f"<end {uuid.uuid4().hex}> " if conversation.continue_final_message else ""


def _cut(text: str, mark: str) -> str:
    """Drops what the template writes after the last message, and spaces that it would trim."""
    if not mark:
        return text
    before, found, after = text.rpartition(mark.rstrip())
    if not found:
        allowed = "false: the chat template does not render the last message as it is"
        raise InvalidArgument("continue_final_message", True, allowed)
    return before if after.startswith(" ") else before.rstrip()


def _count(conversation: Conversation) -> str:
    return f"a conversation of {len(conversation.messages)} messages"
