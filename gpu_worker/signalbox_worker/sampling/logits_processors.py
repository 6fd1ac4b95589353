"""Changes logits before a draw, by PyTorch: allowed tokens, suppressed tokens, biases, penalties.

Penalties are vLLM's and transformers': the repetition penalty divides the positive logits of
tokens that the prompt or the output has, and multiplies the negative ones; then the frequency
penalty comes off for each time that the output has a token, and the presence penalty once.
"""

import numpy as np
import torch
from torch import Tensor

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.sampling_rows import (
    AllowedTokens,
    Biases,
    Penalties,
    SampleRows,
    TokenRuns,
)

_NOT_ALLOWED = float("-inf")


def edit(logits: Tensor, rows: SampleRows) -> None:
    """Applies the changes of `rows` to [num_rows, vocab_size] float32 logits, in place."""
    if rows.allowed is not None:
        _mask(logits, rows.allowed)
    if rows.suppressed is not None:
        _suppress(logits, rows.suppressed)
    if rows.biases is not None:
        _add(logits, rows.biases)
    if rows.penalties is not None:
        picked = np.flatnonzero(rows.penalties.is_used)
        if len(picked):
            index = torch.from_numpy(picked).to(logits.device)
            penalties = rows.penalties.take(picked)
            logits[index] = _penalised(logits[index], penalties, rows.position[picked])


def _mask(logits: Tensor, allowed: AllowedTokens) -> None:
    masked = np.flatnonzero(allowed.mask_of_row >= 0)
    words = allowed.masks[allowed.mask_of_row[masked]]
    bits = np.unpackbits(words.astype("<u4").view(np.uint8), axis=1, bitorder="little")
    is_allowed = torch.from_numpy(bits[:, : logits.shape[1]].astype(np.bool_)).to(logits.device)
    index = torch.from_numpy(masked).to(logits.device)
    logits[index] = logits[index].masked_fill_(~is_allowed, _NOT_ALLOWED)


def _suppress(logits: Tensor, runs: TokenRuns) -> None:
    rows, token_ids = _indices(runs, logits.device)
    logits[rows, token_ids] = _NOT_ALLOWED


def _add(logits: Tensor, biases: Biases) -> None:
    rows, token_ids = _indices(biases.runs, logits.device)
    logits[rows, token_ids] += torch.from_numpy(biases.values).to(logits.device)


def _indices(runs: TokenRuns, device: torch.device) -> tuple[Tensor, Tensor]:
    token_ids = torch.from_numpy(runs.token_ids.astype(np.int64))
    return torch.from_numpy(runs.rows).to(device), token_ids.to(device)


def _penalised(logits: Tensor, penalties: Penalties, position: Int64Array) -> Tensor:
    seen, counts = _counts(penalties, position, like=logits)
    presence, frequency, repetition = (
        torch.from_numpy(column).to(logits.device)[:, None] for column in penalties[:3]
    )
    weaker = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, weaker, logits)
    return logits - frequency * counts - presence * (counts > 0)


def _counts(penalties: Penalties, position: Int64Array, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """Returns which tokens a row has seen, and how often each is in its output, like `like`."""
    num_rows, vocab_size = like.shape
    width = int(position.max())
    columns = np.arange(width)
    token_ids = penalties.tokens[penalties.owners, :width].astype(np.int64)
    token_ids[columns >= position[:, None]] = vocab_size  # past the end: a column that is dropped
    known = torch.from_numpy(token_ids).to(like.device)
    is_output = torch.from_numpy(columns >= penalties.num_prompt[:, None]).to(like.device)
    seen = torch.zeros(num_rows, vocab_size + 1, dtype=torch.bool, device=like.device)
    seen.scatter_(1, known, torch.ones_like(known, dtype=torch.bool))
    counts = torch.zeros(num_rows, vocab_size + 1, dtype=like.dtype, device=like.device)
    counts.scatter_add_(1, known, is_output.to(like.dtype))
    return seen[:, :vocab_size], counts[:, :vocab_size]
