"""Draws a token for each row of logits, all rows at once, by PyTorch; others must equal it.

The order is vLLM's: tokens that are not allowed and tokens that are suppressed go; biases are
added; penalties come off; temperature divides; min_p, top_k and top_p filter, each what the one
before it left. typical_p comes last, as in transformers. Log probabilities are of the logits before
all that.

A greedy row pays for an argmax alone. A filtered row looks at its likeliest tokens only, more of
them if these do not suffice. Draws are exponential races of counter-based random numbers
(`signalbox_kernels.random`). Tokens that tie with the least likely one that is kept (for typical_p:
with the least typical one) are kept too, so that what is drawn does not depend on the order in
which a sort leaves them. Masses are summed in float64.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_contract.sampling_params import GREEDY_BELOW
from signalbox_kernels.filters import Filters
from signalbox_kernels.random import race_keys
from signalbox_kernels.torch.exponentials import exponentials
from signalbox_kernels.torch.row_ops import is_finite
from signalbox_worker.batch.arrays import Int32Array, Int64Array
from signalbox_worker.batch.batch import BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import SampleRows
from signalbox_worker.batch.sequence_failures import NONE_LEFT
from signalbox_worker.sampling import logits_processors, logprobs
from signalbox_worker.sampling.sampler import NOT_FINITE

_FIRST_CANDIDATES = 256
_ROWS_AT_ONCE = 32  # bounds the memory of whole-vocabulary draws


class TorchSampler:
    """A `Sampler` on any device of PyTorch's."""

    def __init__(self, *, vocab_size: int, device: torch.device) -> None:
        self._vocab = torch.arange(vocab_size, dtype=torch.int32, device=device)
        self._device = device

    def __call__(
        self, logits: Tensor, rows: SampleRows, logits_row: Int64Array | None = None
    ) -> BatchOutput:
        raw = logits.float() if logits_row is None else logits[self._tensor(logits_row)].float()
        bad = np.flatnonzero(~is_finite(raw).cpu().numpy())
        failed = dict.fromkeys(bad.tolist(), NOT_FINITE)
        tokens = raw.argmax(dim=-1)
        needy = rows.is_edited | (rows.temperature >= GREEDY_BELOW)
        if rows.suppressed is not None:
            needy |= rows.suppressed.lengths > 0
        needy[bad] = False
        picked = np.flatnonzero(needy)
        for start in range(0, len(picked), _ROWS_AT_ONCE):
            part = picked[start : start + _ROWS_AT_ONCE]
            tokens[self._tensor(part)] = self._draw(raw, rows, part, failed)
        found: list[Logprobs] = []
        if len((reported := logprobs.reported_rows(rows)).rows):
            index = self._tensor(reported.rows)
            computed = logprobs.compute(raw[index], tokens[index], reported, self._send)
            found = logprobs.read(reported, computed, failed)
        return BatchOutput(
            token_ids=tokens.to(torch.int32).cpu().numpy(), logprobs=found, failed=failed
        )

    def logprobs(
        self, logits: Tensor, targets: Int32Array, num_logprobs: Int64Array
    ) -> list[Logprobs]:
        return logprobs.of_tokens(logits, self._tensor(targets.astype(np.int64)), num_logprobs)

    def _draw(
        self, raw: Tensor, rows: SampleRows, part: Int64Array, failed: dict[int, str]
    ) -> Tensor:
        """Draws for the rows `part`; returns [len(part)] int64. Leaves `raw` as it is."""
        mine = rows.take(part)
        edited = raw[self._tensor(part)]
        logits_processors.edit(edited, mine)
        best, tokens = edited.max(dim=-1)
        empty = part[(best == float("-inf")).cpu().numpy()]
        failed |= dict.fromkeys(empty.tolist(), NONE_LEFT)
        random = np.flatnonzero((mine.temperature >= GREEDY_BELOW) & ~np.isin(part, empty))
        if len(random):
            index = self._tensor(random)
            tokens[index] = self._race(edited[index], mine.take(random))
        return tokens

    def _race(self, logits: Tensor, rows: SampleRows) -> Tensor:
        """Draws from edited logits, which it overwrites; returns [num_rows] int64."""
        scaled = logits.div_(self._tensor(rows.temperature)[:, None])
        weights = scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_()
        keys = race_keys(rows.seed, rows.branch, rows.position)
        filters: Filters[Tensor] = Filters._make(self._send(*rows.filters))
        is_filtered = filters.is_used
        tokens = torch.empty(len(weights), dtype=torch.int64, device=self._device)
        free, bound = (~is_filtered).nonzero().flatten(), is_filtered.nonzero().flatten()
        if free.numel():
            race = exponentials(keys[free.cpu().numpy()], self._vocab)
            tokens[free] = (weights[free] / race).argmax(dim=-1)
        if bound.numel():
            tokens[bound] = _draw_filtered(
                weights[bound], filters.take(bound), keys[bound.cpu().numpy()]
            )
        return tokens

    def _send(self, *arrays: NDArray[np.generic]) -> list[Tensor]:
        return [self._tensor(array) for array in arrays]

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _draw_filtered(weights: Tensor, filters: Filters[Tensor], keys: NDArray[np.uint64]) -> Tensor:
    """Draws from [num_rows, vocab_size] weights whose largest is 1; returns [num_rows] int64."""
    tokens = torch.empty(len(weights), dtype=torch.int64, device=weights.device)
    rows = torch.arange(len(weights), device=weights.device)
    width = max(_FIRST_CANDIDATES, int(filters.top_k.max()) + 1)
    while rows.numel():
        width = min(width, weights.shape[1])
        candidates, token_ids = weights[rows].topk(width)
        kept, is_settled = _keep(candidates, weights[rows], filters.take(rows))
        if width == weights.shape[1]:
            is_settled = torch.ones_like(is_settled)
        done = rows[is_settled]
        kept = _keep_typical(kept[is_settled], filters.typical_p[done])
        token_ids = token_ids[is_settled]
        race = exponentials(keys[done.cpu().numpy()], token_ids.to(torch.int32))
        winner = kept.div_(race).argmax(dim=-1, keepdim=True)
        tokens[done] = token_ids.gather(1, winner).flatten()
        rows, width = rows[~is_settled], width * 16
    return tokens


