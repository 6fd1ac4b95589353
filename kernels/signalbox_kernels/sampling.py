"""Draws from logits on the CPU, natively: csrc/sampling/sampling.h behind arrays.

Temperature, filters, penalties and rules mean what signalbox_worker/sampling/torch_sampler.py says.
Weights and masses differ from PyTorch's by the rounding of exp and of sums (some 1e-6 of a mass),
so that a draw is the same unless the race, or the edge of a nucleus, is as near as that.
"""

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.filters import Filters
from signalbox_kernels.native import Isa, NativeUnavailable, library, use
from signalbox_kernels.program import Program
from signalbox_kernels.structs import DRAW_ARRAYS, SbDraws

MAX_LOGPROBS = 128


class DrawStatus(IntEnum):
    """Result of sampling a row."""

    DRAWN = 0
    NOT_FINITE = 1
    NONE_LEFT = 2


@dataclass(slots=True, kw_only=True)
class Draws:
    """Rows to draw, or to report with `targets`; C-contiguous. See csrc/sampling/sampling_api.h."""

    logits: NDArray[np.float32]
    """[*, vocab_size]."""
    logits_row: NDArray[np.int64]
    num_logprobs: NDArray[np.int64]
    targets: NDArray[np.int32] | None = None
    keys: NDArray[np.uint64] | None = None
    temperature: NDArray[np.float32] | None = None
    filters: Filters[NDArray[Any]] | None = None
    presence: NDArray[np.float32] | None = None
    frequency: NDArray[np.float32] | None = None
    repetition: NDArray[np.float32] | None = None
    owners: NDArray[np.int64] | None = None
    num_prompt: NDArray[np.int64] | None = None
    num_tokens: NDArray[np.int64] | None = None
    tokens: NDArray[np.int32] | None = None
    suppressed_end: NDArray[np.int32] | None = None
    suppressed: NDArray[np.int32] | None = None
    bias_end: NDArray[np.int32] | None = None
    bias_tokens: NDArray[np.int32] | None = None
    biases: NDArray[np.float32] | None = None
    mask_of_row: NDArray[np.int32] | None = None
    masks: NDArray[np.uint32] | None = None


class Drawn:
    """Results of the rows; fields that a row does not report are undefined."""

    __slots__ = ("drawn", "logprob", "rank", "status", "top_logprobs", "top_tokens")

    def __init__(self, num_rows: int, max_logprobs: int) -> None:
        self.drawn = np.zeros(num_rows, dtype=np.int32)
        self.status = np.empty(num_rows, dtype=np.uint8)
        self.logprob = np.full(num_rows, np.nan, dtype=np.float32)
        self.rank = np.zeros(num_rows, dtype=np.int32)
        self.top_tokens = np.zeros((num_rows, max_logprobs), dtype=np.int32)
        self.top_logprobs = np.zeros((num_rows, max_logprobs), dtype=np.float32)


class NativeSampler:
    """Samples on the threads of a program, or on its own. Use from one thread at a time."""

    def __init__(
        self, *, program: Program | None = None, num_threads: int = 1, isa: Isa | None = None
    ) -> None:
        self._handle: int | None = None
        self._library = library()
        self._program = program  # whose threads must outlive us
        isa = use(isa)
        shared = None if program is None else program.handle
        self._handle = self._library.sb_sampler_new(shared, num_threads, isa)
        if not self._handle:
            raise NativeUnavailable(f"no native sampler on {isa.name}")

    def run(self, draws: Draws) -> Drawn:
        """Samples every row; other Python threads run meanwhile."""
        num_rows = len(draws.logits_row)
        most = max(0, int(draws.num_logprobs.max(initial=0)))
        assert most <= min(MAX_LOGPROBS, draws.logits.shape[1])
        drawn = Drawn(num_rows, most)
        struct = SbDraws(
            num_rows=num_rows,
            vocab_size=draws.logits.shape[1],
            token_stride=0 if draws.tokens is None else draws.tokens.shape[1],
            mask_stride=0 if draws.masks is None else draws.masks.shape[1],
            max_logprobs=most,
            **{name: _address(draws, drawn, name) for name in DRAW_ARRAYS},
        )
        if num_rows and self._library.sb_sampler_run(self._handle, ctypes.byref(struct)):
            raise MemoryError("no memory to draw from logits")
        return drawn

    def __del__(self) -> None:
        if self._handle:
            self._library.sb_sampler_free(self._handle)
            self._handle = None


_RESULTS, _FILTERS = frozenset(Drawn.__slots__), frozenset(Filters._fields)


def _address(draws: Draws, drawn: Drawn, name: str) -> int | None:
    holder: Any = drawn if name in _RESULTS else draws.filters if name in _FILTERS else draws
    array = None if holder is None else getattr(holder, name)
    if array is None:
        return None
    assert array.flags.c_contiguous, name
    return int(array.ctypes.data)
