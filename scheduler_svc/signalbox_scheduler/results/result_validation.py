"""Says what is wrong with a worker's result, before anything of it reaches requests.

A result belongs to a plan: each branch that draws has a run of one token, behind the drafts that
were accepted, or a vector if it pools, or its sequence has an error; no other sequence is in it.
The rules are those of ExecuteModelResponse in worker.proto.
"""

import math
from collections.abc import Collection

import numpy as np

from signalbox_contract.errors import Code
from signalbox_contract.logprobs import PromptLogprobs
from signalbox_contract.sections.drafts import DraftCounts, DraftSource
from signalbox_contract.sections.store_moves import MAX_FAULT_CHARS, MoveResult
from signalbox_contract.step_result import MaskTimes, StepResult
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import Sequence
from signalbox_scheduler.results.drawn_tokens import DrawnTokens

MAX_TIMING_S = 3600
"""Maximum of each time that a result reports: the sums of a lease are counted in 64 bits."""

MAX_STAGES = 1024

MAX_MOVES = 4096
"""Maximum of the moves whose ends are in one result."""
MAX_MOVE_BYTES = 1 << 40
"""Maximum of what one of them reports, for the same reason."""


def find_fault(
    plan: StepPlan,
    result: StepResult,
    *,
    vocab_size: int,
    num_outputs: int = 0,
    num_token_outputs: int = 0,
) -> str | None:
    """Returns in one line why the result cannot be used; None if it can.

    Args:
        num_outputs: length of the vectors; 0 of a worker that generates.
        num_token_outputs: length of the vector of a token, in a prompt with one for each.
    """
    return (
        _fault_of_tokens(result, vocab_size)
        or _fault_of_runs(plan, result)
        or (_fault_of_drafts(plan, result.drafts) if result.drafts is not None else None)
        or _fault_of_offers(plan, result)
        or (
            _fault_of_vectors(plan, result, num_outputs, num_token_outputs)
            if num_outputs or result.pooled
            else None
        )
        or _fault_of_logprobs(plan, result, vocab_size)
        or _fault_of_prompts(plan, result)
        or _fault_of_timings(result)
        or (_fault_of_masks(plan, result.masks) if result.masks is not None else None)
        or (_fault_of_moves(result.moves) if result.moves else None)
    )


def fails_all(plan: StepPlan, result: StepResult) -> bool:
    """Returns whether every sequence of a step failed to be computed, or lost its state.

    A refusal, which says that the request rules out every token, is no such failure.
    """
    if not plan.seqs or len(result.failures) < len(plan.seqs):
        return False
    codes = {failure.code for failure in result.failures.values()}
    return codes <= {Code.INTERNAL, Code.ABORTED}


def _fault_of_tokens(result: StepResult, vocab_size: int) -> str | None:
    token_ids, reported = result.token_ids.tolist(), []
    of_prompts = (entry for run in result.prompt_logprobs for entry in run.logprobs)
    for entry in (*result.logprobs.values(), *of_prompts):
        reported.append(max(entry.top_token_ids, default=0))
        if (num_tokens := len(entry.top_token_ids)) != (num := len(entry.top_logprobs)):
            return f"{num_tokens} tokens with {num} log probabilities"
        if not math.isfinite(entry.logprob + sum(entry.top_logprobs)):
            return "a log probability that is not finite"
    lowest = min(token_ids, default=0)
    highest = max(max(token_ids, default=0), max(reported, default=0))
    if lowest < 0 or highest >= vocab_size:
        return f"token {lowest if lowest < 0 else highest} of a vocabulary of {vocab_size}"
    return None


