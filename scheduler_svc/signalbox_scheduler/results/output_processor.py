"""Processes results of steps: what was computed, which tokens were drawn, what ends with them."""

from collections.abc import Iterable, Iterator

from signalbox_contract.errors import Code
from signalbox_contract.sections.drafts import DraftSource
from signalbox_contract.step_result import StepResult
from signalbox_contract.updates import NO_SPECULATION, FinishReason, RequestFailure
from signalbox_rpc.metrics.sample import Sample, counter, counters
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.draft_use import add_run, draft_samples
from signalbox_scheduler.requests.sequence_group import (
    BeamGroup,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)
from signalbox_scheduler.requests.sequence_ids import next_seq_id
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.results.beam_branching import BeamGroups
from signalbox_scheduler.results.drawn_tokens import DrawnTokens
from signalbox_scheduler.results.step_outcome import StepOutcome
from signalbox_scheduler.results.stop_conditions import end_reason


class OutputProcessor:
    """Turns a result into what it means for requests, and moves the counters on."""

    def __init__(self, state: SchedulerState) -> None:
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.speculation = NO_SPECULATION
        """Counts of all requests; drafts are accepted if their tokens were sent to clients."""
        self._num_accepted_at = [0] * state.config.limits.max_draft_tokens
        """Accepted drafts by their place in a run; empty if no drafts are computed."""
        self._drafts = state.drafts
        self._blocks = state.blocks
        self._decode_batch = state.decode_batch
        self._worker_state = state.worker_state
        self._sequence_release = state.sequence_release
        self._admission = state.queues.admission
        self._eos_token_ids = state.config.eos_token_ids
        self._searches = BeamGroups(state, eos_token_ids=self._eos_token_ids)
        self._queues = state.queues
        self._harmed: dict[SequenceGroup, None] = {}
        """Running groups that have lost their states; suspects that no later step takes."""

    def samples(self) -> Iterator[Sample]:
        yield counter(
            "prompt_tokens", "Prompt tokens of requests with a first token.", self.num_prompt_tokens
        )
        yield counter("generation_tokens", "Tokens that were drawn.", self.num_generated_tokens)
        if self._num_accepted_at:
            yield from draft_samples(self.speculation)
            yield from counters(
                "spec_decode_num_accepted_tokens_per_pos",
                "Accepted drafts by their place in a run, from 0 on.",
                {str(place): count for place, count in enumerate(self._num_accepted_at)},
                by="position",
            )

    def process(self, plan: StepPlan, result: StepResult, now: float) -> StepOutcome:
        """Processes the result of a plan; results come in the order of the plans."""
        outcome = StepOutcome()
        if result.prompt_logprobs:
            _accept_prompt_logprobs(plan, result, outcome)
        drawn, batch = DrawnTokens(plan, result), self._decode_batch
        if drawn.num_leading < len(plan.seqs):
            self._release_those_without_token(drawn)
        seqs = batch.seqs
        rows: list[int] | range = range(len(seqs))
        others: list[int] | range = range(len(seqs), len(plan.seqs))
        if len(seqs) > drawn.num_leading or plan.seqs[: len(seqs)] != seqs:
            inside = [i for i, seq in enumerate(plan.seqs) if seq.decode_index >= 0]
            others = [i for i, seq in enumerate(plan.seqs) if seq.decode_index < 0]
            seqs = [plan.seqs[i] for i in inside]
            rows = [row for i in inside for row in drawn.rows(i)]
        if others:
            self._accept_each(others, drawn, outcome, now)
        if seqs:
            self._accept_decodes(seqs, rows, drawn, outcome, now)
        if self._harmed:
            self._set_back_harmed(outcome)
        return outcome

    def _release_those_without_token(self, drawn: DrawnTokens) -> None:
        """Releases groups from the decode batch of which a sequence has failed."""
        first, failures = drawn.num_leading, drawn.result.failures
        for i, seq in enumerate(drawn.plan.seqs[first:], start=first):
            if seq.decode_index >= 0 and (seq.seq_id in failures or not drawn.rows(i)):
                self._decode_batch.release(seq.group)

    def _accept_decodes(
        self,
        seqs: list[Sequence],
        rows: list[int] | range,
        drawn: DrawnTokens,
        outcome: StepOutcome,
        now: float,
    ) -> None:
        """Takes one token of each of some sequences of the decode batch.

        Args:
            rows: index of each one's token.
        """
        batch, plan, token_ids = self._decode_batch, drawn.plan, drawn.token_ids(rows)
        for seq, token_id in zip(seqs, token_ids, strict=True):
            seq.output_token_ids.append(token_id)
        if drawn.result.logprobs:
            found = map(drawn.result.logprobs.get, rows)
            new = enumerate(found, start=len(outcome.seqs))
            outcome.logprobs |= {row: logprobs for row, logprobs in new if logprobs}
        outcome.seqs += seqs
        outcome.token_ids += token_ids
        self.num_generated_tokens += len(seqs)
        joined = plan.seqs[len(plan.decode_ids) :]  # since the step was planned, if they are inside
        reached = [seq for seq in (*plan.reached, *joined) if seq.decode_index >= 0]
        ending = batch.count_tokens(seqs, reached) + batch.find_stopped(seqs, token_ids)
        if ending:
            self._end_decodes(dict.fromkeys(ending), outcome, now)

    def _end_decodes(self, seqs: Iterable[Sequence], outcome: StepOutcome, now: float) -> None:
        """Ends those sequences of the decode batch whose newest token is their last."""
        ending = [
            (seq, reason)
            for seq in seqs
            if (reason := end_reason(seq, eos_token_ids=self._eos_token_ids))
        ]
        self._decode_batch.release(*{seq.group for seq, _ in ending})
        for seq, reason in ending:
            self._finish(seq, reason, outcome, now)

    def _accept_each(
        self, indices: Iterable[int], drawn: DrawnTokens, outcome: StepOutcome, now: float
    ) -> None:
        """Takes what the plan's sequences outside the decode batch have computed and drawn."""
        plan, result = drawn.plan, drawn.result
        for i in indices:
            seq, num_samples = plan.seqs[i], plan.num_samples[i]
            if i in plan.num_drafts:
                self._accept_run(i, drawn, outcome, now)
                continue
            seq.apply_result(plan.num_new_tokens[i], draws=num_samples > 0)
            if seq.is_finished:  # its extra tokens are trimmed
                self._sequence_release.release_answered(seq)
                continue
            if seq.seq_id in result.failures:
                self._fail(seq, result.failures[seq.seq_id], outcome, now)
                continue
            self._blocks.cache_blocks(seq)
            if num_samples and seq.group.pools:
                self._accept_vector(seq, result, outcome, now)
            elif num_samples:
                self._accept_draws(seq, drawn.rows(i), num_samples, result, outcome, now)
            elif seq.group.request.prewarm and not seq.num_remaining_tokens:
                self.num_prompt_tokens += seq.group.num_prompt_tokens
                self._finish(seq, FinishReason.LENGTH, outcome, now)

    def _accept_run(self, i: int, drawn: DrawnTokens, outcome: StepOutcome, now: float) -> None:
        """Appends the accepted drafts of a sequence and the token drawn behind them.

        Tokens behind one that ends the sequence are dropped.
        """
        plan, result = drawn.plan, drawn.result
        seq, run, most = plan.seqs[i], drawn.run(i), plan.num_drafts[i]
        token_ids = [] if seq.is_finished else drawn.token_ids(run)
        reason, num_known = None, len(seq.output_token_ids)
        for row, token_id in zip(run, token_ids, strict=False):
            outcome.add_token(seq, token_id, result.logprobs.get(row))
            seq.output_token_ids.append(token_id)
            if reason := end_reason(seq, eos_token_ids=self._eos_token_ids):
                break
        num_new = len(seq.output_token_ids) - num_known
        seq.apply_result(1, draws=True, num_drafts=most, num_accepted=max(0, num_new - 1))
        if seq.is_finished:
            self._sequence_release.release_answered(seq)
            return
        if seq.seq_id in result.failures:
            self._fail(seq, result.failures[seq.seq_id], outcome, now)
            return
        outcome.has_runs |= num_new > 1
        num_drafts, source = drawn.drafts.get(seq.seq_id, (0, 0))
        self._drafts.observe_run(
            seq, num_drafts=num_drafts, num_accepted=len(run) - 1, source=source
        )
        if num_drafts:
            num_accepted = min(num_new, len(run) - 1)
            self._count_drafts(seq, num_drafts, source, num_accepted=num_accepted)
        self._record_first_token(seq.group, now)
        self.num_generated_tokens += num_new
        self._admission.charge(seq.group.flow, [seq.group], num_output_tokens=num_new)
        self._blocks.cache_blocks(seq)  # of accepted tokens alone
        if reason:
            self._finish(seq, reason, outcome, now)

    def _count_drafts(
        self, seq: Sequence, num_drafts: int, source: int, *, num_accepted: int
    ) -> None:
        seq.group.speculation, self.speculation = (
            add_run(
                use,
                num_drafts=num_drafts,
                num_accepted=num_accepted,
                is_predicted=source == DraftSource.PREDICTION,
            )
            for use in (seq.group.speculation, self.speculation)
        )
        for place in range(num_accepted):
            self._num_accepted_at[place] += 1

    def _accept_draws(
        self,
        seq: Sequence,
        rows: list[int],
        num_samples: int,
        result: StepResult,
        outcome: StepOutcome,
        now: float,
    ) -> None:
        if len(rows) != num_samples:
            message = f"the worker drew {len(rows)} of {num_samples} tokens"
            self._fail(seq, RequestFailure(Code.INTERNAL, message), outcome, now)
            return
        token_ids = result.token_ids.tolist()
        self._record_first_token(seq.group, now)
        if isinstance(seq.group, BeamGroup):
            self._process_search(seq.group, seq, rows[0], result, outcome, now)
            return
        branches = [seq, *self._branch_off(seq, num_samples - 1)]
        if num_samples > 1:
            seq.group.timeline.add(EventKind.FORKED, now, num_sequences=num_samples)
        for branch, row in zip(branches, rows, strict=True):
            outcome.add_token(branch, token_ids[row], result.logprobs.get(row))
            self._accept_token(branch, token_ids[row], outcome, now)

    def _accept_vector(
        self, seq: Sequence, result: StepResult, outcome: StepOutcome, now: float
    ) -> None:
        """Ends a sequence that has no other draw than its vector."""
        vector = result.pooled.get(seq.seq_id)
        if vector is None:
            message = "the worker made no vector of the prompt"
            self._fail(seq, RequestFailure(Code.INTERNAL, message), outcome, now)
            return
        self.num_prompt_tokens += seq.group.num_prompt_tokens
        seq.group.timeline.add(EventKind.POOLED, now)
        outcome.pooled.append((seq.group, vector))
        self._finish(seq, FinishReason.STOP, outcome, now)

    def _record_first_token(self, group: SequenceGroup, now: float) -> None:
        if group.times.first_token is None:
            group.times.first_token = now
            group.timeline.add(EventKind.FIRST_TOKEN, now)
            self.num_prompt_tokens += group.num_prompt_tokens

    def _process_search(
        self,
        group: BeamGroup,
        seq: Sequence,
        row: int,
        result: StepResult,
        outcome: StepOutcome,
        now: float,
    ) -> None:
        """Gives a search the draw of one of its sequences.

        The tokens that the search has settled then count as generated. The draw of each sequence
        is charged, because each takes room in a step.
        """
        self._admission.charge(group.flow, [group], num_output_tokens=1)
        num_tokens, is_one = len(outcome.token_ids), group.awaits_fork
        token_id, logprobs = result.token_ids.tolist()[row], result.logprobs.get(row)
        fault = self._searches.process(group, seq, token_id, logprobs, outcome)
        if fault is not None:
            self._fail(seq, RequestFailure(Code.INTERNAL, fault), outcome, now)
        self.num_generated_tokens += len(outcome.token_ids) - num_tokens
        if group.is_finished:
            group.times.last_token = now
        elif is_one and not group.awaits_fork:
            group.timeline.add(EventKind.FORKED, now, num_sequences=group.num_branches)

    def _branch_off(self, parent: Sequence, num_children: int) -> list[Sequence]:
        """Splits off the other branches of a prompt that has just been computed."""
        children = [
            Sequence(
                seq_id=next_seq_id(),
                branch=parent.branch + 1 + i,
                group=parent.group,
                status=SequenceStatus.RUNNING,
                num_computed_tokens=parent.num_computed_tokens,
            )
            for i in range(num_children)
        ]
        for child in children:
            self._blocks.fork(parent, child)
            self._worker_state.fork(parent, child)
            parent.group.sequences.append(child)
        return children

    def _accept_token(self, seq: Sequence, token_id: int, outcome: StepOutcome, now: float) -> None:
        seq.output_token_ids.append(token_id)
        self.num_generated_tokens += 1
        self._admission.charge(seq.group.flow, [seq.group], num_output_tokens=1)
        if reason := end_reason(seq, eos_token_ids=self._eos_token_ids):
            self._finish(seq, reason, outcome, now)

    def _fail(
        self, seq: Sequence, failure: RequestFailure, outcome: StepOutcome, now: float
    ) -> None:
        """Ends a sequence by an error; before its fork it stands for all, as in a search.

        Its blocks may be wrong unless it was refused for what its request asks. One that has lost
        its state is computed again with its group; what it has computed before is right.
        """
        group = seq.group
        if failure.code is Code.ABORTED:
            self._harmed[group] = None
            group.suspect(seq.num_computed_tokens)
            return
        if failure.code is not Code.FAILED_PRECONDITION:
            self._blocks.retract(seq)
        if isinstance(group, BeamGroup):
            group.fail(failure)
            group.times.last_token = now
            self._sequence_release.end_all(group)
            outcome.ended.append(group)
            return
        seq.failure = failure
        self._finish(seq, FinishReason.ERROR, outcome, now)

    def _set_back_harmed(self, outcome: StepOutcome) -> None:
        """Takes groups that have lost states off this worker, once no step in flight holds them."""
        for group in [group for group in self._harmed if not group.is_inflight]:
            del self._harmed[group]
            if group.suspicion is None or group.is_finished:  # it was aborted meanwhile
                continue
            group.suspect(max(seq.num_computed_tokens for seq in group.unfinished))
            for seq in group.unfinished:
                self._worker_state.forget(seq)
                self._drafts.forget(seq)
                self._blocks.free(seq)
            self._queues.remove(group)
            group.forget_progress()
            group.set_status(SequenceStatus.WAITING)
            outcome.set_back.append(group)

    def _finish(
        self, seq: Sequence, reason: FinishReason, outcome: StepOutcome, now: float
    ) -> None:
        group = seq.group
        group.times.last_token = now
        self._sequence_release.end(seq, reason)
        if group.request.num_sequences > 1:
            group.timeline.add(
                EventKind.SEQUENCE_FINISHED, now, detail=reason.name, branch=seq.branch
            )
        outcome.finished.append(seq)
        if group.is_finished:
            if seq.failure is not None and _has_failed(group):
                group.fail(seq.failure)
            outcome.ended.append(group)


def _accept_prompt_logprobs(plan: StepPlan, result: StepResult, outcome: StepOutcome) -> None:
    """Takes each position once, though a prompt may be computed again."""
    seqs = {seq.seq_id: seq for seq in plan.seqs}
    for run in result.prompt_logprobs:
        seq = seqs.get(run.seq_id)
        if seq is None or seq.is_finished:
            continue
        first_new = seq.group.num_known_prompt_logprobs + 1
        new = run.logprobs[first_new - run.first_position :]
        if new:
            outcome.prompt_logprobs.append((seq.group, first_new, new))
            seq.group.num_known_prompt_logprobs += len(new)


def _has_failed(group: SequenceGroup) -> bool:
    return all(seq.finish_reason is FinishReason.ERROR for seq in group.sequences)
