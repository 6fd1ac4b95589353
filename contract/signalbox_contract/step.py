"""One step of a worker: what the planner decided, as the worker executes it.

A step is immutable, and holds no list that the planner changes. The codec checks only what the wire
can get wrong (columns that do not match, numbers that do not fit); the worker checks what a step
means when it stages it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from signalbox_contract import sampling_codec
from signalbox_contract.columns import (
    Column,
    check_length,
    check_lowest,
    int32_list,
    int32s,
    int64_list,
    int64s,
    pack_int32,
    pack_int64,
)
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.block_moves import (
    NO_MOVES,
    BlockMoves,
    decode_block_moves,
    encode_block_moves,
)
from signalbox_contract.sections.drafts import (
    DraftLimits,
    decode_draft_limits,
    encode_draft_limits,
)
from signalbox_contract.sections.forks import Fork, decode_forks, encode_forks
from signalbox_contract.sections.pooling import Pooling, decode_pooling, encode_pooling
from signalbox_contract.sections.store_moves import (
    StoreMoves,
    decode_store_moves,
    encode_store_moves,
)
from signalbox_protos.worker.v1 import worker_pb2 as pb

_MAX_SEQ_ID = (1 << 63) - 1
_NO_IDS = int64s([])
_NO_COUNTS = int32s([])


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSequence:
    """A sequence that is new to the worker, or resumes after swap or recompute."""

    seq_id: int
    branch: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_new_tokens: int
    block_table: Sequence[int]
    """Rows of a block of each group of layers; see cache_groups.py."""
    num_samples: int
    params: SamplingParams
    request_id: str = ""
    adapter: str = ""
    """SHA-256 of the adapter that computes the sequence; empty is the base model."""
    prediction: Sequence[int] = ()
    """Tokens that the client expects as the output; empty if the request names none."""
    returns_logits: bool = False
    """True if results have the logit of each token that is drawn (`StepResult.draw_logits`)."""
    owner: bytes = b""
    """Opaque name of the tenant, cache salt and adapter; empty if no other request may have drafts
    of the output."""


class TablePatch(NamedTuple):
    """Write `blocks` at `first_index` of a sequence's block table."""

    seq_id: int
    first_index: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: a core and optional sections; see ExecuteModelRequest in worker.proto."""

    epoch: int
    step_id: int
    finished: Column = _NO_IDS
    """Ids of the sequences to forget."""
    new: Sequence[NewSequence] = ()
    running_seq_ids: Column = _NO_IDS
    running_num_new_tokens: Column = _NO_COUNTS
    """Tokens that each of `running_seq_ids` computes."""
    patches: Sequence[TablePatch] = ()
    traceparent: str = ""
    tracestate: str = ""
    forks: Sequence[Fork] = ()
    block_moves: BlockMoves = NO_MOVES
    pooling: Pooling | None = None
    """Parameters of pooling the new sequences; None for a worker that generates."""
    store_moves: StoreMoves | None = None
    states: Sequence[Sequence[int]] = ()
    """Blocks, the head first, of each state of recurrent layers that a table names for the first
    time since they were handed out."""
    draft_limits: DraftLimits | None = None
    """Sequences of `running_seq_ids` that may compute drafts; None if there are none."""

    @property
    def changes_sequences(self) -> bool:
        """True if the worker's sequences change before the batch of the step is computed."""
        return bool(len(self.finished) or self.forks or self.new or self.patches)

    @property
    def has_sections(self) -> bool:
        """True if a section is present that a handler of the lease applies."""
        return self.block_moves is not NO_MOVES or self.store_moves is not None

    @property
    def section_counts(self) -> dict[str, int]:
        """Amounts of work of the sections, under names that each section chooses."""
        counts = self.block_moves.counts
        return counts if self.store_moves is None else counts | self.store_moves.counts


def encode_step(step: Step) -> pb.ExecuteModelRequest:
    message = pb.ExecuteModelRequest(
        epoch=step.epoch,
        step_id=step.step_id,
        finished_seq_ids=step.finished.pack(),
        running=pb.RunningSequences(
            seq_ids=step.running_seq_ids.pack(), num_new_tokens=step.running_num_new_tokens.pack()
        ),
    )
    if step.new:
        message.new_groups.extend(_encode_groups(step.new))
    if step.patches:
        message.block_table_patches.CopyFrom(_encode_patches(step.patches))
    if step.traceparent:
        message.trace_context.traceparent = step.traceparent
        message.trace_context.tracestate = step.tracestate
    if step.forks:
        message.forks.CopyFrom(encode_forks(step.forks))
    if step.block_moves is not NO_MOVES:
        message.block_moves.CopyFrom(encode_block_moves(step.block_moves))
    if step.pooling is not None:
        message.pooling.CopyFrom(encode_pooling(step.pooling))
    if step.store_moves is not None:
        message.store_moves.CopyFrom(encode_store_moves(step.store_moves))
    if step.states:
        message.states.extend(pb.State(blocks=blocks) for blocks in step.states)
    if step.draft_limits is not None:
        message.draft_limits.CopyFrom(encode_draft_limits(step.draft_limits))
    return message


