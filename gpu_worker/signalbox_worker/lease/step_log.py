"""Remembers which steps of a lease were taken in, so that a resend is harmless.

Step ids count up from 1. The answers of as many steps as may be in flight are kept; a repeated id
gets the stored answer, or attaches to the step that still runs. A refused step has changed nothing,
so its id counts as never sent. Used on the event loop alone.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from signalbox_contract.errors import FailedPrecondition
from signalbox_contract.step_result import StepResult

NUM_KEPT_ANSWERS = 2

Answer = asyncio.Future[StepResult]


class StepLog:
    """The steps of one lease that are in flight or were answered last."""

    def __init__(self, num_kept: int = NUM_KEPT_ANSWERS) -> None:
        self._num_kept = num_kept
        self._answers: dict[int, Answer] = {}
        self._last_step_id = 0

    def get_or_start(self, step_id: int, start: Callable[[], Answer]) -> Answer:
        """Returns the answer of a step that is known, or starts the step that is next.

        Raises FailedPrecondition if the step is neither.
        """
        if (known := self._answers.get(step_id)) is not None:
            return known
        if step_id <= self._last_step_id:
            raise FailedPrecondition(
                f"step {step_id} is too old: the last is {self._last_step_id}, "
                f"and {self._num_kept} answers are kept"
            )
        if step_id != self._last_step_id + 1:
            raise FailedPrecondition(f"step {step_id} sent, step {self._last_step_id + 1} expected")
        answer = self._answers[step_id] = start()
        self._last_step_id = step_id
        answer.add_done_callback(partial(self._on_answered, step_id))
        return answer

    def _on_answered(self, step_id: int, answer: Answer) -> None:
        # Asking for the exception also marks it as seen: the stream that sent it may be gone.
        if answer.cancelled() or answer.exception() is not None:
            self._forget_from(step_id, answer)
        else:
            self._answers.pop(step_id - self._num_kept, None)

    def _forget_from(self, step_id: int, answer: Answer) -> None:
        if self._answers.get(step_id) is not answer:
            return  # forgotten with a step before it; the id may be in use again
        for later in range(step_id, self._last_step_id + 1):
            self._answers.pop(later, None)
        self._last_step_id = step_id - 1
