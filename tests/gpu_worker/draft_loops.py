"""Generates through a sequence table, as a scheduler would, with drafts or without."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from signalbox_contract.cache_groups import num_token_groups, state_group
from signalbox_contract.columns import int32s, int64s
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.block_moves import BlockMapping, BlockMoves
from signalbox_contract.sections.drafts import DraftLimits, DraftSource
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import NewSequence, Step, TablePatch
from signalbox_contract.step_result import StepResult
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.drafts.chain import make_proposer
from signalbox_worker.drafts.proposer import (
    NO_PROPOSER,
    DraftAsk,
    Drafts,
    NoProposer,
    Proposer,
)
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.runner.loading.byte_tokenizer import tokenizer_files
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.generation import groups_of

MOST = 6
"""Most drafts of a sequence in a step."""
BLOCK_SIZE = 16


@dataclass(slots=True, kw_only=True)
class Wanted:
    """A request."""

    prompt: Sequence[int]
    params: SamplingParams = SamplingParams()  # noqa: RUF009  # it is immutable
    num_samples: int = 1
    adapter: str = ""
    prediction: Sequence[int] = ()
    returns_logits: bool = False


@dataclass(slots=True)
class Answer:
    """What a branch has drawn."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    logits: list[int | None] = field(default_factory=list)
    """Bits of the logit of each token; None where there is none."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    failure: str = ""


class Oracle(NoProposer):
    """Proposes what is known to come; what it makes worse of that is `spoil`'s."""

    def __init__(
        self,
        texts: Mapping[int, Sequence[int]],
        spoil: Callable[[list[int]], Sequence[int]] = lambda tokens: tokens,
    ) -> None:
        """`texts` has the tokens of each sequence, prompt included."""
        self.forgotten: list[int] = []
        self._texts, self._spoil = texts, spoil

    def propose_one(self, ask: DraftAsk) -> Drafts:
        known, text = ask.token_ids.tolist(), list(self._texts[ask.seq_id])
        assert known == text[: len(known)] or len(known) > len(text)
        rest = text[len(known) :][: ask.most]
        return Drafts(self._spoil(rest), DraftSource.TEXT)

    def forget(self, seq_id: int) -> None:
        self.forgotten.append(seq_id)


def spoilt(rng: random.Random, vocab_size: int) -> Callable[[list[int]], Sequence[int]]:
    """Returns what makes drafts wrong here and there, or none of a vocabulary."""

    def spoil(tokens: list[int]) -> list[int]:
        wrong = [rng.randrange(vocab_size) if rng.random() < 0.3 else one for one in tokens]
        made_up = [rng.randrange(-2, vocab_size + 2) for _ in range(rng.randrange(2 * MOST))]
        return rng.choice([tokens, wrong, wrong, made_up, []])

    return spoil


