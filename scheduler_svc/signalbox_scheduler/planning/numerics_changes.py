"""Counts requests that a worker computes again which have tokens of other numerics.

Such a request goes on with K and V that differ in their last bits, or in their type, from those
that its tokens were drawn with: its next tokens may not be those that the other worker would have
drawn.
"""

import logging
from collections.abc import Iterator

from signalbox_contract.model import Numerics
from signalbox_rpc.metrics.sample import Sample, counter
from signalbox_scheduler.requests.sequence_group import SequenceGroup

logger = logging.getLogger(__name__)


class NumericsChanges:
    """Counter of the requests that one worker continues, since its lease began."""

    def __init__(
        self, numerics: Numerics | None, *, worker_name: str, arithmetic: str = ""
    ) -> None:
        """Args: arithmetic: the worker's; empty if its bits depend on the batch."""
        self.numerics = numerics
        """The worker's; None if it does not say, and then nothing is counted."""
        self._arithmetic = arithmetic
        self.num_requests = 0
        self._worker_name = worker_name
        self._logged = set[Numerics]()

    def samples(self) -> Iterator[Sample]:
        yield counter(
            "num_numerics_changes",
            "Requests that go on here with tokens of a worker with other numerics.",
            self.num_requests,
        )

    def record(self, group: SequenceGroup) -> None:
        """Takes a group that comes in."""
        before, group.numerics = group.numerics, self.numerics
        if not any(seq.output_token_ids for seq in group.sequences):
            group.arithmetic = self._arithmetic
            return
        if group.arithmetic != self._arithmetic:
            group.arithmetic = ""
        if before is None or self.numerics in (None, before):
            return
        self.num_requests += 1
        if before not in self._logged:
            self._logged.add(before)
            logger.warning(
                "requests go on with other numerics: on %(worker)s %(after)s,"
                " before %(before)s; their next tokens may differ",
                {
                    "worker": self._worker_name,
                    "after": str(self.numerics),
                    "before": str(before),
                },
            )
