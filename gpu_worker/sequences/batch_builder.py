"""Builds the batch of a step from the rows of its sequences, with no loop over them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.updates import RequestFailure
from gpu_worker.batch.arrays import Int64Array
from gpu_worker.batch.batch import Batch
from gpu_worker.batch.sampling_rows import Penalties, PromptRows, SampleRows, TokenRuns
from gpu_worker.sampling import token_constraints
from gpu_worker.sampling.grammar_masks import step_masks
from gpu_worker.sampling.token_constraints import Mask, RuledRows
from gpu_worker.sequences.sequence_columns import SequenceRows


@dataclass(slots=True, kw_only=True)
class PlannedBatch:
    """The tokens that each sequence of a batch computes, and its draws."""

    seq_ids: Int64Array
    rows: Int64Array
    num_new: Int64Array
    drawers: Int64Array
    """[num draws], index of the sequence among those of the batch."""
    failures: dict[int, RequestFailure]
    """By sequence id: those of sequences that had failed before, which are left out, come first."""
    branches: Int64Array | None = None
    """[num draws]; None if each sequence draws for its own branch alone."""
    prompt_rows: PromptRows | None = None
    """Rows of the batch that report log probabilities of the prompt."""
    refused: dict[int, str] = field(default_factory=dict)
    """Reason by row, for draws to which no token is allowed."""


def drawers(state: NDArray[Any], num_new: Int64Array) -> Int64Array:
    """Returns the sequence, as an index into the batch, of each token to draw.

    Args:
        state: [B], of the batch's sequences.
        num_new: [B].
    """
    num_tokens = state["num_tokens"]
    drawing = np.flatnonzero(state["num_computed"] + num_new == num_tokens)
    draws = np.where(num_tokens == state["num_prompt"], state["num_samples"], 1)[drawing]
    return np.repeat(drawing, draws)


def build(planned: PlannedBatch, rows: SequenceRows, *, block_size: int) -> Batch:
    """Returns the batch that a runner computes."""
    num_new, size = planned.num_new, block_size
    computed = rows.state["num_computed"][planned.rows]
    query_start = np.zeros(len(num_new) + 1, dtype=np.int64)
    np.cumsum(num_new, out=query_start[1:])
    token_rows = np.repeat(planned.rows, num_new)
    positions = np.repeat(computed, num_new) + offsets(num_new)
    blocks = rows.block_tables[token_rows, positions // size].astype(np.int64)
    context_lens = computed + num_new
    token_ids, fed_from = _tokens(rows.tokens[token_rows, positions].astype(np.int64))
    width = -(-int(context_lens.max(initial=0)) // size)
    return Batch(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=blocks * size + positions % size,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=rows.block_tables[planned.rows, :width],
        rows=_sample_rows(planned, rows, query_start),
        prompt_rows=_prompt_rows(planned, rows, query_start),
        fed_from=fed_from,
    )


def unknown_tokens(draws: Int64Array) -> Int64Array:
    """Returns negative numbers that stand for tokens until these draws are known."""
    return -1 - draws


def _tokens(found: Int64Array) -> tuple[Int64Array, Int64Array | None]:
    """Returns tokens with 0 where they are unknown; and the draw of each that is, or -1."""
    is_unknown = found < 0
    if not is_unknown.any():
        return found, None
    return np.where(is_unknown, 0, found), np.where(is_unknown, unknown_tokens(found), -1)


def _sample_rows(planned: PlannedBatch, rows: SequenceRows, query_start: Int64Array) -> SampleRows:
    drawers = planned.drawers
    owners = planned.rows[drawers]
    state = rows.state[owners]
    draws = SampleRows(
        seq_ids=planned.seq_ids[drawers],
        token_index=query_start[drawers + 1] - 1,
        branch=state["branch"] + _index_in_run(drawers),
        position=np.ascontiguousarray(state["num_tokens"]),
        temperature=np.ascontiguousarray(state["temperature"]),
        top_p=np.ascontiguousarray(state["top_p"]),
        top_k=np.ascontiguousarray(state["top_k"]),
        min_p=np.ascontiguousarray(state["min_p"]),
        typical_p=np.ascontiguousarray(state["typical_p"]),
        seed=np.ascontiguousarray(state["seed"]),
        num_logprobs=np.ascontiguousarray(state["num_logprobs"]),
    )
    if state["has_penalties"].any():
        draws.penalties = _penalties(state, owners, rows)
    if state["has_logprob_tokens"].any():
        draws.logprob_tokens = _logprob_tokens(owners, rows)
    is_starved = state["min_tokens"] > state["num_tokens"] - state["num_prompt"]
    if is_starved.any() or state["has_rules"].any():
        _add_rules(draws, is_starved, owners, rows, planned.refused)
    return draws


def _logprob_tokens(owners: Int64Array, rows: SequenceRows) -> TokenRuns:
    runs = [rows.logprob_tokens[owner] for owner in owners.tolist()]
    ends = np.cumsum([len(run) for run in runs], dtype=np.int32)
    return TokenRuns(ends, np.array([token for run in runs for token in run], dtype=np.int32))


def _penalties(state: NDArray[Any], owners: Int64Array, rows: SequenceRows) -> Penalties:
    return Penalties(
        presence=np.ascontiguousarray(state["presence_penalty"]),
        frequency=np.ascontiguousarray(state["frequency_penalty"]),
        repetition=np.ascontiguousarray(state["repetition_penalty"]),
        num_prompt=np.ascontiguousarray(state["num_prompt"]),
        owners=owners,
        tokens=rows.tokens,
    )


def _add_rules(
    draws: SampleRows,
    is_starved: NDArray[np.bool_],
    owners: Int64Array,
    rows: SequenceRows,
    refused: dict[int, str],
) -> None:
    candidates = np.flatnonzero(is_starved | rows.state["has_rules"][owners])
    found = [rows.rules[owner] for owner in owners[candidates].tolist()]
    has_rules = np.array([one is not None for one in found], dtype=np.bool_)
    index = candidates[has_rules]
    ruled = RuledRows(
        rules=[one for one in found if one is not None],
        rows=index,
        is_starved=is_starved[index],
        owners=owners[index],
        position=draws.position[index],
    )
    draws.suppressed = token_constraints.suppressed(ruled, tokens=rows.tokens, num_rows=len(draws))
    draws.biases = token_constraints.biases(ruled, num_rows=len(draws))
    masks = _grammar_masks(ruled, rows, refused)
    draws.allowed = token_constraints.allowed(ruled, grammar_masks=masks, num_rows=len(draws))


def _grammar_masks(
    ruled: RuledRows, rows: SequenceRows, refused: dict[int, str]
) -> list[Mask | None]:
    """Returns the mask of each row, and notes those whose sequence its grammar has failed."""
    owners: list[int] = ruled.owners.tolist()
    first_rows: dict[int, int] = {}
    for row, owner in zip(ruled.rows.tolist(), owners, strict=True):
        first_rows.setdefault(owner, row)
    grammars = {owner: grammar for owner in first_rows if (grammar := rows.grammars[owner])}
    if not grammars:
        return [None] * len(owners)
    masks = step_masks({owner: (one, rows.output(owner)) for owner, one in grammars.items()})
    nothing = token_constraints.make_mask((), vocab_size=rows.vocab_size)
    for owner, reason in masks.refused.items():
        refused[first_rows[owner]] = reason
    found = {**masks.found, **dict.fromkeys(masks.refused, nothing)}
    return [found.get(owner) for owner in owners]


def _prompt_rows(
    planned: PlannedBatch, rows: SequenceRows, query_start: Int64Array
) -> PromptRows | None:
    """The tokens computed now that the prompt itself goes on after, where that was asked for."""
    state = rows.state[planned.rows]
    asked = state["num_prompt_logprobs"]
    left = state["num_prompt"] - 1 - state["num_computed"]
    runs = np.flatnonzero((asked >= 0) & (left > 0))
    if not len(runs):
        return None
    lengths = np.minimum(planned.num_new, left)[runs]
    first_position = state["num_computed"][runs] + 1
    positions = np.repeat(first_position, lengths) + offsets(lengths)
    return PromptRows(
        seq_index=runs,
        first_position=first_position,
        lengths=lengths,
        token_index=np.repeat(query_start[runs], lengths) + offsets(lengths),
        targets=rows.tokens[np.repeat(planned.rows[runs], lengths), positions],
        num_logprobs=np.repeat(asked[runs], lengths),
    )


def offsets(lengths: Int64Array) -> Int64Array:
    """Returns 0, 1, ..., lengths[0] - 1, 0, 1, ..., lengths[1] - 1, and so on."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - lengths, lengths)


def _index_in_run(values: Int64Array) -> Int64Array:
    """Returns the index of each element within its run of equal elements."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    return offsets(np.diff(starts, append=len(values)))