def _fault_of_runs(plan: StepPlan, result: StepResult) -> str | None:
    """Compares runs and errors with the draws that were asked for."""
    drawn = DrawnTokens(plan, result)
    first = drawn.num_leading
    if first == len(plan.seqs) == len(result.seq_ids) == len(result.token_ids):
        return None
    named = {*result.seq_ids.tolist()[first:], *result.failures}
    if named and (strangers := named.difference(plan.seq_ids)):
        return f"sequence {min(strangers)}, which is not in the step"
    wanted = {
        (seq.seq_id, seq.branch + i)
        for seq, num_samples in zip(plan.seqs[first:], plan.num_samples[first:], strict=True)
        for i in range(0 if seq.group.pools or seq.seq_id in result.failures else num_samples)
    }
    if drawn.runs.keys() != wanted:
        seq_id, branch = min(drawn.runs.keys() ^ wanted)
        what = "no token" if (seq_id, branch) in wanted else "a token that was not asked for"
        return f"{what} for branch {branch} of sequence {seq_id}"
    for (seq_id, _), run in drawn.runs.items():
        num_drafts = drawn.drafts[seq_id][0] if seq_id in drawn.drafts else 0
        if len(run) > 1 + num_drafts:
            return f"{len(run)} tokens of sequence {seq_id} with {num_drafts} drafts"
    if (num_drawn := first + sum(map(len, drawn.runs.values()))) != len(result.token_ids):
        return f"{len(result.token_ids)} of {num_drawn} tokens"
    return None


def _fault_of_drafts(plan: StepPlan, drafts: DraftCounts) -> str | None:
    """Compares counts of drafts with the most that each sequence may have."""
    seq_ids, sources = drafts.seq_ids.tolist(), drafts.sources.tolist()
    if len(set(seq_ids)) < len(seq_ids):
        return f"drafts of {len(seq_ids)} sequences, of which {len(set(seq_ids))} differ"
    most = {plan.seq_ids[i]: num_drafts for i, num_drafts in plan.num_drafts.items()}
    for seq_id, num_drafts in zip(seq_ids, drafts.num_drafts.tolist(), strict=True):
        if num_drafts > most.get(seq_id, 0):
            return f"{num_drafts} drafts of sequence {seq_id}, which may have {most.get(seq_id, 0)}"
    if unknown := set(sources).difference(DraftSource):
        return f"drafts of source {min(unknown)}, which is none"
    return None


def _fault_of_offers(plan: StepPlan, result: StepResult) -> str | None:
    if result.draft_offers is None:
        return None
    strangers = set(result.draft_offers.tolist()).difference(plan.seq_ids)
    return f"drafts for sequence {min(strangers)}, which is not in the step" if strangers else None


def _fault_of_vectors(
    plan: StepPlan, result: StepResult, num_outputs: int, num_token_outputs: int
) -> str | None:
    """Compares vectors with the prompts that end in the step."""
    if num_outputs and len(result.token_ids):
        return f"{len(result.token_ids)} tokens of a worker that pools"
    wanted = {
        seq.seq_id: seq.group
        for seq, num_samples in zip(plan.seqs, plan.num_samples, strict=True)
        if num_samples and seq.group.pools and seq.seq_id not in result.failures
    }
    if other := wanted.keys() ^ result.pooled.keys():
        seq_id = min(other)
        what = "no vector" if seq_id in wanted else "an unwanted vector"
        return f"{what} for sequence {seq_id}"
    for seq_id, vector in result.pooled.items():
        group, expected = wanted[seq_id], num_outputs
        if group.request.pooling is not None and group.request.pooling.is_per_token:
            expected = group.num_prompt_tokens * num_token_outputs
        if len(vector) != expected:
            return f"{len(vector)} of {expected} elements for sequence {seq_id}"
        if not np.isfinite(vector).all():
            return f"a vector that is not finite for sequence {seq_id}"
    return None


def _fault_of_logprobs(plan: StepPlan, result: StepResult, vocab_size: int) -> str | None:
    """Looks for rows whose group asked for log probabilities and that have too few, or too many."""
    num_asked = {
        seq.seq_id: min(seq.group.params.num_logprobs, vocab_size)
        for seq in plan.seqs
        if seq.group.params.num_logprobs is not None
    }
    if not num_asked:
        return None
    num_named = {seq.seq_id: len(seq.group.params.logprob_token_ids) for seq in plan.seqs}
    seq_ids = result.seq_ids.tolist()
    if result.num_tokens is not None:
        pairs = zip(seq_ids, result.num_tokens.tolist(), strict=True)
        seq_ids = [seq_id for seq_id, length in pairs for _ in range(length)]
    for row, seq_id in enumerate(seq_ids):
        if seq_id not in num_asked:
            continue
        entry = result.logprobs.get(row)
        if entry is None:
            return f"no log probability of row {row}"
        num_told = len(entry.top_token_ids)
        if num_told < num_asked[seq_id]:
            return f"{num_told} of {num_asked[seq_id]} log probabilities of row {row}"
        if num_told > max(num_asked[seq_id], num_named[seq_id]):
            return f"{num_told} log probabilities of row {row}"
    return None


