"""Connects the router's requests to the scheduler of this process by calls instead of a stream."""

import itertools
import time

from signalbox.llm.in_process.in_process_request import InProcessRequest
from signalbox.llm.requests.errors import refusing
from signalbox.llm.requests.prompts import Prompt
from signalbox_contract.errors import from_code
from signalbox_contract.updates import RequestUpdates
from signalbox_router.params import params_validation
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_router.requests.request_table import RequestTable
from signalbox_router.schedulers.scheduler_request import request_of
from signalbox_scheduler.requests.sequence_group import new_group
from signalbox_scheduler.workers.request_lifecycle import RequestLifecycle


class InProcessChannel:
    """The unfinished requests.

    The scheduler calls `send` once for each step; a request that a stop string ends calls
    `stop_sequence`.
    """

    def __init__(
        self, requests: RequestLifecycle, tokenizer: Tokenizer, *, stream_interval: int
    ) -> None:
        self._lifecycle = requests
        self._tokenizer = tokenizer
        self._stream_interval = stream_interval
        self._requests = RequestTable[InProcessRequest]()
        self._touched: dict[int, InProcessRequest] = {}
        self._handles = itertools.count(1)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def has_news(self) -> bool:
        """True if `pop_touched` would return a request."""
        return bool(self._touched)

    def submit(
        self, request_id: str, prompt: Prompt, params: GenerationParams, *, priority: int
    ) -> InProcessRequest:
        """Queues a request. Raises ValueError if it is refused."""
        with refusing():
            params_validation.check_request_id(request_id)
            params_validation.check_priority(priority)
        request = InProcessRequest(
            prompt,
            params,
            stream_interval=self._stream_interval,
            handle=next(self._handles),
            request_id=request_id,
            priority=priority,
            tokenizer=self._tokenizer,
            scheduler=self,
        )
        request.group = new_group(request_of(request), reply_to=self, now=time.monotonic())
        self._requests[request.handle] = request
        if not self._lifecycle.add(request.group):
            del self._touched[request.handle]
            failure = request.group.failure
            assert failure is not None, "a refused request has a failure"
            with refusing():
                raise from_code(failure.code, f"{request_id}: {failure.message}")
        return request

    def abort(self, handle: int) -> None:
        """Ends a request; does nothing if it has ended."""
        if (request := self._requests.pop(handle, None)) is not None:
            request.abort()
            self._lifecycle.abort(request.group)

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        """Ends one sequence; does nothing if the request has ended."""
        if (request := self._requests.get(handle)) is not None:
            self._lifecycle.stop_sequence(request.group, index=index, keep_tokens=keep_tokens)

    def send(self, updates: RequestUpdates) -> None:
        """Adds one step's updates to their requests."""
        requests, touched = self._requests, self._touched
        for handle in updates.handles:
            touched[handle] = requests[handle]
        for sequence in updates.finished_sequences:
            touched[sequence.handle] = requests[sequence.handle]
        for request, finished in requests.apply(updates):
            touched[request.handle] = request
            request.finish(finished)

    def pop_touched(self) -> list[InProcessRequest]:
        """Returns the requests with updates since the last call."""
        taken, self._touched = self._touched, {}
        for request in taken.values():
            if request.params.stop:
                request.collect()
        self._touched.clear()  # a stop string may have ended a request: it is in the list already
        return list(taken.values())

    def forget_all(self) -> None:
        """Forgets all requests, and wakes the tasks that wait for them."""
        requests = list(self._requests.values())
        self._requests.clear()
        for request in requests:
            request.wake()
