"""Tries a backend at the sizes of a server, and times it there: what `auto` compares.

Many sequences have a context of their own, so that no decode finds its keys in the device's cache.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.device.trials.device_clock import Clock
from signalbox_worker.models.attention.backend import AttentionBackend, AttentionShape
from signalbox_worker.models.attention.backend_check import PlainAttention
from signalbox_worker.models.attention.trial_batches import Span, consecutive_blocks, trial_batch

_MOST_BYTES = 1 << 29
_NUM_CHECKED = 16
"""Last queries of a prefill that are compared: PyTorch holds all scores of a query."""
_NUM_ALONE = 16
"""Sequences that decode one by one in one timing."""


@dataclass(frozen=True, slots=True)
class Load:
    """Sequences that decode together, and the tokens of each."""

    num_seqs: int
    context: int


def load_for(shape: AttentionShape) -> Load:
    """Returns 64 sequences of 2,048 tokens, or shorter ones where those are over 512 MiB."""
    token_bytes = shape.block_bytes // shape.block_size
    return Load(64, min(2048, max(256, _MOST_BYTES // (64 * token_bytes))))


def try_under_load(
    backend: AttentionBackend, shape: AttentionShape, load: Load, clock: Clock
) -> tuple[float, dict[str, float]]:
    """Returns the largest difference from plain PyTorch, and the seconds of each kind of work."""
    trial = _LoadTrial(backend, shape, load)
    worst = float(np.max([*trial.prefill_differences(), *trial.decode_differences()]))
    alone = range(min(_NUM_ALONE, load.num_seqs))
    decodes = [trial.decode([seq]) for seq in alone]

    def decode_alone() -> None:
        for decode in decodes:
            decode()

    return worst, {
        "decode of 1": clock(decode_alone) / len(alone),
        f"decode of {load.num_seqs}": clock(trial.decode(range(load.num_seqs))),
        f"prefill of {load.context - 1}": clock(trial.prefill(0)),
    }


class _LoadTrial:
    """A backend and plain PyTorch with the same K and V."""

    def __init__(self, backend: AttentionBackend, shape: AttentionShape, load: Load) -> None:
        self._backend, self._shape = backend, shape
        self._prompt_len, self._layers = load.context - 1, range(shape.num_layers)
        self._tables = consecutive_blocks([load.context] * load.num_seqs, shape.block_size)
        num_blocks, device = sum(map(len, self._tables)), shape.device
        pool = torch.zeros(num_blocks, backend.block_bytes, dtype=torch.uint8, device=device)
        backend.bind(pool)
        self._plain = PlainAttention(shape, num_blocks)
        self._generator = torch.Generator(device).manual_seed(0)
        self._query = self._random(load.context, shape.num_heads)
        self._key_value = self._random(load.context, 2, shape.num_kv_heads)

    def _random(self, *sizes: int) -> Tensor:
        out = torch.empty(*sizes, self._shape.head_size, device=self._shape.device)
        return out.normal_(generator=self._generator).to(self._shape.dtype)

    def prefill_differences(self) -> Iterator[float]:
        """Fills both caches, sequence by sequence; compares the last queries of each."""
        last = slice(max(0, self._prompt_len - _NUM_CHECKED), self._prompt_len)
        for table in self._tables:
            batch = self._batch(0, self._prompt_len, table)
            end = self._batch(last.start, last.stop, table)
            plan, query = self._backend.plan(batch), self._query[: self._prompt_len]
            for layer in self._layers:
                key_value = self._random(self._prompt_len, 2, self._shape.num_kv_heads)
                out = plan(query, key_value, layer=layer)[last]
                self._plain.store(batch, key_value, layer=layer)
                expected = self._plain.attend(end, query[last], key_value[last], layer=layer)
                yield float((out - expected).abs().max())

    def decode_differences(self) -> Iterator[float]:
        """Decodes all sequences together."""
        batch = self._batch(self._prompt_len, self._prompt_len + 1, *self._tables)
        plan, num_seqs = self._backend.plan(batch), len(self._tables)
        query, key_value = self._query[:num_seqs], self._key_value[:num_seqs]
        for layer in self._layers:
            out = plan(query, key_value, layer=layer)
            expected = self._plain.attend(batch, query, key_value, layer=layer)
            yield float((out - expected).abs().max())

    def prefill(self, seq: int) -> Callable[[], None]:
        """Returns the work of computing a prompt in each kind of layer."""
        return self._work(self._batch(0, self._prompt_len, self._tables[seq]))

    def decode(self, seqs: Sequence[int]) -> Callable[[], None]:
        """Returns the work of a step in which sequences decode, in each kind of layer."""
        tables = [self._tables[seq] for seq in seqs]
        return self._work(self._batch(self._prompt_len, self._prompt_len + 1, *tables))

    def _work(self, batch: Batch) -> Callable[[], None]:
        plan, num_tokens = self._backend.plan(batch), len(batch.token_ids)
        query, key_value = self._query[:num_tokens], self._key_value[:num_tokens]

        def work() -> None:
            for layer in self._layers:
                plan(query, key_value, layer=layer)

        return work

    def _batch(self, start: int, end: int, *tables: Int64Array) -> Batch:
        return trial_batch(self._shape, [Span(start, end, table) for table in tables])
