"""Per-sequence state as columns: row r of every array belongs to one sequence.

A step over hundreds of sequences then gathers and scatters rows, and touches no sequence by itself.
Pages of the wide arrays that no sequence has reached are never touched, so that room for the
longest sequence costs address space and no memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.pooling import PoolingParams
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import NewSequence
from signalbox_kernels.filters import DTYPES, Filters
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.batch.batch import NO_ADAPTER
from signalbox_worker.batch.sampling_rows import NO_LOGPROBS
from signalbox_worker.drafts.proposer import NO_PREDICTION
from signalbox_worker.sampling.compiled_grammar import Grammar
from signalbox_worker.sampling.grammars import Grammars
from signalbox_worker.sampling.token_constraints import TokenRules, make_rules

_STATE = np.dtype(
    [
        ("num_tokens", np.int64),
        ("num_computed", np.int64),
        ("num_prompt", np.int64),
        ("num_received", np.int64),  # tokens that a sequence came with
        ("num_blocks", np.int64),
        ("num_samples", np.int64),
        ("branch", np.int64),
        ("adapter", np.int32),
        ("min_tokens", np.int64),
        ("num_logprobs", np.int64),
        ("num_prompt_logprobs", np.int64),
        ("seed", np.uint64),
        ("temperature", np.float32),
        *zip(Filters._fields, DTYPES, strict=True),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("repetition_penalty", np.float32),
        ("has_penalties", np.bool_),
        ("has_rules", np.bool_),
        ("returns_logits", np.bool_),
        ("reports_more", np.bool_),  # named tokens, or logits of those that are drawn
        ("num_first_segment", np.int32),
        ("num_skipped", np.int32),
        ("is_per_token", np.bool_),
    ],
    align=True,
)

NOT_POOLED = PoolingParams()


class SequenceRows:
    """Rows for sequences; the caller assigns them."""

    def __init__(
        self,
        *,
        num_rows: int,
        max_tokens: int,
        max_blocks: int,
        vocab_size: int,
        grammars: Grammars,
        eos_token_ids: tuple[int, ...] = (),
        adapter_slots: Mapping[str, int] | None = None,
        state_blocks: Int32Array | None = None,
    ) -> None:
        self.tokens: Int32Array = np.zeros((num_rows, max_tokens), dtype=np.int32)
        self.block_tables: Int32Array = np.zeros((num_rows, max_blocks), dtype=np.int32)
        """Padded with 0 past each sequence's blocks."""
        self.state: NDArray[Any] = np.zeros(num_rows, dtype=_STATE)
        self.rules: list[TokenRules | None] = [None] * num_rows
        """None for a sequence without rules, that of stop tokens before min_tokens included."""
        self.grammars: list[Grammar | None] = [None] * num_rows
        self.logprob_tokens: list[tuple[int, ...]] = [()] * num_rows
        """Tokens reported beside those that are drawn; empty for the likeliest ones."""
        self.predictions: list[Int32Array] = [NO_PREDICTION] * num_rows
        """Outputs that clients expect; empty if they expect nothing."""
        self.owners: list[bytes] = [b""] * num_rows
        """Owners of the recent outputs that drafts may come from; empty for none."""
        self.state_blocks = state_blocks
        """[num_gpu_blocks, blocks of a state], those of the state that begins with each block, or
        NO_BLOCK; None of a model without recurrent layers."""
        self.vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._compiler = grammars
        self._adapter_slots = {} if adapter_slots is None else adapter_slots

    def __len__(self) -> int:
        return len(self.state)

    def grow(self, num_rows: int) -> None:
        """Adds rows up to `num_rows`."""
        self.tokens = _taller(self.tokens, num_rows, used=int(self.state["num_tokens"].max()))
        self.block_tables = _taller(
            self.block_tables, num_rows, used=int(self.state["num_blocks"].max())
        )
        state = np.zeros(num_rows, dtype=_STATE)
        state[: len(self)] = self.state
        self.rules += [None] * (num_rows - len(self))
        self.grammars += [None] * (num_rows - len(self))
        self.logprob_tokens += [()] * (num_rows - len(self))
        self.predictions += [NO_PREDICTION] * (num_rows - len(self))
        self.owners += [b""] * (num_rows - len(self))
        self.state = state

    def write(self, row: int, new: NewSequence, pooling: PoolingParams = NOT_POOLED) -> None:
        params, num_tokens, num_blocks = new.params, len(new.token_ids), len(new.block_table)
        self.rules[row] = rules = self._rules(new)
        self.grammars[row] = grammar = self._grammar(params)
        penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
        self.state[row] = (
            num_tokens,
            new.num_computed_tokens,
            new.num_prompt_tokens,
            num_tokens,
            num_blocks,
            new.num_samples,
            new.branch,
            self._adapter_slots[new.adapter] if new.adapter else NO_ADAPTER,
            params.min_tokens,
            NO_LOGPROBS if params.num_logprobs is None else params.num_logprobs,
            NO_LOGPROBS if params.num_prompt_logprobs is None else params.num_prompt_logprobs,
            params.seed,
            params.temperature,
            *(getattr(params, name) for name in Filters._fields),
            *penalties,
            penalties != (0.0, 0.0, 1.0),
            grammar is not None or (rules is not None and rules.always_apply),
            new.returns_logits,
            new.returns_logits or bool(params.logprob_token_ids),
            pooling.num_first_segment_tokens,
            pooling.num_skipped_tokens,
            pooling.is_per_token,
        )
        self.logprob_tokens[row] = params.logprob_token_ids
        self.predictions[row], self.owners[row] = _array(new.prediction), new.owner
        self.tokens[row, :num_tokens] = new.token_ids
        self.block_tables[row] = 0
        self.block_tables[row, :num_blocks] = new.block_table

    def fork(self, source: int, target: int, fork: Fork) -> None:
        """Writes a child of the sequence in row `source` to row `target`."""
        num_computed = int(self.state["num_computed"][source])
        self.state[target] = self.state[source]
        child = self.state[target : target + 1]
        child["num_tokens"] = num_computed + 1
        child["num_samples"] = 1
        child["branch"] = fork.branch
        self.rules[target] = self.rules[source]
        self.logprob_tokens[target] = self.logprob_tokens[source]
        self.predictions[target], self.owners[target] = (
            self.predictions[source],
            self.owners[source],
        )
        grammar = self.grammars[source]
        self.grammars[target] = None if grammar is None else grammar.fork()
        self.tokens[target, :num_computed] = self.tokens[source, :num_computed]
        self.tokens[target, num_computed] = fork.token_id
        self.block_tables[target] = self.block_tables[source]

    def release(self, rows: Iterable[int]) -> None:
        """Drops the objects of rows without a sequence, which may be large."""
        for row in rows:
            self.rules[row] = self.grammars[row] = None
            self.logprob_tokens[row], self.predictions[row] = (), NO_PREDICTION

    def output(self, row: int, *, num_drafts: int = 0) -> Int32Array:
        """Returns the tokens that a sequence has drawn, and drafts behind them; not a copy."""
        state = self.state[row]
        end = state["num_tokens"] + num_drafts
        drawn: Int32Array = self.tokens[row, state["num_prompt"] : end]
        return drawn

    def _rules(self, new: NewSequence) -> TokenRules | None:
        params = new.params
        lists = (params.logit_bias, params.allowed_token_ids, params.bad_words)
        is_ruled = self._has_grammar(params) or any(map(len, lists))
        if not is_ruled and not params.min_tokens:
            return None
        return make_rules(params, vocab_size=self.vocab_size, eos_token_ids=self._eos_token_ids)

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        if not self._has_grammar(params):
            return None
        return self._compiler.grammar(
            params.structured_output, params.grammar_cost, params.constraint_scope
        )

    @staticmethod
    def _has_grammar(params: SamplingParams) -> bool:
        bounds_reasoning = params.constraint_scope.max_reasoning_tokens is not None
        return params.structured_output is not None or bounds_reasoning


def _array(prediction: Sequence[int]) -> Int32Array:
    """Returns a prediction in little memory: it may be as long as the window."""
    return np.array(prediction, dtype=np.int32) if prediction else NO_PREDICTION


def _taller(array: Int32Array, num_rows: int, *, used: int) -> Int32Array:
    taller = np.zeros((num_rows, array.shape[1]), dtype=array.dtype)
    taller[: len(array), :used] = array[:, :used]  # all columns would touch every page
    return taller
