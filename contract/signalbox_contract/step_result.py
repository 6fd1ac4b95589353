"""The result of one step: sampled tokens, failures and times of a worker, with its codec."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from operator import add, sub
from typing import NamedTuple

from signalbox_contract import logprobs
from signalbox_contract.columns import (
    Column,
    check_length,
    check_lowest,
    float32s,
    int32s,
    int64s,
)
from signalbox_contract.errors import Code
from signalbox_contract.logprobs import PromptLogprobs, TokenLogprobs
from signalbox_contract.pooling import Vector
from signalbox_contract.sections.drafts import (
    DraftCounts,
    decode_draft_counts,
    encode_draft_counts,
)
from signalbox_contract.sections.pooling import decode_pooled, encode_pooled
from signalbox_contract.sections.store_moves import (
    MoveResult,
    decode_move_result,
    encode_move_result,
)
from signalbox_contract.updates import RequestFailure
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.worker.v1 import worker_pb2 as pb

_NO_IDS = int64s([])
_NO_TOKENS = int32s([])


class StageTimings(NamedTuple):
    """Times of one pipeline stage, in nanoseconds, of a step or summed; see common.proto."""

    queue_ns: int = 0
    wait_ns: int = 0
    forward_ns: int = 0
    collective_ns: int = 0
    boundary_bytes: int = 0
    boundary_ns: int = 0

    def plus(self, other: "StageTimings") -> "StageTimings":
        return StageTimings(*map(add, self, other))

    def minus(self, other: "StageTimings") -> "StageTimings":
        return StageTimings(*map(sub, self, other))

    def phases_ns(self) -> dict[str, int]:
        """Returns where the stage's time went, by the name that metrics have for it."""
        return {
            "queue": self.queue_ns,
            "wait": self.wait_ns,
            "compute": self.forward_ns - self.collective_ns,
            "collective": self.collective_ns,
        }


Stages = tuple[StageTimings, ...]
"""Times by stage; empty for a worker of one stage."""


def sum_stages(sums: Stages, stages: Stages) -> Stages:
    """Returns the sums with a step's times added; the first step begins them."""
    if not sums or not stages:
        return sums or stages
    return tuple(map(StageTimings.plus, sums, stages))


class StepTimings(NamedTuple):
    """Parts of a step's time, in nanoseconds; see worker.proto."""

    wait_ns: int = 0
    swap_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    stages: Stages = ()


_NO_TIMINGS = StepTimings()


class MaskTimes(NamedTuple):
    """CPU time that the masks of structured outputs took in a step, by sequence."""

    seq_ids: Column
    cpu_ns: Column


