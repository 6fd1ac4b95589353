"""Plans and builds the batch of a step from the rows of its sequences, with no loop over them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.step import Step
from signalbox_contract.updates import RequestFailure
from signalbox_kernels.filters import Filters
from signalbox_kernels.structs import StateArrays
from signalbox_worker.batch.arrays import Int32Array, Int64Array, offsets
from signalbox_worker.batch.batch import NO_ADAPTER, Batch
from signalbox_worker.batch.pooling_rows import PoolingRows
from signalbox_worker.batch.sampling_rows import PromptRows, SampleRows
from signalbox_worker.batch.sequence_failures import sequence_failure
from signalbox_worker.lease.sequences import draw_options, pooled_prompts, prompt_logprobs
from signalbox_worker.lease.sequences.draft_runs import DraftRuns
from signalbox_worker.lease.sequences.sequence_columns import SequenceRows
from signalbox_worker.lease.sequences.step_validation import Limits


@dataclass(slots=True, kw_only=True)
class PlannedBatch:
    """The tokens that each sequence of a batch computes, and its draws."""

    epoch: int
    step_id: int
    seq_ids: Int64Array
    rows: Int64Array
    state: NDArray[Any]
    """State of each row before the batch is computed."""
    num_new: Int64Array
    drawers: Int64Array
    """[num draws], index of the sequence among those of the batch."""
    branches: Int64Array | None
    """[num draws]; None if each sequence draws for its own branch alone."""
    failures: dict[int, RequestFailure]
    """Failures by sequence id. Sequences that had failed before are not in the batch; theirs come
    first."""
    prompt_rows: PromptRows | None = None
    """Rows of the batch that report log probabilities of the prompt."""
    pooling: PoolingRows | None = None
    """The sequences of a worker that pools, which draw nothing."""
    states: StateArrays | None = None
    """States that recurrent layers read and leave; None of a model without."""
    drafts: DraftRuns | None = None
    """Drafts, which `num_new` and `drawers` count; None if there are none."""
    refused: dict[int, str] = field(default_factory=dict)
    """Reason by draw, for those to which no token is allowed."""
    mask_ns: dict[int, int] = field(default_factory=dict)
    """CPU time of the mask of each sequence with a structured output, by its first draw."""


def plan(
    step: Step,
    *,
    limits: Limits,
    rows: SequenceRows,
    row_of: Mapping[int, int],
    failed: Mapping[int, str],
    num_blocks: Int64Array,
) -> PlannedBatch:
    """Returns what the sequences of a step compute. Raises InvalidArgument if they may not.

    Args:
        row_of: row of each known sequence, by id.
        failed: reason of each known sequence that has failed, by id.
        num_blocks: number of blocks of every row.
    """
    seq_ids, num_new = _work_of(step)
    _check_size(seq_ids, num_new, limits)
    planned_rows = find_rows(row_of, seq_ids, "running.seq_ids")
    ids = np.array(seq_ids, dtype=np.int64)
    failures = {}
    if failed:
        failures = {s: sequence_failure(failed[s]) for s in seq_ids if s in failed}
        alive = np.array([s not in failed for s in seq_ids], dtype=np.bool_)
        ids, planned_rows, num_new = ids[alive], planned_rows[alive], num_new[alive]
    state = rows.state[planned_rows]
    _check_running(ids, state, num_new, num_blocks[planned_rows], limits)
    drawers, branches = _find_draws(state, num_new)
    pooling = None
    if limits.model.pooling is not None:
        drawers, pooling = drawers[:0], pooled_prompts.rows_of(state, planned_rows, num_new)
    return PlannedBatch(
        epoch=step.epoch,
        step_id=step.step_id,
        seq_ids=ids,
        rows=planned_rows,
        state=state,
        num_new=num_new,
        drawers=drawers,
        branches=branches,
        failures=failures,
        pooling=pooling,
    )


def _work_of(step: Step) -> tuple[list[int], Int64Array]:
    """Returns the sequences that compute, and the number of tokens of each."""
    seq_ids = step.running_seq_ids.tolist()
    num_new = step.running_num_new_tokens.array().astype(np.int64)
    if step.new:
        seq_ids = [*seq_ids, *(new.seq_id for new in step.new)]
        added = np.array([new.num_new_tokens for new in step.new], dtype=np.int64)
        num_new = np.concatenate([num_new, added])
    return seq_ids, num_new


def find_rows(row_of: Mapping[int, int], seq_ids: Sequence[int], field: str) -> Int64Array:
    """Raises InvalidArgument for a sequence that is not known."""
    rows = np.fromiter(map(row_of.get, seq_ids, repeat(-1)), dtype=np.int64, count=len(seq_ids))
    if (rows < 0).any():
        unknown = seq_ids[int(np.argmin(rows))]
        raise InvalidArgument(field, unknown, "a sequence that this worker knows")
    return rows


def _check_size(seq_ids: list[int], num_new: Int64Array, limits: Limits) -> None:
    limit = limits.capacity
    if len(seq_ids) > limit.max_num_seqs:
        raise InvalidArgument("sequences", len(seq_ids), f"at most {limit.max_num_seqs} a step")
    if len(num_new) and num_new.min() < 1:
        raise InvalidArgument("running.num_new_tokens", int(num_new.min()), "at least 1")
    if (total := int(num_new.sum())) > (most := limits.most_tokens(len(seq_ids))):
        raise InvalidArgument("num_new_tokens", total, f"at most {most} a step")
    if len(set(seq_ids)) != len(seq_ids):
        raise InvalidArgument("running.seq_ids", "a repeated sequence", "distinct sequences")


def _check_running(
    ids: Int64Array,
    state: NDArray[Any],
    num_new: Int64Array,
    num_blocks: Int64Array,
    limits: Limits,
) -> None:
    end = state["num_computed"] + num_new
    known = np.minimum(state["num_tokens"], limits.model.max_model_len)
    room = num_blocks // len(limits.capacity.groups) * limits.capacity.block_size
    if not (end > np.minimum(known, room)).any():
        return
    if (end > known).any():
        i = int(np.argmax(end > known))
        raise InvalidArgument(
            "running.num_new_tokens",
            int(num_new[i]),
            f"at most {int(known[i] - end[i] + num_new[i])}: the tokens of sequence "
            f"{ids[i]} that are known and not computed",
        )
    i = int(np.argmax(end > room))
    has = f"{num_blocks[i]} blocks of sequence {ids[i]}"
    raise InvalidArgument("block_table", has, f"room for {end[i]} tokens")


def _find_draws(state: NDArray[Any], num_new: Int64Array) -> tuple[Int64Array, Int64Array | None]:
    """Returns `drawers` and `branches` of a `PlannedBatch`."""
    num_tokens = state["num_tokens"]
    drawing = np.flatnonzero(state["num_computed"] + num_new == num_tokens)
    is_prompt = num_tokens == state["num_prompt"]
    if not is_prompt.any():
        return drawing, None
    num_draws = np.where(is_prompt, state["num_samples"], 1)[drawing]
    drawers = np.repeat(drawing, num_draws)
    if (num_draws <= 1).all():
        return drawers, None
    return drawers, state["branch"][drawers] + offsets(num_draws)


def build(planned: PlannedBatch, rows: SequenceRows, *, limits: Limits) -> Batch:
    """Returns the batch that a runner computes."""
    num_new, size = planned.num_new, limits.capacity.block_size
    computed = np.ascontiguousarray(planned.state["num_computed"])
    query_start = np.zeros(len(num_new) + 1, dtype=np.int64)
    np.cumsum(num_new, out=query_start[1:])
    token_rows, positions = planned.rows, computed
    if query_start[-1] > len(num_new):
        token_rows = np.repeat(token_rows, num_new)
        positions = np.repeat(computed, num_new) + offsets(num_new)
    num_groups = len(limits.capacity.groups)
    num_rows, num_entries = rows.block_tables.shape
    by_group = rows.block_tables.reshape(num_rows, num_entries // num_groups, num_groups)
    blocks = by_group[token_rows, positions // size].astype(np.int64)
    slots = blocks * size + (positions % size)[:, None]
    context_lens = computed + num_new
    token_ids, fed_from = _tokens(rows.tokens[token_rows, positions].astype(np.int64))
    prompt_rows = None
    if (planned.state["num_prompt_logprobs"] >= 0).any():
        prompt_rows = prompt_logprobs.rows_of(
            planned.state, planned.rows, num_new, rows=rows, query_start=query_start
        )
    width = -(-int(context_lens.max(initial=0)) // size) * num_groups
    draws, add_rules = _sample_rows(planned, rows, query_start)
    return Batch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots if num_groups > 1 else slots[:, 0],
        query_start=query_start,
        context_lens=context_lens,
        block_tables=rows.block_tables[planned.rows, :width],
        rows=draws,
        seq_ids=planned.seq_ids,
        prompt_rows=prompt_rows,
        fed_from=fed_from,
        complete_rows=add_rules,
        adapters=_adapters(planned, query_start),
        token_types=pooled_prompts.token_types(planned.state, num_new, positions),
        pooling=planned.pooling,
        states=planned.states,
    )


def _adapters(planned: PlannedBatch, query_start: Int64Array) -> Int32Array | None:
    of_seqs = planned.state["adapter"]
    if (of_seqs == NO_ADAPTER).all():
        return None
    return np.repeat(of_seqs, np.diff(query_start))


def unknown_tokens(draws: Int64Array) -> Int64Array:
    """Returns negative numbers that stand for tokens until these draws are known."""
    return -1 - draws


def _tokens(found: Int64Array) -> tuple[Int64Array, Int64Array | None]:
    """Returns tokens with 0 where they are unknown; and the draw of each that is, or -1."""
    is_unknown = found < 0
    if not is_unknown.any():
        return found, None
    return np.where(is_unknown, 0, found), np.where(is_unknown, unknown_tokens(found), -1)


def _sample_rows(
    planned: PlannedBatch, rows: SequenceRows, query_start: Int64Array
) -> tuple[SampleRows, Callable[[], None] | None]:
    """Returns the draws, and what restricts them further when the unknown tokens are known.

    That is None if no sequence whose last token is unknown has penalties or rules, which read it.
    """
    drawers = planned.drawers
    owners, state = planned.rows[drawers], planned.state[drawers]
    branches = planned.branches
    token_index = query_start[drawers + 1] - 1
    position = np.ascontiguousarray(state["num_tokens"])
    if (drafts := planned.drafts) is not None:
        token_index = token_index - drafts.num_drafts[drawers] + drafts.ahead
        position = position + drafts.ahead
    draws = SampleRows(
        seq_ids=planned.seq_ids[drawers],
        token_index=token_index,
        branch=np.ascontiguousarray(state["branch"]) if branches is None else branches,
        position=position,
        temperature=np.ascontiguousarray(state["temperature"]),
        filters=Filters._make([np.ascontiguousarray(state[name]) for name in Filters._fields]),
        seed=np.ascontiguousarray(state["seed"]),
        num_logprobs=np.ascontiguousarray(state["num_logprobs"]),
    )
    if state["has_penalties"].any():
        draws.penalties = draw_options.penalties(state, owners, rows)
    if state["reports_more"].any():
        draw_options.add_reports(draws, state, owners, rows)
    is_starved = state["min_tokens"] > position - state["num_prompt"]
    masking = draw_options.Masking(planned.refused, planned.mask_ns, planned.drafts)
    add_rules = partial(draw_options.add_rules, draws, is_starved, owners, rows, masking)
    is_unknown = rows.tokens[owners, state["num_tokens"] - 1] < 0
    if (is_unknown & (state["has_penalties"] | state["has_rules"])).any():
        return draws, add_rules
    if is_starved.any() or state["has_rules"].any():
        add_rules()
    return draws, None