class Loop:
    """Requests that run together over a runner; each has blocks for all of its tokens.

    One comes in each step, and its prompt is computed in two.
    """

    def __init__(
        self,
        runner: Any,
        *,
        proposer: Proposer = NO_PROPOSER,
        grammars: Grammars | None = None,
        max_num_seqs: int = 16,
    ) -> None:
        self.runner, self.groups = runner, groups_of(runner)
        self.pools = getattr(runner, "_own", runner).pools  # of rank 0, if there are several
        self.num_blocks = len(self.pools.gpu_pool)
        self.capacity = WorkerCapacity(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=self.num_blocks,
            num_cpu_blocks=0,
            block_bytes=1,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=512,
            groups=self.groups,
            max_draft_tokens=MOST,
        )
        self.table = SequenceTable(
            model=runner.model,
            capacity=self.capacity,
            num_gpu_blocks=self.num_blocks,
            grammars=grammars or Grammars(runner.model, tokenizer_json=b""),
            adapter_slots=runner.adapter_slots,
            proposer=proposer,
        )
        self.answers: dict[int, Answer] = {}
        self.tables: dict[int, list[int]] = {}
        self.prompts: dict[int, list[int]] = {}
        self.num_steps = self.num_drafts = 0
        self._free = list(range(self.num_blocks))
        self._left: dict[int, int] = {}
        """Tokens of prompts that are not computed yet."""
        self._forked: set[int] = set()
        self._states: dict[int, list[int]] = {}
        """Blocks of the state of each sequence of recurrent layers, by the first."""
        self._moves: list[tuple[int, int]] = []

    def generate(
        self,
        wanted: Sequence[Wanted],
        *,
        num_tokens: int,
        limit: Callable[[], int] = lambda: 0,
    ) -> dict[int, Answer]:
        """Returns answers by 10 times the request's index, plus the branch.

        Args: limit: of the next sequence's drafts; 0 names it not.
        """
        waiting = [self._new(10 * i, one, num_tokens) for i, one in enumerate(wanted)]
        ended: set[int] = set()
        states = list(self._states.values())
        while True:
            running = {seq_id: num for seq_id, num in self._left.items() if num}
            decoding = [
                seq_id
                for seq_id, answer in self.answers.items()
                if 0 < len(answer.token_ids) < num_tokens and not answer.failure
            ]
            running |= dict.fromkeys(decoding, 1)
            if not (running or waiting):
                break
            limits = {seq_id: most for seq_id in decoding if (most := limit())}
            finished = self.answers.keys() - running.keys() - ended
            self._step(
                new=[waiting.pop(0)] if waiting else [],
                states=states,
                running_seq_ids=int64s(list(running)),
                running_num_new_tokens=int32s(list(running.values())),
                finished=int64s(sorted(finished)),
                forks=self._forks(),
                draft_limits=_limits(limits) if limits else None,
            )
            ended |= finished
            states = []
        for key, answer in self.answers.items():
            del answer.token_ids[num_tokens:], answer.logprobs[num_tokens:]
            del answer.logits[num_tokens:]
            returns_logits = wanted[key // 10].returns_logits
            assert all((one is not None) == returns_logits for one in answer.logits)
        self.table.check()
        return self.answers

    def texts(self) -> dict[int, list[int]]:
        """Returns prompt and tokens of each sequence."""
        return {
            seq_id: [*self.prompts[seq_id], *answer.token_ids]
            for seq_id, answer in self.answers.items()
        }

    def full_blocks(self) -> dict[int, bytes]:
        """Returns the bytes of the blocks whose tokens are all known to be computed."""
        found = {}
        for seq_id, text in self.texts().items():
            blocks = self._token_blocks(seq_id)
            blocks = blocks[: (len(text) - 1) // BLOCK_SIZE * num_token_groups(self.groups)]
            found[seq_id] = self.pools.gpu_pool[blocks].tobytes()
        return found

    def _token_blocks(self, seq_id: int) -> list[int]:
        return [block for block in self.tables[seq_id] if block not in self._states]

    def _blocks(self, seq_id: int) -> list[int]:
        return self._token_blocks(seq_id) + self._states.get(self.tables[seq_id][-1], [])

    def _new(self, seq_id: int, one: Wanted, num_tokens: int) -> NewSequence:
        num_rows = -(-(len(one.prompt) + num_tokens + MOST) // BLOCK_SIZE)
        for branch in range(one.num_samples):
            self.tables[seq_id + branch] = self._make_table(num_rows)
            self.prompts[seq_id + branch] = list(one.prompt)
        return NewSequence(
            seq_id=seq_id,
            branch=0,
            token_ids=list(one.prompt),
            num_prompt_tokens=len(one.prompt),
            num_computed_tokens=0,
            num_new_tokens=len(one.prompt) - len(one.prompt) // 2,
            block_table=self.tables[seq_id],
            num_samples=one.num_samples,
            params=one.params,
            adapter=one.adapter,
            prediction=one.prediction,
            owner=b"of all",
            returns_logits=one.returns_logits,
        )

    def _make_table(self, num_rows: int) -> list[int]:
        """Returns a table whose rows have blocks of their own, but one state."""
        table, group = self._take(num_rows * len(self.groups)), state_group(self.groups)
        if group is not None:
            blocks = self._take(group.state_blocks)
            self._states[blocks[0]] = blocks
            table[len(self.groups) - 1 :: len(self.groups)] = [blocks[0]] * num_rows
        return table

    def _take(self, count: int) -> list[int]:
        taken, self._free = self._free[:count], self._free[count:]
        assert len(taken) == count
        return taken

    def _step(self, **fields: Any) -> None:
        if self._moves:
            fields |= {"block_moves": BlockMoves(copy=BlockMapping.of(self._moves))}
            fields["patches"] = [
                TablePatch(fork.child, 0, self.tables[fork.child]) for fork in fields["forks"]
            ]
        self.num_steps += 1
        step = Step(epoch=1, step_id=self.num_steps, **fields)
        batch = self.table.apply(step)
        if self._moves:
            self.runner.apply(step)
            self._moves = []
        self._left = {one.seq_id: len(one.token_ids) - one.num_new_tokens for one in step.new}
        result = self.table.append_tokens(self.runner.execute(batch))
        if self.table.settlement is not None:
            self.runner.settle(self.table.settlement)
        self._take_result(result)

    def _take_result(self, result: StepResult) -> None:
        own = {seq_id: seq_id % 10 for seq_id in result.seq_ids.tolist()}
        tokens, logits = result.token_ids.tolist(), _bits_of(result)
        for (seq_id, branch), run in result.runs(own).items():
            answer = self.answers.setdefault(seq_id - seq_id % 10 + branch, Answer())
            answer.token_ids += [tokens[i] for i in run]
            answer.logprobs += [result.logprobs.get(i) for i in run]
            answer.logits += [logits[i] for i in run]
        for run in result.prompt_logprobs:
            answer = self.answers.setdefault(run.seq_id, Answer())
            answer.prompt_logprobs += run.logprobs
        for seq_id, failure in result.failures.items():
            self.answers.setdefault(seq_id, Answer()).failure = failure.message
        if result.drafts is not None:
            self.num_drafts += sum(result.drafts.num_drafts.tolist())

    def _forks(self) -> list[Fork]:
        """Returns forks of the branches that the last step began; they copy all blocks."""
        forks = []
        for key, answer in self.answers.items():
            if (branch := key % 10) and key not in self._forked:
                forks.append(Fork(key - branch, key, branch, answer.token_ids[0]))
                self._moves += zip(self._blocks(key - branch), self._blocks(key), strict=True)
        self._forked |= {fork.child for fork in forks}
        return forks


def make_byte_grammars(runner: Any, vocab_size: int) -> Grammars:
    """Returns the grammars of a model whose tokens are bytes, and others that only decode."""
    files = tokenizer_files(vocab_size=vocab_size, max_model_len=256)
    return Grammars(runner.model, tokenizer_json=files["tokenizer.json"])


def _bits_of(result: StepResult) -> list[int | None]:
    """Returns the bits of each drawn token's logit, or None."""
    if result.draw_logits is None:
        return [None] * len(result.token_ids)
    logits = result.draw_logits.array()
    pairs = zip(logits.tolist(), logits.view(np.uint32).tolist(), strict=True)
    return [None if math.isnan(logit) else bits for logit, bits in pairs]


def _limits(limits: Mapping[int, int]) -> DraftLimits:
    return DraftLimits(int64s(list(limits)), int32s(list(limits.values())))


def assert_drafts_change_nothing(
    runner: Any,
    wanted: Sequence[Wanted],
    *,
    seed: int,
    num_tokens: int = 24,
    grammars: Grammars | None = None,
    has_equal_bits: bool = True,
) -> None:
    """Checks tokens and log probabilities with drafts that are right, wrong and made up, and with
    those of a worker.

    Args: has_equal_bits: compare log probabilities, and blocks of the pool, bit for bit.
    """

    def generate(
        proposer: Proposer, limit: Callable[[], int]
    ) -> tuple[Loop, list[object], dict[int, bytes]]:
        loop = Loop(runner, grammars=grammars, proposer=proposer)
        answers = loop.generate(wanted, num_tokens=num_tokens, limit=limit)
        if not has_equal_bits:
            return (
                loop,
                [(key, one.token_ids, one.failure) for key, one in sorted(answers.items())],
                {},
            )
        return loop, sorted(answers.items()), loop.full_blocks()

    without, *expected = generate(NO_PROPOSER, lambda: 0)
    texts, rng = without.texts(), random.Random(seed)
    right, *found = generate(Oracle(texts), lambda: MOST)
    assert found == expected
    assert right.num_steps < without.num_steps or without.num_steps < 5  # a failure takes one
    spoil = spoilt(rng, runner.model.vocab_size)
    _, *found = generate(Oracle(texts, spoil), lambda: rng.randrange(MOST + 1))
    assert found == expected
    for i, one in enumerate(wanted):
        one.prediction = texts[10 * i][len(one.prompt) + rng.randrange(3) :]
    sources = (*SpeculationConfig().sources, DraftSource.RECENT)
    config = SpeculationConfig(num_tokens=MOST, min_match=2, sources=sources, recent_bytes=1 << 20)
    chain = make_proposer(config, vocab_size=runner.model.vocab_size)
    _, *found = generate(chain, lambda: MOST)
    assert found == expected