@dataclass(slots=True, kw_only=True)
class StepResult:
    """Result of one step; see ExecuteModelResponse in worker.proto.

    Each (sequence, branch) that sampled has one run of tokens. Several branches of a sequence have
    several runs, all of which begin at the same position; several positions of one branch are one
    run of several tokens.
    """

    epoch: int = 0
    step_id: int
    seq_ids: Column = _NO_IDS
    """Sequence of each run."""
    branches: Column | None = None
    """Branch of each run; None if each run is of its sequence's own branch."""
    num_tokens: Column | None = None
    """Number of tokens in each run; None if each run has one."""
    token_ids: Column = _NO_TOKENS
    """Tokens of all runs, one run after the other."""
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """Log probabilities of tokens, by index in `token_ids`."""
    draw_logits: Column | None = None
    """Column of float32, the logit of each of `token_ids` as the model gives it, or NaN of a
    sequence that does not return it (`NewSequence.returns_logits`); None if no sequence of the step
    does."""
    prompt_logprobs: Sequence[PromptLogprobs] = ()
    failures: Mapping[int, RequestFailure] = field(default_factory=dict)
    """Failures by sequence id. Such a sequence has no run; the others are unharmed. One of ABORTED
    is to be computed again."""
    pooled: Mapping[int, Vector] = field(default_factory=dict)
    """Vectors by sequence id, of a worker that pools."""
    timings: StepTimings = _NO_TIMINGS
    max_num_batched_tokens: int | None = None
    """Maximum of the next steps, if memory suffices for fewer than the worker announced."""
    masks: MaskTimes | None = None
    """Costs of masks; None if no sequence of the step has one."""
    moves: Sequence[MoveResult] = ()
    """Moves to and from the worker's store that have ended since the result before."""
    drafts: DraftCounts | None = None
    """Drafts that were computed; None if none were."""
    draft_offers: Column | None = None
    """Sequences for which the worker has drafts again, though the step allowed none; None if there
    are none."""

    def runs(
        self, own_branches: Mapping[int, int], *, start: int = 0
    ) -> dict[tuple[int, int], range]:
        """Returns the indices in `token_ids` of each run, by sequence and branch.

        Args:
            own_branches: branch of each sequence of the step.
            start: runs before this one are left out.
        """
        seq_ids = self.seq_ids.tolist()[start:]
        branches: Iterable[int] = map(own_branches.__getitem__, seq_ids)
        if self.branches is not None:
            branches = self.branches.tolist()[start:]
        starts: Iterable[int] = count(start)
        ends: Iterable[int] = count(start + 1)
        if self.num_tokens is not None:
            bounds = [0, *accumulate(self.num_tokens.tolist())]
            starts, ends = bounds[start:], bounds[start + 1 :]
        keys = zip(seq_ids, branches, strict=True)
        return dict(zip(keys, map(range, starts, ends), strict=False))


def encode_result(result: StepResult) -> pb.ExecuteModelResponse:
    wait_ns, swap_ns, forward_ns, sample_ns, stages = result.timings
    message = pb.ExecuteModelResponse(
        epoch=result.epoch,
        step_id=result.step_id,
        seq_ids=result.seq_ids.pack(),
        token_ids=result.token_ids.pack(),
        timings=pb.StepTimings(
            wait_ns=wait_ns,
            swap_ns=swap_ns,
            forward_ns=forward_ns,
            sample_ns=sample_ns,
            stages=encode_stages(stages),
        ),
        max_num_batched_tokens=result.max_num_batched_tokens or 0,
    )
    if result.branches is not None:
        message.branches = result.branches.pack()
    if result.num_tokens is not None:
        message.num_tokens = result.num_tokens.pack()
    if result.draw_logits is not None:
        message.draw_logits = result.draw_logits.pack()
    if result.logprobs:
        rows = result.logprobs.items()
        message.logprobs.extend([logprobs.encode(one, row=row) for row, one in rows])
    if result.prompt_logprobs:
        message.prompt_logprobs.extend(map(_encode_prompt, result.prompt_logprobs))
    if result.pooled:
        message.pooled.CopyFrom(encode_pooled(result.pooled))
    if result.masks is not None:
        message.masks.CopyFrom(_encode_masks(result.masks))
    if result.drafts is not None:
        message.drafts.CopyFrom(encode_draft_counts(result.drafts))
    if result.draft_offers is not None:
        message.draft_offers = result.draft_offers.pack()
    if result.moves:
        message.moves.extend(map(encode_move_result, result.moves))
    for seq_id, failure in result.failures.items():
        message.errors.add(seq_id=seq_id, code=failure.code, message=failure.message)
    return message


