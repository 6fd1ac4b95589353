"""Limits the length of a request to what the KV cache of the largest live worker holds.

The model's window may be longer. A request that sets no max_tokens is cut to what fits when it
comes in, and keeps that for life, whatever workers join or leave.
"""

import logging
from typing import Protocol

from signalbox_contract.model import ModelInfo
from signalbox_contract.updates import RequestFailure
from signalbox_scheduler.requests.failures import exceeds_window
from signalbox_scheduler.requests.sequence_group import SequenceGroup

logger = logging.getLogger(__name__)

_SHORT = (
    "effective window: %(tokens)d of %(max_model_len)d tokens, as much as the largest worker's KV"
    " cache holds; raise --kv-cache-memory (on CUDA --gpu-memory-utilization) for more"
)
_WHOLE = "effective window: %(tokens)d tokens, that of the model or of --max-model-len"


class JoinedWorkers(Protocol):
    """Bounds of all joined workers together; `StepLoops` is one."""

    @property
    def is_serving(self) -> bool: ...

    @property
    def effective_max_model_len(self) -> int: ...

    def have_taker(self, group: SequenceGroup) -> bool: ...

    def most_new_tokens(self, group: SequenceGroup) -> int: ...


def find_overflow(group: SequenceGroup, workers: JoinedWorkers) -> RequestFailure | None:
    """Says if a new request's prompt is too long for every worker that takes requests."""
    window = workers.effective_max_model_len
    return exceeds_window(group, window) if group.num_prompt_tokens >= window else None


def cut_to_fit(group: SequenceGroup, workers: JoinedWorkers) -> None:
    """Cuts max_tokens, where it is a default, to what the worker that holds the most has room for.

    A group that no cut makes fit, such as many branches of a long prompt, is left as it is.
    """
    if group.request.max_tokens_is_default:
        fitting = workers.most_new_tokens(group)
        if fitting >= max(1, group.params.min_tokens):
            group.max_tokens = min(group.max_tokens, fitting)


class WindowLog:
    """Says the effective window in one line whenever it changes."""

    def __init__(self) -> None:
        self._logged = 0

    def record(self, model: ModelInfo | None, workers: JoinedWorkers) -> None:
        """Logs the window of the workers that there are now, if it has changed."""
        window = workers.effective_max_model_len
        if model is None or window in (0, self._logged):
            return
        usual = not self._logged  # the whole window from the start is no news
        self._logged = window
        if window < model.max_model_len:
            logger.warning(_SHORT, {"tokens": window, "max_model_len": model.max_model_len})
        else:
            logger.log(logging.DEBUG if usual else logging.INFO, _WHOLE, {"tokens": window})
