"""One branch of a request: its tokens, and how many of them are computed.

A sequence is its tokens and two counts: how many of them are computed, and how many are being
computed by steps that are not answered yet. Prefill, a chunk of it and decode are all "compute
some of the tokens that are left" (Sarathi-Serve, Agrawal et al., OSDI 2024).
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from signalbox_contract.updates import FinishReason, RequestFailure

if TYPE_CHECKING:
    from signalbox_scheduler.requests.sequence_group import SequenceGroup


class SequenceStatus(Enum):
    """Queue that a sequence is in."""

    WAITING = auto()
    LOADING = auto()
    """Its prefix is looked for, or on its way from, a worker's store."""
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


class Counters(NamedTuple):
    """Progress of a sequence; see the attributes of the same names."""

    num_computed_tokens: int
    num_inflight_tokens: int
    num_inflight_samples: int


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One branch of a request."""

    seq_id: int
    branch: int
    group: "SequenceGroup" = field(repr=False)
    status: SequenceStatus = SequenceStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    """Tokens whose K and V exist, by steps that are answered."""
    num_inflight_tokens: int = 0
    """Tokens computed by steps that are planned and not answered."""
    num_inflight_samples: int = 0
    """Number of those steps that draw a token."""
    block_table: list[int] = field(default_factory=list)
    """Written by BlockSpaceManager alone; blocks of the CPU pool while SWAPPED."""
    block_hashes: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    """Hashes of the first whole blocks, as many as were needed; by block size, which differs
    between workers."""
    num_cached_blocks: int = 0
    """Leading blocks that may be found by their hashes, unless their pool has them as private."""
    num_sent_blocks: int = 0
    """Leading entries of the block table that the worker has."""
    decode_row: int = -1
    """Row in the decode columns, which then keep the counters; -1 outside."""
    is_on_worker: bool = False
    """True if the worker knows the sequence, so that a step may name it by id."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    failure: RequestFailure | None = None
    """Failure that the worker reported; the other branches may continue."""
    score: float | None = None
    """Score of the sequence if a search found it."""

    @property
    def num_tokens(self) -> int:
        """Tokens known: the prompt and what was sampled."""
        return self.group.num_prompt_tokens + len(self.output_token_ids)

    @property
    def counters(self) -> Counters:
        """The counters of a sequence that is not in the decode columns."""
        return Counters(
            self.num_computed_tokens, self.num_inflight_tokens, self.num_inflight_samples
        )

    @property
    def num_planned_tokens(self) -> int:
        """Tokens computed once every planned step is answered."""
        return self.num_computed_tokens + self.num_inflight_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens left to plan; tokens to be drawn by steps in flight count as known."""
        return self.num_tokens + self.num_inflight_samples - self.num_planned_tokens

    @property
    def token_ids(self) -> list[int]:
        return self.group.request.prompt_token_ids + self.output_token_ids

    def tokens(self, start: int, end: int) -> list[int]:
        """Returns the tokens at [start, end), without putting all of them together."""
        num_prompt_tokens = self.group.num_prompt_tokens
        if end <= num_prompt_tokens:
            return self.group.request.prompt_token_ids[start:end]
        outputs = self.output_token_ids[max(0, start - num_prompt_tokens) : end - num_prompt_tokens]
        return self.group.request.prompt_token_ids[start:] + outputs

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def book(self, num_new_tokens: int, *, draws: bool) -> None:
        """Records that a planned step computes tokens."""
        self.num_inflight_tokens += num_new_tokens
        self.num_inflight_samples += draws

    def apply_result(self, num_new_tokens: int, *, draws: bool) -> None:
        """Counts what `book` has recorded as computed."""
        self.num_inflight_tokens -= num_new_tokens
        self.num_inflight_samples -= draws
        self.num_computed_tokens += num_new_tokens

    def truncate(self, num_output_tokens: int) -> None:
        """Removes the output behind its first tokens."""
        del self.output_token_ids[num_output_tokens:]

    def finish(self, reason: FinishReason) -> None:
        """Ends the sequence. Its blocks stay its own until no step that holds it is in flight."""
        self.status = SequenceStatus.FINISHED
        self.finish_reason = reason

    def forget_progress(self) -> None:
        """Drops everything that lives on a worker, so that the sequence can be recomputed."""
        self.num_computed_tokens = self.num_inflight_tokens = self.num_inflight_samples = 0
        self.num_sent_blocks = self.num_cached_blocks = 0
        self.is_on_worker = False
