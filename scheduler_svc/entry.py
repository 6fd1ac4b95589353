"""What a request is asked before it may wait: is it new, in time, sound, and is there room."""

import logging
from dataclasses import dataclass

from rpc import logs
from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.config import AdmissionBounds
from scheduler_svc.engines import Engines
from scheduler_svc.errors import FailureCode, RequestFailure
from scheduler_svc.live_requests import LiveRequests
from scheduler_svc.model import ModelInfo
from scheduler_svc.refusals import beyond_bounds, never_fits, no_worker_serves, policy_fails
from scheduler_svc.request_checks import find_fault
from scheduler_svc.sequence import SequenceGroup
from scheduler_svc.window import cut_to_fit, find_overflow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The way into the admission queue. One that was accepted before is not asked for room."""

    admission: AdmissionQueue
    live: LiveRequests
    engines: Engines
    bounds: AdmissionBounds

    def refusal(
        self, group: SequenceGroup, model: ModelInfo | None, now: float
    ) -> RequestFailure | None:
        """Says why a request is refused; one that is not has its rank afterwards."""
        if self.live.find(tenant=group.tenant, request_id=group.request_id) is not None:
            return RequestFailure(
                FailureCode.ALREADY_EXISTS, f"request id {group.request_id!r} is in use"
            )
        if group.deadline is not None and group.deadline <= now:
            return RequestFailure(FailureCode.DEADLINE_EXCEEDED, "out of time on arrival")
        is_resumed = group.attempt > 0  # it was accepted before, and is treated so
        if model is None or not (self.engines.is_serving or is_resumed):
            return no_worker_serves()
        if fault := find_fault(group, model):
            return RequestFailure(FailureCode.INVALID_ARGUMENT, fault)
        cut_to_fit(group, self.engines)
        return (None if is_resumed else self._excess(group)) or self._rank(group)

    def _excess(self, group: SequenceGroup) -> RequestFailure | None:
        if not self.engines.have_taker(group):
            return find_overflow(group, self.engines) or never_fits(group)
        num_live = self.live.num_of(group.tenant)
        return beyond_bounds(group, self.bounds, self.admission, num_live=num_live)

    def _rank(self, group: SequenceGroup) -> RequestFailure | None:
        """Lets the policy place a request; it may be anybody's code."""
        try:
            self.admission.rank(group)
        except Exception:
            with logs.of_request(group.request_id, group.traceparent):
                logger.exception("the scheduling policy fails on %s", group.request_id)
            return policy_fails()
        return None
