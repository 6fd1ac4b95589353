"""Draws a token for each row of logits, all rows at once.

The order is vLLM's: suppressed tokens, temperature, min_p, top_k, top_p. A greedy row pays for an
argmax alone. A filtered row looks at its likeliest tokens only, more of them if these do not
suffice. Draws are exponential races of counter-based random numbers (`signalbox_kernels.random`).

Tokens that tie with the least likely one that is kept are kept too, so that what is drawn does not
depend on the order in which a sort leaves them.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.step import Int64Array, Logprobs, SampleRows, Samples
from signalbox_kernels.ops import is_finite
from signalbox_kernels.random import exponentials, race_keys

GREEDY_BELOW = 1e-5
_FIRST_CANDIDATES = 256
_ROWS_AT_ONCE = 32  # bounds the memory of whole-vocabulary draws


class _Filters(NamedTuple):
    """Filters of some rows; all [num_rows]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def take(self, rows: Tensor) -> "_Filters":
        return _Filters(*(column[rows] for column in self))


class Sampler:
    """Draws from logits of one vocabulary on one device."""

    def __init__(self, *, vocab_size: int, device: torch.device) -> None:
        self._vocab = torch.arange(vocab_size, dtype=torch.int32, device=device)
        self._device = device

    def __call__(self, logits: Tensor, rows: SampleRows) -> Samples:
        """Draws one token a row from [num_rows, vocab_size] logits."""
        raw = logits.float()
        bad = np.nonzero(~is_finite(raw).cpu().numpy())[0].tolist()
        failed = dict.fromkeys(bad, "logits are not finite")
        allowed = _suppress(raw, rows.suppressed, failed)
        tokens = allowed.argmax(dim=-1)
        random = np.nonzero(rows.temperature >= GREEDY_BELOW)[0]
        random = random[~np.isin(random, list(failed))]
        for start in range(0, len(random), _ROWS_AT_ONCE):
            part = random[start : start + _ROWS_AT_ONCE]
            tokens[self._tensor(part)] = self._draw(allowed, rows, part)
        return Samples(
            token_ids=tokens.to(torch.int32).cpu().numpy(),
            logprobs=_logprobs(raw, tokens, rows.num_logprobs, failed),
            failed=failed,
        )

    def _draw(self, logits: Tensor, rows: SampleRows, part: Int64Array) -> Tensor:
        """Draws for the rows `part`; returns [len(part)] int64."""
        temperature = self._tensor(rows.temperature[part])
        scaled = logits[self._tensor(part)].div_(temperature[:, None])
        weights = scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_()
        keys = race_keys(rows.seed[part], rows.branch[part], rows.position[part])
        filters = self._filters(rows, part)
        filtered = _is_filtered(filters, weights.shape[1])
        if not filtered.any():
            return weights.div_(exponentials(keys, self._vocab)).argmax(dim=-1)
        tokens = torch.empty(len(part), dtype=torch.int64, device=self._device)
        free, bound = (~filtered).nonzero().flatten(), filtered.nonzero().flatten()
        if free.numel():
            race = exponentials(keys[free.cpu().numpy()], self._vocab)
            tokens[free] = (weights[free] / race).argmax(dim=-1)
        tokens[bound] = _draw_filtered(
            weights[bound], filters.take(bound), keys[bound.cpu().numpy()]
        )
        return tokens

    def _filters(self, rows: SampleRows, part: Int64Array) -> _Filters:
        return _Filters(
            *(self._tensor(column[part]) for column in (rows.top_k, rows.top_p, rows.min_p))
        )

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _suppress(
    raw: Tensor, suppressed: dict[int, tuple[int, ...]], failed: dict[int, str]
) -> Tensor:
    """Takes tokens out of rows; leaves `raw` as it is."""
    if not suppressed:
        return raw
    allowed = raw.clone()
    for row, token_ids in suppressed.items():
        allowed[row, list(token_ids)] = float("-inf")
        if row not in failed and allowed[row].max() == float("-inf"):
            failed[row] = "every token is suppressed"
    return allowed


def _is_filtered(filters: _Filters, vocab_size: int) -> Tensor:
    limited = (filters.top_k > 0) & (filters.top_k < vocab_size)
    return limited | (filters.top_p < 1.0) | (filters.min_p > 0.0)


def _draw_filtered(weights: Tensor, filters: _Filters, keys: NDArray[np.uint64]) -> Tensor:
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
        token_ids = token_ids[is_settled]
        race = exponentials(keys[done.cpu().numpy()], token_ids.to(torch.int32))
        winner = kept[is_settled].div_(race).argmax(dim=-1, keepdim=True)
        tokens[done] = token_ids.gather(1, winner).flatten()
        rows, width = rows[~is_settled], width * 16
    return tokens


def _keep(candidates: Tensor, weights: Tensor, filters: _Filters) -> tuple[Tensor, Tensor]:
    """Applies filters to the likeliest tokens.

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
    total = torch.where(weights >= floor, weights, 0.0).sum(dim=-1, keepdim=True)
    before = candidates.cumsum(dim=-1) - candidates
    top_p = filters.top_p[:, None]
    in_nucleus = (before < top_p * total) | (top_p >= 1.0)
    in_nucleus[:, 0] = True
    least = torch.where(in_nucleus, candidates, float("inf")).amin(dim=-1, keepdim=True)
    floor = torch.maximum(floor, least)
    kept = torch.where(candidates >= floor, candidates, 0.0)
    return kept, (candidates[:, -1:] < floor).flatten()


def _logprobs(
    raw: Tensor, tokens: Tensor, num_logprobs: dict[int, int], failed: dict[int, str]
) -> list[Logprobs]:
    wanted = {row: count for row, count in num_logprobs.items() if row not in failed}
    if not wanted:
        return []
    rows = torch.tensor(list(wanted), device=raw.device)
    table = raw[rows].log_softmax(dim=-1)
    drawn = table.gather(1, tokens[rows, None])
    ranks = (table >= drawn).sum(dim=-1).tolist()
    top = table.topk(min(max(wanted.values()), table.shape[1]))
    columns = zip(
        wanted.items(),
        drawn.flatten().tolist(),
        ranks,
        top.indices.tolist(),
        top.values.tolist(),
        strict=True,
    )
    return [
        Logprobs(row, logprob, rank, ids[:count], values[:count])
        for (row, count), logprob, rank, ids, values in columns
    ]