def decode_step(message: pb.ExecuteModelRequest) -> Step:
    """Raises InvalidArgument if columns that belong together differ in length."""
    running, groups = message.running, message.new_groups
    seq_ids = int64s(running.seq_ids, "running.seq_ids")
    num_new_tokens = int32s(running.num_new_tokens, "running.num_new_tokens")
    check_length("running.num_new_tokens", len(num_new_tokens), len(seq_ids))
    return Step(
        epoch=message.epoch,
        step_id=message.step_id,
        finished=int64s(message.finished_seq_ids, "finished_seq_ids"),
        new=tuple(new for group in groups for new in _decode_group(group)) if groups else (),
        running_seq_ids=seq_ids,
        running_num_new_tokens=num_new_tokens,
        patches=_decode_patches(message.block_table_patches)
        if message.HasField("block_table_patches")
        else (),
        traceparent=message.trace_context.traceparent,
        tracestate=message.trace_context.tracestate,
        forks=decode_forks(message.forks) if message.HasField("forks") else (),
        block_moves=decode_block_moves(message.block_moves)
        if message.HasField("block_moves")
        else NO_MOVES,
        pooling=decode_pooling(message.pooling) if message.HasField("pooling") else None,
        store_moves=decode_store_moves(message.store_moves)
        if message.HasField("store_moves")
        else None,
        states=tuple(tuple(one.blocks) for one in message.states) if message.states else (),
        draft_limits=decode_draft_limits(message.draft_limits)
        if message.HasField("draft_limits")
        else None,
    )


def _encode_groups(sequences: Sequence[NewSequence]) -> Iterator[pb.SequenceGroupMetadata]:
    """Yields a message for each request: its sequences share one object of parameters."""
    groups: dict[tuple[str, str, int, int, bool], list[NewSequence]] = {}
    for new in sequences:
        key = (new.request_id, new.adapter, new.num_prompt_tokens, id(new.params))
        groups.setdefault((*key, new.returns_logits), []).append(new)
    for members in groups.values():
        yield pb.SequenceGroupMetadata(
            request_id=members[0].request_id,
            sampling_params=sampling_codec.encode(members[0].params),
            num_prompt_tokens=members[0].num_prompt_tokens,
            adapter=members[0].adapter,
            prediction=pack_int32(members[0].prediction),
            returns_logits=members[0].returns_logits,
            owner=members[0].owner,
            sequences=[
                pb.SequenceMetadata(
                    seq_id=new.seq_id,
                    branch=new.branch,
                    token_ids=new.token_ids,
                    num_computed_tokens=new.num_computed_tokens,
                    num_new_tokens=new.num_new_tokens,
                    block_table=new.block_table,
                    num_samples=new.num_samples,
                )
                for new in members
            ],
        )


def _decode_group(group: pb.SequenceGroupMetadata) -> Iterator[NewSequence]:
    params = sampling_codec.decode(group.sampling_params)
    prediction = tuple(int32_list(group.prediction, "new_groups.prediction"))
    for sequence in group.sequences:
        if sequence.seq_id > _MAX_SEQ_ID:
            field = "new_groups.sequences.seq_id"
            raise InvalidArgument(field, sequence.seq_id, f"at most {_MAX_SEQ_ID}")
        yield NewSequence(
            seq_id=sequence.seq_id,
            branch=sequence.branch,
            token_ids=list(sequence.token_ids),
            num_prompt_tokens=group.num_prompt_tokens,
            num_computed_tokens=sequence.num_computed_tokens,
            num_new_tokens=sequence.num_new_tokens,
            block_table=list(sequence.block_table),
            num_samples=sequence.num_samples,
            params=params,
            request_id=group.request_id,
            adapter=group.adapter,
            prediction=prediction,
            returns_logits=group.returns_logits,
            owner=group.owner,
        )


def _encode_patches(patches: Sequence[TablePatch]) -> pb.BlockTablePatches:
    return pb.BlockTablePatches(
        seq_ids=pack_int64([patch.seq_id for patch in patches]),
        first_index=pack_int32([patch.first_index for patch in patches]),
        num_blocks=pack_int32([len(patch.blocks) for patch in patches]),
        blocks=pack_int32([block for patch in patches for block in patch.blocks]),
    )


def _decode_patches(patches: pb.BlockTablePatches) -> tuple[TablePatch, ...]:
    where = "block_table_patches"
    seq_ids = int64_list(patches.seq_ids, f"{where}.seq_ids")
    first_index = int32_list(patches.first_index, f"{where}.first_index")
    num_blocks = int32_list(patches.num_blocks, f"{where}.num_blocks")
    blocks = int32_list(patches.blocks, f"{where}.blocks")
    check_length(f"{where}.first_index", len(first_index), len(seq_ids))
    check_length(f"{where}.num_blocks", len(num_blocks), len(seq_ids))
    check_lowest(f"{where}.num_blocks", num_blocks, 1)
    check_length(f"{where}.blocks", len(blocks), sum(num_blocks))
    found, start = [], 0
    for seq_id, first, count in zip(seq_ids, first_index, num_blocks, strict=True):
        found.append(TablePatch(seq_id, first, tuple(blocks[start : start + count])))
        start += count
    return tuple(found)
