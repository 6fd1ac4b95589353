"""Finds where a text has the tokens that another one ends with; wraps csrc/matching/matcher.h."""

import ctypes
from ctypes import c_int32, c_void_p
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.native import library

_MIN_CAPACITY = 64


class SbMatcher(ctypes.Structure):
    """Mirrors csrc/matching/matcher.h."""

    _fields_ = (
        ("min_match", c_int32),
        ("max_match", c_int32),
        ("capacity", c_int32),
        ("num_indexed", c_int32),
        ("heads", c_void_p),
        ("links", c_void_p),
    )


class Continuation(NamedTuple):
    """Tokens behind the place of the longest match; none if no place matches."""

    token_ids: list[int]
    num_matched: int
    """Tokens before the place that equal the newest ones."""


class Matcher:
    """The index of a text that grows. Use from one thread at a time."""

    def __init__(self, num_tokens: int, *, min_match: int, max_match: int) -> None:
        """Makes an index of nothing, with room for a text of `num_tokens` and some more."""
        self.capacity = _capacity(num_tokens)
        self._arrays = np.zeros((2, 2, self.capacity), dtype=np.int32)
        heads, links = self._arrays
        self._struct = SbMatcher(
            min_match=min_match,
            max_match=max_match,
            capacity=self.capacity,
            heads=heads.ctypes.data,
            links=links.ctypes.data,
        )
        self._num_matched = c_int32()
        self._following = (c_int32 * 0)()
        self._match = library().sb_match

    @property
    def num_bytes(self) -> int:
        return self._arrays.nbytes

    def find(
        self, text: NDArray[np.int32], newest: NDArray[np.int32], *, most: int
    ) -> Continuation:
        """Returns what follows where the text has the tokens that `newest` ends with.

        Args:
            text: the text of the calls before and what it has grown by; C-contiguous.
            newest: `text` itself, or another one; C-contiguous.
        """
        assert len(text) <= self.capacity
        if most > len(self._following):
            self._following = (c_int32 * most)()
        address = text.ctypes.data
        count = self._match(
            ctypes.byref(self._struct),
            address,
            len(text),
            address if newest is text else newest.ctypes.data,
            len(newest),
            most,
            self._following,
            ctypes.byref(self._num_matched),
        )
        return Continuation(self._following[:count], self._num_matched.value)


def bytes_of_matcher(num_tokens: int) -> int:
    """Returns the memory of a new matcher's index."""
    return 4 * np.dtype(np.int32).itemsize * _capacity(num_tokens)


def _capacity(num_tokens: int) -> int:
    """Returns a power of two with room for a quarter more."""
    return max(_MIN_CAPACITY, 1 << (num_tokens * 5 // 4).bit_length())
