"""Results of audits: counts, and the differences between answers and their audits."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from signalbox_rpc.metrics.sample import Sample, counter, counters
from signalbox_scheduler.requests.sequence_group import SequenceGroup

logger = logging.getLogger(__name__)


class AuditSource(StrEnum):
    """The least trusted thing that an answer went through, which is suspected if it differs."""

    STORE = "store"
    """A store of KV blocks."""
    PEER = "peer"
    """Blocks that were read from another worker."""
    SWAP = "swap"
    """Swap space of a worker."""
    MIGRATION = "migration"
    """A migration to another worker."""
    WORKER = "worker"
    """The worker that computed it, and nothing else."""


class DropReason(StrEnum):
    """Reason for which a request that was chosen is not audited to its end."""

    FAILED_REQUEST = "failed_request"
    """It failed, was aborted or met a time limit."""
    LONG = "long"
    """It has more tokens than an audit may have."""
    ARITHMETIC = "arithmetic"
    """Workers of different arithmetic computed it, or a worker whose bits depend on the batch."""
    INCOMPLETE = "incomplete"
    """The logit of a token is missing."""
    LATE = "late"
    """No worker had time for it."""
    BLOCKS = "blocks"
    """Requests needed the blocks."""
    SLOW = "slow"
    """The worker takes too long for one token."""
    ADAPTER = "adapter"
    """Its adapter was unloaded."""
    GRAMMAR = "grammar"
    """The worker has forgotten its structured output."""
    WORKER = "worker"
    """The worker that audited it drains, has another role now or has left."""
    FAILED = "failed"
    """The worker failed to compute the audit."""


class TokenBits(NamedTuple):
    """A drawn token, and its logit as the model gave it."""

    token_id: int
    logit_bits: int
    """Bits of the float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """The first difference between an answer and its audit."""

    request_id: str
    branch: int
    position: int
    """Index of the token in the output of its branch, from 0 on."""
    answered: TokenBits
    audited: TokenBits
    answered_by: tuple[str, ...]
    """Addresses of the workers that computed the answer, in order."""
    audited_by: str
    """Address of the worker that computed the audit."""
    source: AuditSource
    suspect: str
    """Name of the source: kind of the store, address of the peer or of the worker."""
    history: str
    """Sentence on what the answer went through."""
    at: float
    """Seconds on the scheduler's clock."""

    @property
    def is_logit_alone(self) -> bool:
        """True if only the logits differ."""
        return self.answered.token_id == self.audited.token_id


class AuditEnd(NamedTuple):
    """A completed audit."""

    group: SequenceGroup
    """The request that was computed again."""
    worker: str
    """Address of the worker that computed it."""
    num_tokens: int
    """Tokens that were compared."""
    seconds: float
    """Time of its steps."""
    at: float
    """Seconds on the scheduler's clock."""
    finding: AuditFinding | None
    """None if all tokens and logits were equal."""


@dataclass(slots=True)
class AuditLog:
    """Counts of the audits of all workers, since the scheduler started."""

    num_chosen: int = 0
    """Requests that were chosen at their admission."""
    num_begun: int = 0
    num_equal: int = 0
    num_different: Counter[AuditSource] = field(default_factory=Counter)
    num_dropped: Counter[DropReason] = field(default_factory=Counter)
    num_tokens: int = 0
    """Tokens that were compared."""
    seconds: float = 0.0
    """Time of the steps of audits."""
    listeners: list[Callable[[AuditFinding], None]] = field(default_factory=list)
    """Called with each finding."""
    end_listeners: list[Callable[[AuditEnd], None]] = field(default_factory=list)
    """Called with each completed audit, after `listeners`."""

    def samples(self) -> Iterator[Sample]:
        yield counter("audits_chosen", "Requests that were chosen for an audit.", self.num_chosen)
        yield counter("audits_equal", "Audits that had the bits of the answer.", self.num_equal)
        yield from counters(
            "audits_different",
            "Audits that differed from the answer, by what it went through.",
            {str(source): self.num_different[source] for source in AuditSource},
            by="source",
        )
        yield from counters(
            "audits_dropped",
            "Chosen requests that were not audited to their end, by reason.",
            {str(reason): self.num_dropped[reason] for reason in DropReason},
            by="reason",
        )
        yield counter("audit_tokens", "Tokens that audits have compared.", self.num_tokens)
        yield counter("audit_seconds", "Time of the steps of audits.", self.seconds)

    def drop(self, reason: DropReason) -> None:
        """Counts a chosen request that is not audited to its end."""
        self.num_dropped[reason] += 1

    def end(self, end: AuditEnd) -> None:
        """Counts an audit, and tells listeners."""
        if end.finding is None:
            self.num_equal += 1
        else:
            self._report(end.finding)
        for listener in self.end_listeners:
            listener(end)

    def _report(self, finding: AuditFinding) -> None:
        """Counts and logs a difference, without content, and tells listeners."""
        self.num_different[finding.source] += 1
        logger.error(
            "an audit differs: request %(request_id)s, branch %(branch)d, output token"
            " %(position)d, %(what)s, logit %(answered)08x in the answer of %(answered_by)s and"
            " %(audited)08x in the audit by %(audited_by)s; it %(history)s; suspected source:"
            " %(source)s %(suspect)s",
            {
                "request_id": finding.request_id,
                "branch": finding.branch,
                "position": finding.position,
                "what": "equal tokens" if finding.is_logit_alone else "another token",
                "answered": finding.answered.logit_bits,
                "answered_by": ", ".join(finding.answered_by),
                "audited": finding.audited.logit_bits,
                "audited_by": finding.audited_by,
                "history": finding.history,
                "source": finding.source,
                "suspect": finding.suspect,
            },
        )
        for listener in self.listeners:
            listener(finding)
