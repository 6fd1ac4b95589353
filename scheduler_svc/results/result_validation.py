"""Says what is wrong with a worker's answer, before anything of it reaches requests.

An answer belongs to a plan: each sequence that draws has its rows or an error, and no other
sequence is in it. The rules are those of ExecuteModelResponse in worker.proto.
"""

from contract.errors import Code
from contract.logprobs import PromptLogprobs
from scheduler_svc.planning.plan import StepAnswer, StepPlan
from scheduler_svc.requests.sequence import Sequence

MAX_TIMING_S = 3600
"""Of each time that an answer reports: the sums of a lease are told in 64 bits."""


def find_fault(plan: StepPlan, answer: StepAnswer, *, vocab_size: int) -> str | None:
    """Returns in one line what no worker of such a vocabulary answers; None if all is well."""
    return (
        _fault_of_tokens(answer, vocab_size)
        or _fault_of_rows(plan, answer)
        or _fault_of_logprobs(plan, answer, vocab_size)
        or _fault_of_prompts(plan, answer)
        or _fault_of_timings(answer)
    )


def fails_all(plan: StepPlan, answer: StepAnswer) -> bool:
    """Returns whether every sequence of a step failed to be computed.

    A refusal, which says that the request rules out every token, is no such failure.
    """
    if not plan.seqs or len(answer.failures) < len(plan.seqs):
        return False
    return all(failure.code is Code.INTERNAL for failure in answer.failures.values())


def _fault_of_tokens(answer: StepAnswer, vocab_size: int) -> str | None:
    if len(answer.seq_ids) != len(answer.token_ids):
        return f"{len(answer.seq_ids)} sequences with {len(answer.token_ids)} tokens"
    reported = [max(entry.top_token_ids, default=0) for entry in answer.logprobs.values()]
    lowest = min(answer.token_ids, default=0)
    highest = max(max(answer.token_ids, default=0), max(reported, default=0))
    if lowest < 0 or highest >= vocab_size:
        return f"token {lowest if lowest < 0 else highest} of a vocabulary of {vocab_size}"
    return None


def _fault_of_rows(plan: StepPlan, answer: StepAnswer) -> str | None:
    """Compares rows and errors with the draws that were asked for."""
    if answer.is_one_for_each(plan) and all(count == 1 for count in plan.num_samples):
        return None
    wanted = {seq.seq_id: n for seq, n in zip(plan.seqs, plan.num_samples, strict=True)}
    for seq_id in (*answer.seq_ids, *answer.failures):
        if seq_id not in wanted:
            return f"sequence {seq_id}, which is not in the step"
    rows = answer.rows()
    for seq_id, num_samples in wanted.items():
        num_expected = 0 if seq_id in answer.failures else num_samples
        if (num_rows := len(rows.get(seq_id, ()))) != num_expected:
            return f"{num_rows} of {num_expected} tokens for sequence {seq_id}"
    return None


def _fault_of_logprobs(plan: StepPlan, answer: StepAnswer, vocab_size: int) -> str | None:
    """Looks for rows whose group asked for log probabilities and that have too few, or too many."""
    num_asked = {
        seq.seq_id: min(seq.group.params.num_logprobs, vocab_size)
        for seq in plan.seqs
        if seq.group.params.num_logprobs is not None
    }
    num_named = {seq.seq_id: len(seq.group.params.logprob_token_ids) for seq in plan.seqs}
    for row, seq_id in enumerate(answer.seq_ids) if num_asked else ():
        if seq_id not in num_asked:
            continue
        entry = answer.logprobs.get(row)
        if entry is None:
            return f"no log probability of row {row}"
        num_told = min(len(entry.top_token_ids), len(entry.top_logprobs))
        if num_told < num_asked[seq_id]:
            return f"{num_told} of {num_asked[seq_id]} log probabilities of row {row}"
        if len(entry.top_token_ids) > max(num_asked[seq_id], num_named[seq_id]):
            return f"{len(entry.top_token_ids)} log probabilities of row {row}"
    return None


def _fault_of_prompts(plan: StepPlan, answer: StepAnswer) -> str | None:
    if not answer.prompt_logprobs:
        return None
    seqs = {seq.seq_id: seq for seq in plan.seqs}
    for run in answer.prompt_logprobs:
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


def _fault_of_timings(answer: StepAnswer) -> str | None:
    timings = answer.timings
    longest = max(timings.wait_ns, timings.swap_ns, timings.forward_ns, timings.sample_ns)
    return f"a time of {longest / 1e9:.0f} s" if longest > MAX_TIMING_S * 1e9 else None
