"""Renders conversations by the model's own template or by their own, a few at a time.

Both kinds take turns by payer (`fair_slots`), each kind with slots of its own. A client's template
is a stranger's code, so its process ends with the conversation.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from signalbox_contract.errors import FailedPrecondition, Unavailable
from signalbox_router.limits.fair_slots import FairSlots
from signalbox_router.limits.payers import Payer
from signalbox_router.prompt.chat.chat_template import PATIENCE_S, ChatTemplate, Rendering, refused
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.chat.provenance import Text
from signalbox_router.prompt.chat.template_facts import TemplateFacts
from signalbox_router.prompt.chat.template_renderer import RendererLost, TemplateFailed

MAX_PROCESSES = 3
"""Conversations of each kind that are rendered at once; one payer gets one fewer."""


class RenderedChat(NamedTuple):
    """A conversation as a prompt."""

    text: Text
    facts: TemplateFacts
    """Facts of the template that it was rendered by."""


class ChatTemplates:
    """The model's template, and those that clients send."""

    def __init__(
        self, model: ChatTemplate | None, *, special_tokens: Mapping[str, str], fault: str = ""
    ) -> None:
        """Args:
        fault: why the model's template cannot be used, if so.
        """
        self.model = model
        self._special_tokens = special_tokens
        self._fault = fault
        self._of_model, self._of_clients = _Turns(), _Turns()
        self._last: ChatTemplate | None = None
        """The last one that `render_blocking` was given."""

    async def render(
        self, conversation: Conversation, *, max_bytes: int, payer: Payer
    ) -> RenderedChat:
        """Returns the prompt. Cancelling stops the work.

        Raises FailedPrecondition if there is no template, InvalidArgument if it refuses the
        conversation or exceeds its limits.
        """
        if conversation.chat_template is not None:
            render = partial(self._by_clients, conversation.chat_template, conversation, max_bytes)
            return await self._of_clients.run(render, payer)
        render = partial(_by, self._models(), conversation, max_bytes)
        return await self._of_model.run(render, payer)

    def render_blocking(self, conversation: Conversation, *, max_bytes: int) -> Text:
        """Returns the same as `render`, on the calling thread, for one caller.

        The process of a conversation's own template is kept for the next conversation.
        """
        source = conversation.chat_template
        if source is None:
            return self._models().render(conversation, max_bytes=max_bytes)
        if self._last is None or self._last.source != source:
            self._close_last()
            self._last = self._given(source, Rendering(), is_clients=False)
        return self._last.render(conversation, max_bytes=max_bytes)

    def close(self) -> None:
        """Ends the idle processes; busy ones end with their work."""
        self._close_last()
        if self.model is not None:
            self.model.close()

    def _models(self) -> ChatTemplate:
        if self.model is not None:
            return self.model
        why = f"the model's chat template cannot be used ({self._fault})"
        raise FailedPrecondition(
            f"{why if self._fault else 'the model has no chat template'}; use Generate, or give the"
            " router a --chat-template"
        )

    def _given(self, source: str, rendering: Rendering, *, is_clients: bool) -> ChatTemplate:
        tokens = self._special_tokens
        try:
            return ChatTemplate(
                source, special_tokens=tokens, is_clients=is_clients, rendering=rendering
            )
        except TemplateFailed as error:
            raise refused(source, error) from None
        except RendererLost as error:
            raise Unavailable(str(error)) from None

    def _by_clients(
        self, source: str, conversation: Conversation, max_bytes: int, rendering: Rendering
    ) -> RenderedChat:
        template = self._given(source, rendering, is_clients=True)
        try:
            return _by(template, conversation, max_bytes, rendering)
        finally:
            template.close()

    def _close_last(self) -> None:
        if self._last is not None:
            self._last.close()
            self._last = None


def _by(
    template: ChatTemplate, conversation: Conversation, max_bytes: int, rendering: Rendering
) -> RenderedChat:
    text = template.render(conversation, max_bytes=max_bytes, rendering=rendering)
    return RenderedChat(text, template.facts)


class _Turns:
    """Slots that payers take turns at, and their threads."""

    def __init__(self) -> None:
        self._slots = FairSlots(MAX_PROCESSES)
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, thread_name_prefix="chat templates")

    async def run(self, render: Callable[[Rendering], RenderedChat], payer: Payer) -> RenderedChat:
        """Renders on a thread. Cancelling kills the process unless it is ready soon."""
        async with self._slots.slot(payer):
            rendering = Rendering()
            loop = asyncio.get_running_loop()
            working = loop.run_in_executor(self._threads, render, rendering)
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                try:
                    await asyncio.wait([working], timeout=PATIENCE_S)
                finally:
                    rendering.stop()
                    working.add_done_callback(asyncio.Future.exception)  # nothing waits for it
                raise
