"""Checks a request before it may wait: that it is new, in time and valid, and that it has room."""

import logging
from dataclasses import dataclass

from signalbox_contract.errors import Code
from signalbox_contract.model import ModelInfo
from signalbox_contract.updates import RequestFailure
from signalbox_contract.wording import counted
from signalbox_rpc.telemetry import logs
from signalbox_scheduler.config import AdmissionBounds
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.effective_window import JoinedWorkers, cut_to_fit, find_overflow
from signalbox_scheduler.requests.failures import (
    never_fits,
    no_such_adapter,
    no_worker_serves,
    policy_fails,
    too_many,
)
from signalbox_scheduler.requests.live_requests import LiveRequests
from signalbox_scheduler.requests.request_validation import find_fault
from signalbox_scheduler.requests.sequence_group import SequenceGroup

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The way into the admission queue. One that was accepted before is not asked for room."""

    admission: AdmissionQueue
    live: LiveRequests
    workers: JoinedWorkers
    bounds: AdmissionBounds

    def refusal(
        self, group: SequenceGroup, model: ModelInfo | None, now: float
    ) -> RequestFailure | None:
        """Says why a request is refused; one that is not has its place in the queue afterwards."""
        request = group.request
        if self.live.find(tenant=request.tenant, request_id=request.request_id) is not None:
            message = f"request id {request.request_id!r} is in use"
            return RequestFailure(Code.ALREADY_EXISTS, message)
        if group.deadline is not None and group.deadline <= now:
            return RequestFailure(Code.DEADLINE_EXCEEDED, "out of time on arrival")
        is_resumed = request.attempt > 0  # it was accepted before, and is treated so
        if model is None or not (self.workers.is_serving or is_resumed):
            return no_worker_serves()
        adapter = "" if is_resumed else request.adapter  # one that is resumed waits for its adapter
        if adapter and adapter not in {one.sha256 for one in model.offered}:
            return no_such_adapter(adapter)
        if fault := find_fault(request, model):
            return RequestFailure(Code.INVALID_ARGUMENT, fault)
        cut_to_fit(group, self.workers)
        return (None if is_resumed else self._excess(group)) or self._rank(group)

    def _excess(self, group: SequenceGroup) -> RequestFailure | None:
        if not self.workers.have_taker(group):
            return find_overflow(group, self.workers) or never_fits(group)
        num_live = self.live.num_of(group.request.tenant)
        return _beyond_bounds(group, self.bounds, self.admission, num_live=num_live)

    def _rank(self, group: SequenceGroup) -> RequestFailure | None:
        """Lets the policy place a request. The policy may be of another package, and may fail."""
        try:
            self.admission.apply_policy(group)
        except Exception:
            with logs.of_request(group.request_id, group.request.traceparent):
                logger.exception("the scheduling policy fails on %s", group.request_id)
            return policy_fails()
        return None


def _beyond_bounds(
    group: SequenceGroup, bounds: AdmissionBounds, admission: AdmissionQueue, *, num_live: int
) -> RequestFailure | None:
    """Says which bound a request would break.

    Args:
        num_live: the tenant's requests that live.
    """
    most_live, most_tokens = bounds.max_tenant_requests, bounds.max_queued_tokens
    num_waiting = len(admission)
    num_tokens = admission.num_prompt_tokens + admission.num_predicted_tokens
    num_more = group.num_prompt_tokens + len(group.request.prediction)
    if most_live is not None and num_live >= most_live:
        return too_many(f"this tenant has {counted(num_live, 'live request')}, as many as may be")
    if num_waiting >= bounds.max_queued_requests:
        return too_many(f"there is no room behind {counted(num_waiting, 'waiting request')}")
    if most_tokens is not None and num_waiting and num_tokens + num_more > most_tokens:
        return too_many(
            f"{num_tokens} tokens of prompts and predictions are waiting already; with {num_more}"
            f" more they would exceed {most_tokens}"
        )
    return None
