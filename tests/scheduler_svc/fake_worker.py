"""A worker in dictionaries: it executes plans, and reads its tokens back through the block tables.

Its next token is a hash of what the blocks say the sequence is, so that a wrong block, a lost copy
or a stale table changes the output. `expected` says what the output must be. As in a real model a
slot depends on all tokens up to its own, so another prefix's block is a wrong one too.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from signalbox_contract.cache_groups import FULL_GROUP, NO_BLOCK, CacheGroup, state_group
from signalbox_contract.columns import Column, int32s, int64s
from signalbox_contract.errors import Code
from signalbox_contract.logprobs import PromptLogprobs, TokenLogprobs
from signalbox_contract.pooling import PoolingModel, Vector
from signalbox_contract.request import BeamSearchParams
from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_contract.step_result import MaskTimes, StepResult, StepTimings
from signalbox_contract.updates import RequestFailure
from signalbox_scheduler.kv.block_allocator import BlockCopy
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.beam_search import BeamSearch, Candidates, Hypothesis
from tests.scheduler_svc.fake_drafts import draft_counts, propose
from tests.scheduler_svc.fake_logits import draw_logits, made_up_logit
from tests.scheduler_svc.fake_store import Block, FakeStore

VOCAB_SIZE = 97
STATE = -1
"""Key of a block that holds a part of a state: the part's number, and what it is a state of."""
STATE_LOST = RequestFailure(Code.ABORTED, "the step failed")


def copies_of(mapping: BlockMapping) -> list[BlockCopy]:
    return list(map(BlockCopy, mapping.src.tolist(), mapping.dst.tolist()))


def chain(value: int, token_id: int) -> int:
    return (value * 1_000_003 + token_id + 1) & 0xFFFFFFFF


def next_token(token_ids: list[int], *, branch: int) -> int:
    value = 17 + branch
    for token_id in token_ids:
        value = chain(value, token_id)
    return (value >> 7) % VOCAB_SIZE


def expected(prompt: list[int], *, num_tokens: int, branch: int = 0) -> list[int]:
    token_ids = list(prompt)
    for _ in range(num_tokens):
        token_ids.append(next_token(token_ids, branch=branch))
    return token_ids[len(prompt) :]


def pooled_vector(token_ids: list[int]) -> Vector:
    """Returns the vector of a prompt, which differs with each token of it."""
    return np.array([next_token(token_ids, branch=0), len(token_ids)], dtype=np.float32)


def distribution(token_ids: list[int], *, num_logprobs: int) -> Candidates:
    """Returns made-up likeliest next tokens, close enough that beams overtake each other."""
    first = next_token(token_ids, branch=0)
    steps = [next_token([*token_ids, rank], branch=1) for rank in range(num_logprobs)]
    logprobs, logprob = [], -0.1
    for step in steps:
        logprob -= 0.01 * step
        logprobs.append(logprob)
    return Candidates([(first + rank) % VOCAB_SIZE for rank in range(num_logprobs)], logprobs)


def expected_beams(
    prompt: list[int],
    params: BeamSearchParams,
    *,
    max_tokens: int,
    stop_token_ids: tuple[int, ...] = (),
    min_tokens: int = 0,
) -> list[Hypothesis]:
    """Returns what a search finds that no scheduler is in the way of."""
    search = BeamSearch(params, stop_token_ids=stop_token_ids, min_tokens=min_tokens)
    while not search.is_done:
        candidates = [
            distribution(prompt + beam.token_ids, num_logprobs=search.num_candidates)
            for beam in search.live
        ]
        search.advance(candidates, max_tokens=max_tokens)
    return search.finished


def last_block(token_ids: list[int], *, block_size: int) -> Block:
    """What the last block of a sequence of whole blocks holds."""
    values = list(itertools.accumulate(token_ids, chain, initial=0))[1:]
    first = len(token_ids) - block_size
    return {i: (token_ids[first + i], values[first + i]) for i in range(block_size)}


@dataclass(slots=True)
class Known:
    """A sequence as the worker knows it."""

    branch: int
    token_ids: list[int]
    num_computed_tokens: int
    block_table: list[int]
    num_samples: int
    num_logprobs: int | None = None
    returns_logits: bool = False
    num_reported_tokens: int = 0
    """Leading tokens whose log probabilities are wanted: those of the prompt, or none."""


