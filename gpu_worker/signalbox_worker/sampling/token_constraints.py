"""Which tokens a sequence may draw, and whose logits are shifted: prepared once, packed each step.

Bad words follow transformers: a run of tokens is never completed, wherever in the sequence, prompt
included, it began.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.batch.arrays import FloatArray, Int32Array, Int64Array
from signalbox_worker.batch.sampling_rows import AllowedTokens, Biases, TokenRuns, token_runs

Mask = NDArray[np.uint32]


class BadWords(NamedTuple):
    """Runs of tokens: what must stand how far before the drawn token for a run's last to be bad."""

    last: Int32Array
    """[num_runs], the last token of each run."""
    num_before: Int64Array
    """[num_runs], tokens of each run before the last."""
    before: Int32Array
    """[sum(num_before)]."""
    distance: Int64Array
    """[sum(num_before)], from the drawn token back; the token next to it is at 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Rules of one sequence."""

    end_token_ids: Int32Array
    """Stop tokens and, though it may be ignored as a stop, the model's end of a sequence."""
    bias_token_ids: Int32Array
    biases: FloatArray
    allowed: Mask | None
    bad_words: BadWords | None

    @property
    def always_apply(self) -> bool:
        """True if a rule applies to every token, beside min_tokens, which only delays the end."""
        has_words = self.bad_words is not None
        return has_words or self.allowed is not None or len(self.bias_token_ids) > 0


def make_rules(
    params: SamplingParams, *, vocab_size: int, eos_token_ids: Sequence[int] = ()
) -> TokenRules:
    """Prepares what the parameters of a sequence ask for."""
    bias = params.logit_bias
    return TokenRules(
        end_token_ids=np.array(
            list(dict.fromkeys((*params.stop_token_ids, *eos_token_ids))), dtype=np.int32
        ),
        bias_token_ids=np.array([token_id for token_id, _ in bias], dtype=np.int32),
        biases=np.array([value for _, value in bias], dtype=np.float32),
        allowed=make_mask(params.allowed_token_ids, vocab_size=vocab_size)
        if len(params.allowed_token_ids)
        else None,
        bad_words=_bad_words(params.bad_words) if params.bad_words else None,
    )


def make_mask(token_ids: Sequence[int] | Int32Array, *, vocab_size: int) -> Mask:
    """Returns the mask of some tokens, as AllowedTokens holds it."""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[np.asarray(token_ids, dtype=np.int64)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def is_allowed(mask: Mask, token_id: int) -> bool:
    return bool(mask[token_id // 32] >> np.uint32(token_id % 32) & np.uint32(1))


def _bad_words(runs: Sequence[Sequence[int]]) -> BadWords:
    return BadWords(
        last=np.array([run[-1] for run in runs], dtype=np.int32),
        num_before=np.array([len(run) - 1 for run in runs], dtype=np.int64),
        before=np.array([token_id for run in runs for token_id in run[:-1]], dtype=np.int32),
        distance=np.array([d for run in runs for d in range(len(run) - 1, 0, -1)], dtype=np.int64),
    )


class RuledRows(NamedTuple):
    """The draws that rules apply to; all fields have one length."""

    rules: Sequence[TokenRules]
    rows: Int64Array
    """Index of each among the draws of the batch."""
    is_starved: NDArray[np.bool_]
    """True if min_tokens keeps a draw from ending its sequence."""
    owners: Int64Array
    """Row of each draw's sequence in `tokens`."""
    position: Int64Array


def suppressed(ruled: RuledRows, *, tokens: Int32Array, num_rows: int) -> TokenRuns | None:
    """Returns the tokens that must not be drawn now.

    Args:
        tokens: [*, longest sequence], the known tokens of sequences.
        num_rows: draws of the batch.
    """
    early = [
        (row, rules.end_token_ids)
        for row, rules, starved in zip(ruled.rows, ruled.rules, ruled.is_starved, strict=True)
        if starved
    ]
    rows = [np.full(len(token_ids), row, dtype=np.int64) for row, token_ids in early]
    token_ids = [end_token_ids for _, end_token_ids in early]
    has_words = np.array([rules.bad_words is not None for rules in ruled.rules], dtype=np.bool_)
    if has_words.any():
        index, words = _completed(ruled, np.flatnonzero(has_words), tokens)
        rows.append(ruled.rows[index])
        token_ids.append(words)
    if not sum(map(len, rows)):
        return None
    return token_runs(np.concatenate(rows), np.concatenate(token_ids), num_rows)[0]


def _completed(
    ruled: RuledRows, index: Int64Array, tokens: Int32Array
) -> tuple[Int64Array, Int32Array]:
    """Returns indices into `ruled`, and for each the token that would complete a run."""
    words = [found for i in index.tolist() if (found := ruled.rules[i].bad_words) is not None]
    of_run = np.repeat(index, [len(one.last) for one in words])
    num_before = np.concatenate([one.num_before for one in words])
    run_of_check = np.repeat(np.arange(len(of_run)), num_before)
    of_check = of_run[run_of_check]
    position = ruled.position[of_check] - np.concatenate([one.distance for one in words])
    there = tokens[ruled.owners[of_check], np.maximum(position, 0)]
    differs = (position < 0) | (there != np.concatenate([one.before for one in words]))
    is_complete = np.bincount(run_of_check[differs], minlength=len(of_run)) == 0
    last = np.concatenate([one.last for one in words])
    return of_run[is_complete], last[is_complete]


def biases(ruled: RuledRows, *, num_rows: int) -> Biases | None:
    lengths = [len(rules.bias_token_ids) for rules in ruled.rules]
    if not sum(lengths):
        return None
    token_ids = np.concatenate([rules.bias_token_ids for rules in ruled.rules])
    values = np.concatenate([rules.biases for rules in ruled.rules])
    runs, order = token_runs(np.repeat(ruled.rows, lengths), token_ids, num_rows)
    return Biases(runs, values[order])


def allowed(
    ruled: RuledRows, *, grammar_masks: Sequence[Mask | None], num_rows: int
) -> AllowedTokens | None:
    """Returns the masks of the rows that have one.

    Args:
        grammar_masks: one for each of `ruled`, None where no grammar rules.
    """
    pairs = zip(ruled.rules, grammar_masks, strict=True)
    masks = [_both(rules.allowed, mask) for rules, mask in pairs]
    masked = [(row, mask) for row, mask in zip(ruled.rows, masks, strict=True) if mask is not None]
    if not masked:
        return None
    mask_of_row = np.full(num_rows, -1, dtype=np.int32)
    mask_of_row[[row for row, _ in masked]] = np.arange(len(masked))
    return AllowedTokens(mask_of_row, np.stack([mask for _, mask in masked]))


def _both(first: Mask | None, second: Mask | None) -> Mask | None:
    if first is None or second is None:
        return first if second is None else second
    return first & second
