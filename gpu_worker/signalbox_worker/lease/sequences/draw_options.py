"""Columns of a batch's draws that few sequences need: penalties, rules, grammars, reports."""

from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.sampling_rows import Penalties, SampleRows, TokenRuns
from signalbox_worker.lease.sequences.draft_runs import DraftRuns
from signalbox_worker.lease.sequences.sequence_columns import SequenceRows
from signalbox_worker.sampling import token_constraints
from signalbox_worker.sampling.grammar_masks import DraftedOutput, draft_masks, step_masks
from signalbox_worker.sampling.token_constraints import Mask, RuledRows


class Masking(NamedTuple):
    """Parts of a batch to which its masks write."""

    refused: dict[int, str]
    """Reason by draw, for those to which their grammar leaves no token."""
    mask_ns: dict[int, int]
    """CPU time of the masks of each sequence, by its first draw."""
    drafts: DraftRuns | None
    """A run ends before a draft that its grammar does not admit."""


def add_reports(
    draws: SampleRows, state: NDArray[Any], owners: Int64Array, rows: SequenceRows
) -> None:
    """Adds reports that few sequences ask for: named tokens, and logits of those that are drawn."""
    if state["returns_logits"].any():
        draws.returns_logits = np.ascontiguousarray(state["returns_logits"])
    runs = [rows.logprob_tokens[owner] for owner in owners.tolist()]
    if any(runs):
        ends = np.cumsum([len(run) for run in runs], dtype=np.int32)
        token_ids = np.array([token for run in runs for token in run], dtype=np.int32)
        draws.logprob_tokens = TokenRuns(ends, token_ids)


def penalties(state: NDArray[Any], owners: Int64Array, rows: SequenceRows) -> Penalties:
    return Penalties(
        presence=np.ascontiguousarray(state["presence_penalty"]),
        frequency=np.ascontiguousarray(state["frequency_penalty"]),
        repetition=np.ascontiguousarray(state["repetition_penalty"]),
        num_prompt=np.ascontiguousarray(state["num_prompt"]),
        owners=owners,
        tokens=rows.tokens,
    )


def add_rules(
    draws: SampleRows,
    is_starved: NDArray[np.bool_],
    owners: Int64Array,
    rows: SequenceRows,
    masking: Masking,
) -> None:
    """Restricts the draws of sequences with rules, or with fewer tokens than min_tokens."""
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
    masks = _grammar_masks(ruled, rows, masking)
    draws.allowed = token_constraints.allowed(ruled, grammar_masks=masks, num_rows=len(draws))


def _grammar_masks(ruled: RuledRows, rows: SequenceRows, masking: Masking) -> list[Mask | None]:
    """Returns the mask of each row; records costs, and sequences that their grammar has failed."""
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
        masking.refused[first_rows[owner]] = reason
    found = {**masks.found, **dict.fromkeys(masks.refused, nothing)}
    of_rows = [found.get(owner) for owner in owners]
    if masking.drafts is not None:
        asked = _drafted(masking.drafts, ruled, rows, refused=masks.refused)
        for owner, behind in draft_masks(asked, masks).items():
            start = int(np.searchsorted(ruled.rows, first_rows[owner])) + 1
            of_rows[start : start + len(behind)] = behind
            masking.drafts.end_run(first_rows[owner] + len(behind))
    masking.mask_ns.update((first_rows[owner], cpu_ns) for owner, cpu_ns in masks.cpu_ns.items())
    return of_rows


def _drafted(
    drafts: DraftRuns, ruled: RuledRows, rows: SequenceRows, *, refused: Container[int]
) -> dict[int, DraftedOutput]:
    """Returns the outputs with drafts of sequences whose grammars have admitted the output."""
    owners, ahead = ruled.owners.tolist(), drafts.ahead[ruled.rows].tolist()
    most = dict(zip(owners, ahead, strict=True))  # of each, that of its last draw
    return {
        owner: DraftedOutput(grammar, rows.output(owner, num_drafts=count), count)
        for owner, count in most.items()
        if count and owner not in refused and (grammar := rows.grammars[owner]) is not None
    }
