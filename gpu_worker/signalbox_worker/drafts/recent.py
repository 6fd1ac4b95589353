"""Drafts from recent outputs: what followed the newest tokens in earlier answers of the same owner.

An owner is a tenant with its cache salt and adapter, under an opaque name. Outputs of an owner are
looked up only for the same owner.
"""

from collections import OrderedDict
from itertools import takewhile

import numpy as np

from signalbox_contract.sections.drafts import DraftSource
from signalbox_kernels.matching import Continuation, Matcher, bytes_of_matcher
from signalbox_kernels.native import library
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.drafts.proposer import (
    NO_DRAFTS,
    DraftAsk,
    Drafts,
    EndedSequence,
    NoProposer,
)

LEAST_MATCH = 4
"""Least number of newest tokens that must occur in a recent output, even if the settings say less:
other answers mostly continue two or three equal tokens in another way."""
CONTEXT = 16
"""Tokens that are kept before an output, or the rest of one, so that its first can be drafted."""
_LEAST_TOKENS = 768
"""Room of an owner's first text; its index takes the least memory for three times a power of 2."""
_END = -1
"""Separates outputs; no token has this id."""


class RecentText:
    """All outputs of one owner as one text, with its index."""

    def __init__(self, capacity: int, first: Int32Array, config: SpeculationConfig) -> None:
        self._tokens: Int32Array = np.empty(capacity, dtype=np.int32)
        self._num_tokens = 0
        least = min(max(LEAST_MATCH, config.min_match), config.max_match)
        self._matcher = Matcher(capacity, min_match=least, max_match=config.max_match)
        self.append(first)

    @property
    def num_bytes(self) -> int:
        return self._tokens.nbytes + self._matcher.num_bytes

    @property
    def tokens(self) -> Int32Array:
        return self._tokens[: self._num_tokens]

    def has_room(self, num_tokens: int) -> bool:
        return self._num_tokens + num_tokens <= len(self._tokens)

    def append(self, tokens: Int32Array) -> None:
        end = self._num_tokens + len(tokens)
        self._tokens[self._num_tokens : end] = tokens
        self._num_tokens = end

    def find(self, newest: Int32Array, *, most: int) -> Continuation:
        return self._matcher.find(self.tokens, newest, most=most)


class RecentOutputs:
    """The texts of all owners, bounded in memory: the least recently used text is dropped first."""

    def __init__(self, config: SpeculationConfig) -> None:
        """Raises NativeUnavailable."""
        library()
        self._config = config
        self._texts: OrderedDict[bytes, RecentText] = OrderedDict()  # least recently used first
        self.num_bytes = 0

    def get(self, owner: bytes) -> RecentText | None:
        text = self._texts.get(owner)
        if text is not None:
            self._texts.move_to_end(owner)
        return text

    def add(self, owner: bytes, output: Int32Array) -> None:
        """Appends an output to its owner's text. A text that is full and may not grow loses its
        older half."""
        output = np.append(output, np.int32(_END))
        text = self._texts.pop(owner, None)
        if text is not None:
            self.num_bytes -= text.num_bytes
        if text is None:
            text = self._make(output)
        elif text.has_room(len(output)):
            text.append(output)
        else:
            text = self._make(np.concatenate([text.tokens, output]))
        self._texts[owner] = text
        self.num_bytes += text.num_bytes
        while self.num_bytes > self._config.recent_bytes:
            _, oldest = self._texts.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    def _make(self, tokens: Int32Array) -> RecentText:
        capacity = _LEAST_TOKENS
        while capacity <= len(tokens) and _bytes_of(2 * capacity) <= self._config.recent_bytes:
            capacity *= 2
        if capacity < len(tokens):
            tokens = tokens[-capacity // 2 :]
        return RecentText(capacity, tokens, self._config)


def _bytes_of(capacity: int) -> int:
    return capacity * np.dtype(np.int32).itemsize + bytes_of_matcher(capacity)


LEAST_BYTES = _bytes_of(_LEAST_TOKENS)
"""Memory of the text of one owner."""


class RecentProposer(NoProposer):
    """Looks for the newest tokens of a sequence in recent outputs of its owner."""

    def __init__(self, outputs: RecentOutputs) -> None:
        self._outputs = outputs

    def propose_one(self, ask: DraftAsk) -> Drafts:
        text = self._outputs.get(ask.owner)
        if text is None:
            return NO_DRAFTS
        found = text.find(ask.token_ids, most=ask.most)
        token_ids = [*takewhile(lambda token_id: token_id != _END, found.token_ids)]
        return Drafts(token_ids, DraftSource.RECENT, found.num_matched)

    def learn(self, ended: EndedSequence) -> None:
        if ended.owner and len(ended.token_ids) > ended.num_received:
            first = max(0, ended.num_received - CONTEXT)
            self._outputs.add(ended.owner, ended.token_ids[first:])
