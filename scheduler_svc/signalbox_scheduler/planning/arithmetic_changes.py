"""Counts requests that a worker computes again which have tokens of another arithmetic.

Such a request goes on with K and V that differ in their last bits, or in their type, from those
that its tokens were drawn with: its next tokens may not be those that the other worker would have
drawn.
"""

import logging
from collections.abc import Iterator

from signalbox_contract.model import Arithmetic
from signalbox_rpc.metrics.sample import Sample, counter
from signalbox_scheduler.requests.sequence_group import SequenceGroup

logger = logging.getLogger(__name__)


class ArithmeticChanges:
    """Counter of the requests that one worker continues, since its lease began."""

    def __init__(self, arithmetic: Arithmetic | None, *, worker_name: str) -> None:
        self.arithmetic = arithmetic
        """The worker's; None if it does not say, and then nothing is counted."""
        self.num_requests = 0
        self._worker_name = worker_name
        self._logged = set[Arithmetic]()

    def samples(self) -> Iterator[Sample]:
        yield counter(
            "num_arithmetic_changes",
            "Requests that go on here with tokens of a worker with another arithmetic.",
            self.num_requests,
        )

    def record(self, group: SequenceGroup) -> None:
        """Takes a group that comes in."""
        before, group.arithmetic = group.arithmetic, self.arithmetic
        if before is None or self.arithmetic in (None, before):
            return
        if not any(seq.output_token_ids for seq in group.sequences):
            return
        self.num_requests += 1
        if before not in self._logged:
            self._logged.add(before)
            logger.warning(
                "requests go on with another arithmetic: on %(worker)s %(after)s,"
                " before %(before)s; their next tokens may differ",
                {
                    "worker": self._worker_name,
                    "after": str(self.arithmetic),
                    "before": str(before),
                },
            )