def decode_result(message: pb.ExecuteModelResponse) -> StepResult:
    """Raises InvalidArgument if columns that belong together differ in length."""
    seq_ids, token_ids = int64s(message.seq_ids, "seq_ids"), int32s(message.token_ids, "token_ids")
    branches = num_tokens = None
    if message.branches:
        branches = int32s(message.branches, "branches")
        check_length("branches", len(branches), len(seq_ids))
    num_expected = len(seq_ids)
    if message.num_tokens:
        num_tokens = int32s(message.num_tokens, "num_tokens")
        check_length("num_tokens", len(num_tokens), len(seq_ids))
        check_lowest("num_tokens", num_tokens.tolist(), 1)
        num_expected = sum(num_tokens.tolist())
    check_length("token_ids", len(token_ids), num_expected)
    times = message.timings
    result = StepResult(
        epoch=message.epoch,
        step_id=message.step_id,
        seq_ids=seq_ids,
        branches=branches,
        num_tokens=num_tokens,
        token_ids=token_ids,
        timings=StepTimings(
            times.wait_ns,
            times.swap_ns,
            times.forward_ns,
            times.sample_ns,
            decode_stages(times.stages) if times.stages else (),
        ),
        max_num_batched_tokens=message.max_num_batched_tokens or None,
    )
    _add_optional_parts(result, message)
    return result


def _add_optional_parts(result: StepResult, message: pb.ExecuteModelResponse) -> None:
    if entries := message.logprobs:
        result.logprobs = {entry.row: logprobs.decode(entry) for entry in entries}
    if message.draw_logits:
        result.draw_logits = float32s(message.draw_logits, "draw_logits")
        check_length("draw_logits", len(result.draw_logits), len(result.token_ids))
    if runs := message.prompt_logprobs:
        result.prompt_logprobs = tuple(_decode_prompt(run) for run in runs)
    if message.HasField("pooled"):
        result.pooled = decode_pooled(message.pooled)
    if errors := message.errors:
        result.failures = {error.seq_id: _decode_failure(error) for error in errors}
    if message.HasField("masks"):
        result.masks = _decode_masks(message.masks)
    if message.HasField("drafts"):
        result.drafts = decode_draft_counts(message.drafts)
    if message.draft_offers:
        result.draft_offers = int64s(message.draft_offers, "draft_offers")
    if moves := message.moves:
        result.moves = tuple(map(decode_move_result, moves))


def encode_stages(stages: Stages) -> list[common_pb2.StageTimings]:
    return [common_pb2.StageTimings(**stage._asdict()) for stage in stages]


def decode_stages(messages: Iterable[common_pb2.StageTimings]) -> Stages:
    return tuple(
        StageTimings(
            one.queue_ns,
            one.wait_ns,
            one.forward_ns,
            one.collective_ns,
            one.boundary_bytes,
            one.boundary_ns,
        )
        for one in messages
    )


def _encode_masks(masks: MaskTimes) -> pb.MaskTimes:
    return pb.MaskTimes(seq_ids=masks.seq_ids.pack(), cpu_ns=masks.cpu_ns.pack())


def _decode_masks(message: pb.MaskTimes) -> MaskTimes:
    """Raises InvalidArgument if the columns differ in length, or a time is negative."""
    masks = MaskTimes(
        int64s(message.seq_ids, "masks.seq_ids"), int64s(message.cpu_ns, "masks.cpu_ns")
    )
    check_length("masks.cpu_ns", len(masks.cpu_ns), len(masks.seq_ids))
    check_lowest("masks.cpu_ns", masks.cpu_ns.tolist(), 0)
    return masks


def _encode_prompt(run: PromptLogprobs) -> pb.PromptLogprobs:
    return pb.PromptLogprobs(
        seq_id=run.seq_id,
        first_position=run.first_position,
        logprobs=[logprobs.encode(one, row=row) for row, one in enumerate(run.logprobs)],
    )


def _decode_prompt(run: pb.PromptLogprobs) -> PromptLogprobs:
    entries = [logprobs.decode(entry) for entry in run.logprobs]
    return PromptLogprobs(run.seq_id, run.first_position, entries)


def _decode_failure(error: pb.SequenceError) -> RequestFailure:
    """Returns a refusal or a lost state, and an internal error for every other code that a worker
    may send."""
    known = {Code.FAILED_PRECONDITION, Code.ABORTED}
    return RequestFailure(Code(error.code) if error.code in known else Code.INTERNAL, error.message)
