"""Form and frequency in which a client gets its output.

Sequences are detokenised and searched for stop strings as tokens arrive, even if output is held.
"""

import copy
import dataclasses
import enum
from dataclasses import dataclass, field

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta, Echo, ToolCallDelta


class OutputKind(enum.Enum):
    """Part of a sequence that an update contains; see inference.proto."""

    DELTA = enum.auto()
    CUMULATIVE = enum.auto()
    FINAL_ONLY = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Options for the delivery of output."""

    kind: OutputKind = OutputKind.DELTA
    stream_interval: int = 1
    """Fewest new tokens of a sequence between two updates, except the first and the last."""
    echo: bool = False
    """True if each sequence begins with the prompt."""
    keeps_order: bool = False
    """True if output is held as several deltas where reasoning follows text or calls."""

    @property
    def is_plain(self) -> bool:
        """True if each update is sent unchanged."""
        return self.kind is OutputKind.DELTA and self.stream_interval == 1


@dataclass(slots=True)
class _Held:
    """Held output of one sequence; with CUMULATIVE, all of its output."""

    delta: Delta
    earlier: list[Delta] = field(default_factory=list)
    """Deltas before it, see `Delivery.keeps_order`."""
    num_new_tokens: int = 0
    is_new: bool = False

    def add(self, delta: Delta, *, keeps_order: bool) -> None:
        held = self.delta
        if keeps_order and delta.reasoning and (held.text or held.tool_calls):
            self.earlier.append(held)
            held = self.delta = Delta(index=held.index)
        num_chars = len(held.text)
        held.text += delta.text
        held.reasoning += delta.reasoning
        held.token_ids += delta.token_ids
        held.logprobs += delta.logprobs
        held.finish = delta.finish
        for call in delta.tool_calls:
            _add_call(held.tool_calls, call, num_chars)
        self.num_new_tokens += len(delta.token_ids)
        self.is_new = True


class OutputBuffer:
    """Holds a request's new output until an update is due."""

    def __init__(self, delivery: Delivery, echo: Echo | None = None) -> None:
        self._delivery = delivery
        self._echo = echo
        self._held: dict[int, _Held] = {}
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._begun: set[int] = set()
        self._has_sent = False

    def push(self, update: Update) -> Update | None:
        """Adds new output; returns the update to send now, or None."""
        self._prompt_logprobs += update.prompt_logprobs
        for delta in update.deltas:
            self._hold(delta)
        if update.end is None and not self._is_due():
            return None
        self._has_sent = True
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, []
        return Update(update.request, self._pop(), update.end, prompt_logprobs)

    def _hold(self, delta: Delta) -> None:
        held = self._held.get(delta.index)
        if held is None:
            held = self._held[delta.index] = _Held(Delta(index=delta.index))
            if self._echo is not None and delta.index not in self._begun:
                held.delta.text = self._echo.text
                held.delta.token_ids += self._echo.token_ids
            self._begun.add(delta.index)
        held.add(delta, keeps_order=self._delivery.keeps_order)

    def _is_due(self) -> bool:
        if self._delivery.kind is OutputKind.FINAL_ONLY:
            return False
        interval = self._delivery.stream_interval if self._has_sent else 1
        return any(
            held.is_new and (held.num_new_tokens >= interval or held.delta.finish is not None)
            for held in self._held.values()
        )

    def _pop(self) -> list[Delta]:
        new = [held for held in self._held.values() if held.is_new]
        popped = [delta for held in new for delta in (*held.earlier, held.delta)]
        if self._delivery.kind is not OutputKind.CUMULATIVE:
            self._held.clear()
            return popped
        for held in self._held.values():
            held.num_new_tokens, held.is_new = 0, False
        return [copy.deepcopy(delta) for delta in popped]


def _add_call(calls: list[ToolCallDelta], new: ToolCallDelta, num_chars: int) -> None:
    """Appends new text of a call to the held part of the same call.

    Args:
        num_chars: length of the text before that of the new delta.
    """
    for call in calls:
        if call.index == new.index:
            call.id, call.name = call.id or new.id, call.name or new.name
            call.arguments += new.arguments
            return
    calls.append(dataclasses.replace(new, offset=new.offset + num_chars))