def _fault_of_prompts(plan: StepPlan, result: StepResult) -> str | None:
    """Looks for positions of a prompt that have none, and for runs that were not asked for."""
    num_decodes = len(plan.decode_ids)  # whose prompts were looked at before
    asked = [
        (seq, num_new_tokens)
        for seq, num_new_tokens in zip(
            plan.seqs[num_decodes:], plan.num_new_tokens[num_decodes:], strict=True
        )
        if seq.group.params.num_prompt_logprobs is not None
    ]
    if not result.prompt_logprobs and not asked:
        return None
    ends = {run.seq_id: run.first_position + len(run.logprobs) for run in result.prompt_logprobs}
    for seq, num_new_tokens in asked:
        if seq.is_finished or seq.seq_id in result.failures:
            continue
        wanted = min(seq.num_computed_tokens + num_new_tokens, seq.group.num_prompt_tokens - 1)
        num_known = max(seq.group.num_known_prompt_logprobs, ends.get(seq.seq_id, 0) - 1)
        if num_known < wanted:
            return f"{num_known} of {wanted} log probabilities of a prompt"
    return _fault_of_prompt_runs(plan, result)


def _fault_of_prompt_runs(plan: StepPlan, result: StepResult) -> str | None:
    seqs = {seq.seq_id: seq for seq in plan.seqs}
    for run in result.prompt_logprobs:
        seq = seqs.get(run.seq_id)
        if seq is None:
            return f"prompt log probabilities of sequence {run.seq_id}, which is not in the step"
        if not _is_within_prompt(run, seq):
            end = run.first_position + len(run.logprobs)
            return f"prompt log probabilities of positions [{run.first_position}, {end})"
        most = max((len(entry.top_token_ids) for entry in run.logprobs), default=0)
        if most > (seq.group.params.num_prompt_logprobs or 0):
            return f"{most} log probabilities of a prompt's token"
    return None


def _is_within_prompt(run: PromptLogprobs, seq: Sequence) -> bool:
    """Returns whether a run begins at a position that is wanted, or before, and ends in time."""
    first_missing = seq.group.num_known_prompt_logprobs + 1
    end = run.first_position + len(run.logprobs)
    return 1 <= run.first_position <= first_missing and end <= seq.group.num_prompt_tokens


def _fault_of_timings(result: StepResult) -> str | None:
    timings = result.timings
    if len(timings.stages) > MAX_STAGES:
        return f"times of {len(timings.stages)} stages"
    longest = max(timings.wait_ns, timings.swap_ns, timings.forward_ns, timings.sample_ns)
    longest = max((longest, *(number for stage in timings.stages for number in stage)))
    return f"a time of {longest / 1e9:.0f} s" if longest > MAX_TIMING_S * 1e9 else None


def _fault_of_masks(plan: StepPlan, masks: MaskTimes) -> str | None:
    seq_ids = masks.seq_ids.tolist()
    if strangers := set(seq_ids).difference(plan.seq_ids):
        return f"a mask of sequence {min(strangers)}, which is not in the step"
    if len(set(seq_ids)) < len(seq_ids):
        return f"{len(seq_ids)} masks of {len(set(seq_ids))} sequences"
    longest = max(masks.cpu_ns.tolist(), default=0)
    return f"a mask of {longest / 1e9:.0f} s" if longest > MAX_TIMING_S * 1e9 else None


def _fault_of_moves(moves: Collection[MoveResult]) -> str | None:
    if len(moves) > MAX_MOVES:
        return f"the ends of {len(moves)} moves"
    for move in moves:
        if move.num_bytes > MAX_MOVE_BYTES:
            return f"a move of {move.num_bytes} bytes"
        if move.duration_ns > MAX_TIMING_S * 1e9:
            return f"a move of {move.duration_ns / 1e9:.0f} s"
        if len(move.failed) > MAX_FAULT_CHARS:
            return f"a reason of {len(move.failed)} characters"
    return None
