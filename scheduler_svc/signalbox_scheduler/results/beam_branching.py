"""Makes sequences of what a beam search decides: branches off, drops, tells the client, ends.

The live hypotheses are the group's sequences, in the search's order. A sequence whose tokens are
all computed reports its likeliest next tokens and waits. When the last one has, no step that holds
the group is in flight, and the search advances: a beam that goes on keeps its sequence, further
continuations share its blocks until they write, as in PagedAttention (SOSP 2023, section 4.4), and
beams with none are dropped.
"""

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.updates import FinishReason
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.beam_search import Candidates, Draw
from signalbox_scheduler.requests.sequence_group import BeamGroup, Sequence, SequenceStatus
from signalbox_scheduler.requests.sequence_ids import next_seq_id
from signalbox_scheduler.results.step_outcome import StepOutcome
from signalbox_scheduler.results.stop_conditions import stop_reason


class BeamGroups:
    """Advances the searches of one worker's groups."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        eos_token_ids: frozenset[int],
    ) -> None:
        self._blocks = state.blocks
        self._worker_state = state.worker_state
        self._sequence_release = state.sequence_release
        self._eos_token_ids = eos_token_ids

    def process(
        self,
        group: BeamGroup,
        seq: Sequence,
        token_id: int,
        logprobs: TokenLogprobs | None,
        outcome: StepOutcome,
    ) -> str | None:
        """Takes what a beam may go on with; returns what is wrong with it, or None."""
        token_ids = [] if logprobs is None else logprobs.top_token_ids
        values = [] if logprobs is None else logprobs.top_logprobs
        wanted, num_reported = group.search.num_candidates, min(len(token_ids), len(values))
        if num_reported < wanted:
            return f"the worker reported {num_reported} of {wanted} log probabilities"
        group.draws[seq] = Draw(token_id, Candidates(token_ids[:wanted], values[:wanted]))
        if len(group.draws) == len(group.sequences):
            self._advance(group, outcome)
        return None

    def _advance(self, group: BeamGroup, outcome: StepOutcome) -> None:
        search, max_tokens = group.search, group.max_length - group.num_prompt_tokens
        candidates = [group.draws[seq].candidates for seq in group.sequences]
        search.advance(candidates, max_tokens=max_tokens)
        if search.is_done:
            self._end(group, outcome)
            return
        best = group.results[0]
        settled = search.settled(start=len(best.output_token_ids), max_tokens=max_tokens)
        _append_tokens(best, settled, outcome)
        self._keep_live(group)

    def _keep_live(self, group: BeamGroup) -> None:
        """Makes the group's sequences those of the live hypotheses."""
        parents, live = group.sequences, group.search.live
        heirs: set[int] = set()
        sequences = []
        for hypothesis in live:
            parent = parents[hypothesis.parent]
            is_heir = hypothesis.parent not in heirs
            heirs.add(hypothesis.parent)
            sequences.append(parent if is_heir else self._branch_off(parent))
        for seq, hypothesis in zip(sequences, live, strict=True):
            seq.output_token_ids = hypothesis.token_ids
            if seq in group.draws and group.draws[seq].token_id != hypothesis.token_ids[-1]:
                self._worker_state.replace_last(seq)
        group.draws.clear()
        group.sequences = sequences
        for index, parent in enumerate(parents):
            if index not in heirs:
                self._sequence_release.drop(parent)
        self._sequence_release.recount(group)

    def _branch_off(self, parent: Sequence) -> Sequence:
        """Returns one more continuation of a beam; all have branch 0, for none draws at random."""
        child = Sequence(
            seq_id=next_seq_id(),
            branch=0,
            group=parent.group,
            status=SequenceStatus.RUNNING,
            num_computed_tokens=parent.num_computed_tokens,
        )
        self._blocks.fork(parent, child)
        self._worker_state.fork(parent, child)
        return child

    def _end(self, group: BeamGroup, outcome: StepOutcome) -> None:
        """Ends the group; what the search has found takes the place of the beams."""
        beams, group.sequences = group.sequences, group.results
        for beam in beams:
            self._sequence_release.drop(beam)
        for seq, hypothesis in zip(group.results, group.search.finished, strict=False):
            _append_tokens(seq, hypothesis.token_ids[len(seq.output_token_ids) :], outcome)
            seq.score = float(hypothesis.score)
            token_id = seq.output_token_ids[-1]
            reason = stop_reason(seq, token_id, eos_token_ids=self._eos_token_ids)
            if reason is not None:
                seq.stop_token_id = token_id
            self._sequence_release.end(seq, reason or FinishReason.LENGTH)
            outcome.finished.append(seq)
        outcome.ended.append(group)


def _append_tokens(seq: Sequence, token_ids: list[int], outcome: StepOutcome) -> None:
    """Adds tokens to a hypothesis that is returned."""
    seq.output_token_ids += token_ids
    outcome.seqs += [seq] * len(token_ids)
    outcome.token_ids += token_ids