@dataclass(slots=True)
class Drawn:
    """What a step has drawn, as columns."""

    seq_ids: list[int] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    logits: list[float] = field(default_factory=list)
    """NaN of sequences that do not return them."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    pooled: dict[int, Vector] = field(default_factory=dict)


@dataclass(slots=True)
class FakeWorker:
    """Executes plans in order."""

    block_size: int
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,)
    pooling: PoolingModel | None = None
    gpu: dict[int, Block] = field(default_factory=dict)
    cpu: dict[int, Block] = field(default_factory=dict)
    states: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Blocks of each state, by the first."""
    sequences: dict[int, Known] = field(default_factory=dict)
    loses_copies: bool = False
    fails_next: bool = False
    """True if the next step that computes raises half-way, and takes its states with it."""
    poison: int | None = None
    """Token with which a step does so."""
    failed: set[int] = field(default_factory=set)
    """Sequences that have lost their states, which fail until they are forgotten."""
    store: FakeStore | None = None
    draft_kinds: str = ""
    """Kinds of the drafts that it computes, in turns; see fake_drafts.py."""
    idle: set[int] = field(default_factory=set)
    """Sequences that had no drafts when a step allowed some."""
    mask_costs: tuple[int, ...] = ()
    """Nanoseconds that it reports of masks of most sequences, in turns; none if it is empty."""
    num_swapped_in: int = 0
    num_swapped_out: int = 0

    def execute(self, plan: "EncodedPlan") -> StepResult:
        for seq_id in plan.forget:
            del self.sequences[seq_id]
            self.failed.discard(seq_id)
            self.idle.discard(seq_id)
        for blocks in plan.states:
            assert len(set(blocks)) == len(blocks) == self.groups[-1].state_blocks
            self.states[blocks[0]] = tuple(blocks)
        self._fork(plan)
        for known_id, known in plan.new:
            assert known_id not in self.sequences, "a known sequence is sent in full"
            if self.pooling is not None and self.pooling.reads_all_tokens:
                assert not known.num_computed_tokens, "tokens that a vector reads are not computed"
            self.sequences[known_id] = known
        for patch in plan.patches:
            table = self.sequences[patch.seq_id].block_table
            assert patch.first_index <= len(table), "a patch leaves a hole"
            table[patch.first_index : patch.first_index + len(patch.blocks)] = patch.blocks
        self._move(plan)
        if self.store is not None:
            self.store.begin(plan.store_moves)
        drawn = Drawn()
        assert len(set(plan.seq_ids)) == len(plan.seq_ids), "a sequence is in the step twice"
        work = [
            (seq_id, n)
            for seq_id, n in zip(plan.seq_ids, plan.num_new_tokens, strict=True)
            if seq_id not in self.failed
        ]
        # What counts as computed must be there before the step, not by grace of a neighbour in it.
        contexts = {seq_id: self._read(self.sequences[seq_id]) for seq_id, _ in work}
        drafts = {seq_id: self._propose(seq_id, plan) for seq_id, _ in work}
        if state_group(self.groups):
            self._check_states(work)
        for seq_id, num_new_tokens in work:
            if self.pooling is not None and self.pooling.is_bidirectional:
                assert num_new_tokens == len(self.sequences[seq_id].token_ids), "a prompt is cut"
            self.sequences[seq_id].token_ids += drafts[seq_id]
            num_rows = num_new_tokens + len(drafts[seq_id])
            contexts[seq_id] += self._write(self.sequences[seq_id], num_rows)
            self._report_prompt(seq_id, num_new_tokens, drawn)
        is_poisoned = any(self.poison in self.sequences[seq_id].token_ids for seq_id, _ in work)
        if work and (self.fails_next or is_poisoned):
            self._lose_states(work)
            work, drawn = [], Drawn()
        for seq_id, _ in work:
            if drafts[seq_id]:
                self._verify(seq_id, contexts[seq_id], drafts[seq_id], drawn)
            else:
                self._sample(seq_id, contexts[seq_id], drawn)
        own_branches = [self.sequences[seq_id].branch for seq_id in drawn.seq_ids]
        return StepResult(
            step_id=plan.step_id,
            seq_ids=int64s(drawn.seq_ids),
            branches=None if drawn.branches == own_branches else int32s(drawn.branches),
            num_tokens=int32s(drawn.num_tokens) if max(drawn.num_tokens, default=1) > 1 else None,
            token_ids=int32s(drawn.token_ids),
            logprobs=drawn.logprobs,
            draw_logits=draw_logits(drawn.logits),
            prompt_logprobs=drawn.prompt_logprobs,
            pooled=drawn.pooled,
            failures={one: STATE_LOST for one in plan.seq_ids if one in self.failed},
            moves=self.store.pop_ended() if self.store is not None else (),
            drafts=draft_counts(drafts),
            draft_offers=self._offers(drafts, plan),
            masks=self._masks(plan),
            timings=StepTimings(forward_ns=10_000_000 if self.mask_costs else 0),
        )

    def _masks(self, plan: "EncodedPlan") -> MaskTimes | None:
        if not self.mask_costs:
            return None
        seq_ids = [seq_id for i, seq_id in enumerate(plan.seq_ids) if (i + plan.step_id) % 3]
        first = plan.step_id // 5
        costs = itertools.islice(itertools.cycle(self.mask_costs), first, first + len(seq_ids))
        return MaskTimes(int64s(seq_ids), int64s(list(costs)))

    def _fork(self, plan: "EncodedPlan") -> None:
        parents = {fork.parent: self.sequences[fork.parent] for fork in plan.forks}
        children = {}
        for fork in plan.forks:
            parent = parents[fork.parent]
            children[fork.child] = Known(
                branch=fork.branch,
                token_ids=[*parent.token_ids[: parent.num_computed_tokens], fork.token_id],
                num_computed_tokens=parent.num_computed_tokens,
                block_table=list(parent.block_table),
                num_samples=1,
                num_logprobs=parent.num_logprobs,
                returns_logits=parent.returns_logits,
            )
            known = fork.child in self.sequences
            assert not known or fork.child == fork.parent, "a known sequence is split off"
        self.sequences.update(children)

    def _move(self, plan: "EncodedPlan") -> None:
        moves = plan.block_moves
        read = set(moves.swap_in.src.tolist())
        assert not read & set(moves.swap_out.dst.tolist()), "written before it is read"
        if self.store is not None:
            self.store.check_block_moves(moves)
        self.num_swapped_in += len(read)
        self.num_swapped_out += len(moves.swap_out.src)
        for mapping, source, target in (
            (moves.swap_out, self.gpu, self.cpu),
            (moves.swap_in, self.cpu, self.gpu),
            (moves.copy, self.gpu, self.gpu),
        ):
            copies = copies_of(mapping)
            assert len({copy.dst for copy in copies}) == len(copies), "a destination is double"
            if source is target:
                assert not {copy.src for copy in copies} & {copy.dst for copy in copies}
                if self.loses_copies:
                    continue
            moved = [(copy.dst, dict(source.get(copy.src, {}))) for copy in copies]
            target.update(moved)

    def _write(self, known: Known, num_new_tokens: int) -> list[int]:
        start = known.num_computed_tokens
        assert start + num_new_tokens <= len(known.token_ids), "computes tokens it does not know"
        _, value = self._slot(known, start - 1, 0) if start else (0, 0)
        for position in range(start, start + num_new_tokens):
            token_id = known.token_ids[position]
            value = chain(value, token_id)
            for column, group in enumerate(self.groups):
                block = self._block(known, position, column)
                if group.state_blocks:
                    end = start + num_new_tokens
                    self._write_state(known, position, value, start=start, end=end)
                    continue
                assert block != NO_BLOCK, "a token has no block to be written to"
                content = self.gpu.setdefault(block, {})
                content[position % self.block_size] = (token_id, value)
                content.pop(STATE, None)
        known.num_computed_tokens += num_new_tokens
        return known.token_ids[start : known.num_computed_tokens]

    def _lose_states(self, work: list[tuple[int, int]]) -> None:
        """Spoils all states that a step has left, as one does that raises half-way."""
        self.fails_next = False
        for seq_id, num_new_tokens in work:
            known = self.sequences[seq_id]
            self.failed.add(seq_id)
            for position in range(known.num_computed_tokens)[-num_new_tokens:]:
                head = self._block(known, position, len(self.groups) - 1)
                if head != NO_BLOCK:
                    self.gpu.update({block: {} for block in self.states[head]})

    def _write_state(
        self, known: Known, position: int, value: int, *, start: int, end: int
    ) -> None:
        """Leaves a state where a row, or the step, ends; not behind the row whose state it reads,
        unless it ends there."""
        head = self._block(known, position, len(self.groups) - 1)
        if position + 1 == end:
            assert head != NO_BLOCK, "a step has no state to go on in"
        else:
            is_of_read_row = start and (start - 1) // self.block_size == position // self.block_size
            if head == NO_BLOCK or is_of_read_row or (position + 1) % self.block_size:
                return
        for part, block in enumerate(self.states[head]):
            self.gpu[block] = {STATE: (part, value)}

    def _check_states(self, work: list[tuple[int, int]]) -> None:
        """Asserts that no sequence of a step writes a state that another reads or writes."""
        column, reads, writes = len(self.groups) - 1, dict[int, int](), dict[int, int]()
        for seq_id, num_new_tokens in work:
            known = self.sequences[seq_id]
            start, end = known.num_computed_tokens, known.num_computed_tokens + num_new_tokens
            if start:
                reads[seq_id] = self._block(known, start - 1, column)
            for position in range(start, end):
                if (head := self._block(known, position, column)) != NO_BLOCK:
                    assert writes.setdefault(head, seq_id) == seq_id, "two sequences write a state"
        for seq_id, head in reads.items():
            assert writes.get(head, seq_id) == seq_id, "a state is written that another reads"

    def _read(self, known: Known) -> list[int]:
        """Returns the computed tokens, spoilt where a group that the next token sees has others."""
        token_ids, expected_value, num_computed = [], 0, known.num_computed_tokens
        for position, token_id in enumerate(known.token_ids[:num_computed]):
            expected_value = chain(expected_value, token_id)
            seen = {
                self._slot(known, position, column)
                for column, group in enumerate(self.groups)
                if not group.state_blocks
                if not group.window or position > num_computed - group.window
            }
            is_right = seen <= {(token_id, expected_value)}
            if position + 1 == num_computed and state_group(self.groups):
                blocks = self.states[self._block(known, position, len(self.groups) - 1)]
                parts = [self.gpu.get(block, {}).get(STATE) for block in blocks]
                is_right &= parts == [(part, expected_value) for part in range(len(blocks))]
            token_ids.append(token_id + (0 if is_right else VOCAB_SIZE))
        return token_ids

    def _slot(self, known: Known, position: int, column: int) -> tuple[int, int]:
        block = self.gpu.get(self._block(known, position, column), {})
        return block.get(position % self.block_size, (VOCAB_SIZE, -1))

    def _block(self, known: Known, position: int, column: int) -> int:
        return known.block_table[position // self.block_size * len(self.groups) + column]

    def _sample(self, seq_id: int, context: list[int], drawn: Drawn) -> None:
        known = self.sequences[seq_id]
        if known.num_computed_tokens < len(known.token_ids) or not known.num_samples:
            return
        if self.pooling is not None:
            drawn.pooled[seq_id] = pooled_vector(context)
            return
        branches = range(known.branch, known.branch + known.num_samples)
        token_ids = [next_token(context, branch=branch) for branch in branches]
        if known.num_logprobs is not None:
            self._report(context, known.num_logprobs, drawn)
        known.num_samples = 1
        known.token_ids.append(token_ids[0])
        drawn.seq_ids += [seq_id] * len(token_ids)
        drawn.branches += branches
        for token_id in token_ids:
            self._add_draw(known, context, token_id, drawn)
        drawn.num_tokens += [1] * len(token_ids)

    def _add_draw(self, known: Known, context: list[int], token_id: int, drawn: Drawn) -> None:
        drawn.token_ids.append(token_id)
        logit = made_up_logit(context, token_id) if known.returns_logits else math.nan
        drawn.logits.append(logit)

    def _propose(self, seq_id: int, plan: "EncodedPlan") -> list[int]:
        if seq_id not in plan.draft_limits:
            return []
        known, most = self.sequences[seq_id], plan.draft_limits[seq_id]
        assert plan.num_new_tokens[plan.seq_ids.index(seq_id)] == known.num_samples == 1
        right = expected(known.token_ids, num_tokens=most, branch=known.branch)
        return propose(right, self._kind(seq_id, plan), vocab_size=VOCAB_SIZE)

    def _kind(self, seq_id: int, plan: "EncodedPlan") -> str:
        return self.draft_kinds[(seq_id + plan.step_id) % len(self.draft_kinds)]

    def _offers(self, drafts: dict[int, list[int]], plan: "EncodedPlan") -> Column | None:
        """Returns the sequences of a step that have drafts again, and may have none in it."""
        asked = drafts.keys() & plan.draft_limits.keys()
        others = drafts.keys() & self.idle - asked
        found = sorted(seq_id for seq_id in others if self._kind(seq_id, plan) != "n")
        self.idle -= {*found, *asked}
        self.idle |= {seq_id for seq_id in asked if not drafts[seq_id]}
        return int64s(found) if found else None

    def _verify(self, seq_id: int, context: list[int], drafts: list[int], drawn: Drawn) -> None:
        """Draws behind each row, and keeps drafts up to the first that is not what is drawn."""
        known, first, num_kept = self.sequences[seq_id], len(drawn.token_ids), 0
        for row in range(len(drafts) + 1):
            seen = context[: len(context) - len(drafts) + row]
            if known.num_logprobs is not None:
                self._report(seen, known.num_logprobs, drawn)
            self._add_draw(known, seen, next_token(seen, branch=known.branch), drawn)
            if drafts[row : row + 1] != drawn.token_ids[-1:]:
                break
            num_kept += 1
        known.num_computed_tokens -= len(drafts) - num_kept
        known.token_ids[-len(drafts) :] = drawn.token_ids[first:]
        if state_group(self.groups):
            end = known.num_computed_tokens
            _, value = self._slot(known, end - 1, 0)
            self._write_state(known, end - 1, value, start=end, end=end)
        drawn.seq_ids.append(seq_id)
        drawn.branches.append(known.branch)
        drawn.num_tokens.append(num_kept + 1)

    def _report_prompt(self, seq_id: int, num_new_tokens: int, drawn: Drawn) -> None:
        """Reports the tokens of the prompt that follow those that the step computes."""
        known = self.sequences[seq_id]
        end = known.num_computed_tokens
        first, last = end - num_new_tokens + 1, min(end, known.num_reported_tokens - 1)
        if first <= last:
            values = [TokenLogprobs(-float(i), 1, [], []) for i in range(first, last + 1)]
            drawn.prompt_logprobs.append(PromptLogprobs(seq_id, first, values))

    def _report(self, context: list[int], num_logprobs: int, drawn: Drawn) -> None:
        found = distribution(context, num_logprobs=num_logprobs)
        row = len(drawn.token_ids)
        drawn.logprobs[row] = TokenLogprobs(
            found.logprobs[0], 1, list(found.token_ids), list(found.logprobs)
        )


class EncodedPlan:
    """A plan as of the moment it was sent: nothing that happens later shows in it."""

    def __init__(self, plan: StepPlan) -> None:
        self.step_id = plan.step_id
        self.forget = list(plan.forget)
        self.forks = list(plan.forks)
        self.patches = list(plan.patches)
        self.states = plan.states
        self.block_moves = plan.block_moves
        self.store_moves = plan.store_moves
        self.seq_ids = [seq.seq_id for seq in plan.seqs]
        self.num_new_tokens = list(plan.num_new_tokens)
        self.draft_limits = {plan.seq_ids[i]: most for i, most in plan.num_drafts.items()}
        self.new = [
            (
                seq.seq_id,
                Known(
                    branch=seq.branch,
                    token_ids=seq.token_ids,
                    num_computed_tokens=seq.num_computed_tokens,
                    block_table=list(seq.block_table),
                    num_samples=seq.group.num_draws,
                    num_logprobs=seq.group.params.num_logprobs,
                    returns_logits=seq.group.logits is not None,
                    num_reported_tokens=seq.group.wants_prompt_logprobs
                    * seq.group.num_prompt_tokens,
                ),
            )
            for seq in (plan.seqs[i] for i in plan.new)
        ]
