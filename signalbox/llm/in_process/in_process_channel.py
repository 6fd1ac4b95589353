"""Between the router's requests and the scheduler of this process: calls instead of a stream."""

import itertools
import sys
import time
from dataclasses import replace

from contract.errors import from_code
from contract.updates import RequestUpdates
from router.params.generation_params import GenerationParams
from router.requests.active_request import ActiveRequest
from router.requests.request_table import RequestTable
from router.schedulers.scheduler_request import request_of
from router.tokenization.tokenizer import Tokenizer
from scheduler_svc.request_lifecycle import RequestLifecycle
from scheduler_svc.requests.sequence_group import new_group
from signalbox.llm.in_process.output_collector import OutputCollector
from signalbox.llm.requests.errors import refusing
from signalbox.llm.requests.prompts import Prompt


class InProcessChannel:
    """The unfinished requests.

    The scheduler calls `send`, as it does a router's session; a request that a stop string ends
    calls `stop_sequence`.
    """

    def __init__(self, requests: RequestLifecycle, tokenizer: Tokenizer) -> None:
        self._requests = requests
        self._tokenizer = tokenizer
        self._active = RequestTable()
        self._collectors: dict[int, OutputCollector] = {}
        self._touched: dict[int, OutputCollector] = {}
        self._handles = itertools.count(1)

    def __len__(self) -> int:
        return len(self._active)

    @property
    def has_news(self) -> bool:
        """True if `take` would return a request."""
        return bool(self._touched)

    def submit(
        self,
        request_id: str,
        prompt: Prompt,
        params: GenerationParams,
        *,
        priority: int,
        stream_interval: int,
    ) -> OutputCollector:
        """Queues a request. Raises ValueError if the scheduler refuses it."""
        active = ActiveRequest(
            handle=next(self._handles),
            request_id=request_id,
            prompt_token_ids=list(prompt.token_ids),
            params=replace(params, n=params.num_sequences, best_of=None),  # the collector ranks
            tokenizer=self._tokenizer,
            scheduler=self,
            arrived_ns=time.monotonic_ns(),
            max_unread_tokens=sys.maxsize,
            priority=priority,
            cache_salt=prompt.cache_salt,
        )
        collector = OutputCollector(
            prompt=prompt.text,
            params=params,
            active=active,
            group=new_group(request_of(active), reply_to=self, now=time.monotonic()),
            stream_interval=stream_interval,
        )
        self._active[active.handle], self._collectors[active.handle] = active, collector
        if not self._requests.add(collector.group):
            del self._touched[active.handle]
            failure = collector.group.failure
            assert failure is not None, "a refused request has a failure"
            with refusing():
                raise from_code(failure.code, f"{request_id}: {failure.message}")
        return collector

    def abort(self, handle: int) -> None:
        """Ends a request; does nothing if it has ended."""
        if self._active.pop(handle, None) is not None:
            collector = self._collectors.pop(handle)
            collector.abort()
            self._requests.abort(collector.group)

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        """Ends one sequence; does nothing if the request has ended."""
        if handle in self._active:
            group = self._collectors[handle].group
            self._requests.stop_sequence(group, index=index, keep_tokens=keep_tokens)

    def send(self, updates: RequestUpdates) -> None:
        """Adds one step's updates to their requests."""
        collectors, touched = self._collectors, self._touched
        for handle in updates.handles:
            touched[handle] = collectors[handle]
        for sequence in updates.finished_sequences:
            touched[sequence.handle] = collectors[sequence.handle]
        for active, finished in self._active.apply(updates):
            collector = touched[active.handle] = collectors.pop(active.handle)
            collector.end(finished, time.monotonic())

    def take(self) -> list[OutputCollector]:
        """Returns the requests with updates since the last call."""
        taken, self._touched = self._touched, {}
        for collector in taken.values():
            if collector.has_stop_strings:
                collector.read()
        self._touched.clear()  # a stop string may have ended a request: it is in the list already
        return list(taken.values())

    def forget_all(self) -> None:
        """Forgets all requests, and wakes the tasks that wait for them."""
        collectors, self._collectors = self._collectors, {}
        self._active.clear()
        for collector in collectors.values():
            collector.active.wake()
