"""One chat template, and the processes that render conversations by it (`template_process`).

No template is rendered in this process. A process is kept for the next conversation, unless one has
exceeded the limits: then another takes its place.
"""

import logging
import queue
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial

from signalbox_contract.errors import InvalidArgument, Unavailable
from signalbox_router.prompt.chat import message_order, thinking_form, tool_prompt
from signalbox_router.prompt.chat.conversation import Conversation, Message
from signalbox_router.prompt.chat.length_errors import TextTooLong
from signalbox_router.prompt.chat.provenance import Text
from signalbox_router.prompt.chat.template_renderer import (
    RendererLost,
    TemplateFailed,
    TemplateRenderer,
    TemplateTakesTooMuch,
    TemplateTooLong,
)
from signalbox_rpc.limits.garbage_collection import without_full_collections

logger = logging.getLogger(__name__)

PATIENCE_S = 0.05
"""Seconds that a conversation waits for a process that renders another, before one is started."""
MANY_MESSAGES = 1 << 10
"""Messages beyond which rendering delays full garbage collections."""
MAX_TRIAL_BYTES = 1 << 20
"""Bytes that a template may render of a greeting."""
_ATTEMPTS = 2
"""Processes that may be lost before a conversation is refused."""
_GREETING = Conversation(messages=[Message("user", "Hello")])


class Rendering:
    """A rendering on one thread, which another thread may stop."""

    def __init__(self) -> None:
        self._renderer: TemplateRenderer | None = None
        self.is_stopped = False

    @contextmanager
    def using(self, renderer: TemplateRenderer) -> Iterator[None]:
        """Lets `stop` kill a process while the block runs."""
        self._renderer = renderer
        if self.is_stopped:
            renderer.kill()
        try:
            yield
        finally:
            self._renderer = None

    def stop(self) -> None:
        self.is_stopped = True
        if (renderer := self._renderer) is not None:
            renderer.kill()