def _keep(candidates: Tensor, weights: Tensor, filters: Filters[Tensor]) -> tuple[Tensor, Tensor]:
    """Applies all filters but typical_p to the likeliest tokens.

    Args:
        candidates: [num_rows, width], the largest of `weights` in descending order.
        weights: [num_rows, vocab_size].
        filters: of these rows; top_k is less than `width`, or than the vocabulary's size.

    Returns:
        [num_rows, width], `candidates` with 0 for what is filtered out; and [num_rows] bool,
        whether nothing past the candidates is kept.
    """
    floor = filters.min_p[:, None]
    top_k = filters.top_k.clamp(max=candidates.shape[1])[:, None]
    kth = candidates.gather(1, (top_k - 1).clamp(min=0))
    floor = torch.where(top_k > 0, torch.maximum(floor, kth), floor)
    left = torch.where(weights >= floor, weights, 0.0)
    total = left.sum(dim=-1, keepdim=True, dtype=torch.float64)
    before = candidates.cumsum(dim=-1, dtype=torch.float64) - candidates
    top_p = filters.top_p[:, None].double()
    in_nucleus = (before < top_p * total) | (top_p >= 1.0)
    in_nucleus[:, 0] = True
    least = torch.where(in_nucleus, candidates, float("inf")).amin(dim=-1, keepdim=True)
    floor = torch.maximum(floor, least)
    kept = torch.where(candidates >= floor, candidates, 0.0)
    return kept, (candidates[:, -1:] < floor).flatten()


def _keep_typical(kept: Tensor, typical_p: Tensor) -> Tensor:
    """Keeps the mass of tokens whose information is nearest to the expected (Meister et al., 2022).

    Args:
        kept: [num_rows, width] weights, 0 for what is filtered out already.
        typical_p: [num_rows]; from 1 on everything is kept.
    """
    if not (typical_p < 1.0).any():
        return kept
    is_there = kept > 0
    wide = kept.double()
    logs = torch.where(is_there, wide.log(), 0.0)
    total = wide.sum(dim=-1, keepdim=True)
    mean = (wide * logs).sum(dim=-1, keepdim=True) / total
    distance = torch.where(is_there, (logs - mean).abs(), float("inf"))
    nearest, order = distance.sort(dim=-1)
    sorted_weights = wide.gather(1, order)
    before = sorted_weights.cumsum(dim=-1) - sorted_weights
    mass = typical_p[:, None].double()
    in_set = (before < mass * total) & nearest.isfinite()
    farthest = torch.where(in_set, nearest, float("-inf")).amax(dim=-1, keepdim=True)
    return torch.where((distance <= farthest) | (mass >= 1.0), kept, 0.0)