class ChatTemplate:
    """A template with the model's special tokens. Its methods block."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        is_clients: bool = False,
        rendering: Rendering | None = None,
    ) -> None:
        """Loads the template. Raises TemplateFailed, or RendererLost if `rendering` is stopped.

        Args:
            is_clients: True if it came with a request: errors name that field, and its process is
                not replaced.
        """
        self.source = source
        self._thinking_form = thinking_form.form_of(source)
        self.special_tokens = dict(special_tokens)
        self._is_clients = is_clients
        self._idle: queue.SimpleQueue[TemplateRenderer] = queue.SimpleQueue()
        self._running = set[TemplateRenderer]()
        self._is_closed = False
        self._takes_later_system: bool | None = None
        renderer = self._start()
        try:
            with (rendering or Rendering()).using(renderer):
                self.facts = renderer.load()
        except BaseException:
            self._forget(renderer)
            raise
        self._idle.put(renderer)

    def try_out(self) -> None:
        """Renders a greeting. Raises TemplateTakesTooMuch if that exceeds the limits."""
        variables = _GREETING.variables(self.facts.content_form)
        try:
            self._ask(variables, max_bytes=MAX_TRIAL_BYTES, rendering=Rendering())
        except TemplateTakesTooMuch:
            self.close()
            raise
        except TemplateFailed:  # it may be for other conversations
            return

    def render(
        self, conversation: Conversation, *, max_bytes: int, rendering: Rendering | None = None
    ) -> Text:
        """Returns the prompt. Raises InvalidArgument if the template refuses the conversation."""
        is_large = len(conversation.messages) > MANY_MESSAGES
        rendering = rendering or Rendering()
        takes_later_system = partial(self._tries_later_system, rendering)
        orders = message_order.orders_of(conversation, takes_later_system)
        forms = (form for one in orders for form in tool_prompt.forms_of(one, self.facts))
        refusal: TemplateFailed | None = None
        with without_full_collections() if is_large else nullcontext():
            for form in forms:
                try:
                    return self._render(form, max_bytes=max_bytes, rendering=rendering)
                except TemplateTakesTooMuch as error:
                    raise self._refused(conversation, error, max_bytes) from None
                except TemplateFailed as error:
                    refusal = refusal or error
        assert refusal is not None
        raise self._refused(conversation, refusal, max_bytes)

    def close(self) -> None:
        """Ends the idle processes; busy ones end with their work."""
        self._is_closed = True
        with suppress(queue.Empty):
            while True:
                self._forget(self._idle.get_nowait())

    def _tries_later_system(self, rendering: Rendering) -> bool:
        """Returns whether the template renders a later system message in its place."""
        if self._takes_later_system is None:
            trial = message_order.OrderTrial()
            variables = trial.variables(self.facts.content_form)
            try:
                text = self._ask(variables, max_bytes=MAX_TRIAL_BYTES, rendering=rendering)
            except TemplateFailed:
                text = Text()
            self._takes_later_system = trial.is_in_order(text)
        return self._takes_later_system

    def _render(self, form: Conversation, *, max_bytes: int, rendering: Rendering) -> Text:
        mark = _mark_of(form)
        thinking = self._thinking_form.variables(form.thinking)
        variables = form.variables(self.facts.content_form, suffix=mark, thinking=thinking)
        text = self._ask(variables, max_bytes=max_bytes + len(mark), rendering=rendering)
        return _cut(text, mark)

    def _ask(
        self, variables: Mapping[str, object], *, max_bytes: int, rendering: Rendering
    ) -> Text:
        """Renders; if the process is lost, another one does it again."""
        for _ in range(_ATTEMPTS):
            with suppress(RendererLost), self._renderer(rendering) as renderer:
                return renderer.render(variables, max_bytes=max_bytes)
            if rendering.is_stopped:
                break
        raise Unavailable("the process that renders chat templates was killed; send it again")

    @contextmanager
    def _renderer(self, rendering: Rendering) -> Iterator[TemplateRenderer]:
        renderer = self._take()
        try:
            with rendering.using(renderer):
                yield renderer
        finally:
            if renderer.is_ready and not self._is_closed:
                self._idle.put(renderer)
            else:
                self._forget(renderer)
                self._replace()

    def _take(self) -> TemplateRenderer:
        """Returns an idle process, or starts one if none becomes idle soon."""
        while True:
            try:
                renderer = self._idle.get(timeout=PATIENCE_S if self._running else 0)
            except queue.Empty:
                return self._start()
            if renderer.is_ready:
                return renderer
            self._forget(renderer)

    def _start(self) -> TemplateRenderer:
        try:
            renderer = TemplateRenderer(
                self.source, self.special_tokens, is_clients=self._is_clients
            )
        except OSError as error:
            why = f"no process can be started to render chat templates ({error.strerror})"
            raise Unavailable(why) from None
        self._running.add(renderer)
        return renderer

    def _replace(self) -> None:
        """Starts a process in the place of one, so that no other conversation waits for it."""
        if not (self._is_clients or self._is_closed):
            with suppress(Unavailable):
                self._idle.put(self._start())

    def _forget(self, renderer: TemplateRenderer) -> None:
        self._running.discard(renderer)
        renderer.end()

    def _refused(
        self, conversation: Conversation, error: TemplateFailed, max_bytes: int
    ) -> InvalidArgument:
        if self._is_clients:
            return refused(self.source, error)
        count = f"a conversation of {len(conversation.messages)} messages"
        if isinstance(error, TemplateTooLong):
            return TextTooLong("messages", count, f"at most {max_bytes} bytes when rendered")
        if isinstance(error, TemplateTakesTooMuch):
            logger.warning("the chat template exceeds its limits: %s", error)
        allowed = f"what the model's chat template accepts ({error})"
        return InvalidArgument("messages", count, allowed)


def refused(source: str, error: TemplateFailed) -> InvalidArgument:
    return InvalidArgument("chat_template", source, f"a template that can be rendered ({error})")


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
