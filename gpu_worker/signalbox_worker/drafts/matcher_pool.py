"""The indices of the texts that drafts come from, within a bound on their memory."""

from collections import OrderedDict
from typing import NamedTuple

from signalbox_contract.sections.drafts import DraftSource
from signalbox_kernels.matching import Matcher, bytes_of_matcher
from signalbox_kernels.native import library
from signalbox_worker.config import SpeculationConfig

_IDLE_USES = 1024
"""Uses of other matchers after which an unused one may be dropped for its memory. A step uses those
of all its sequences, so that running sequences do not evict each other's."""

MatcherKey = tuple[DraftSource, int]
"""Source and sequence."""


class _Kept(NamedTuple):
    matcher: Matcher
    last_use: int


class MatcherPool:
    """A matcher for each text. A text has none while memory is short and all others are in use."""

    def __init__(self, config: SpeculationConfig) -> None:
        """Raises NativeUnavailable."""
        library()
        self._most_bytes = config.matcher_bytes
        self._min_match = config.min_match
        self.max_match = config.max_match
        self._kept: OrderedDict[MatcherKey, _Kept] = OrderedDict()  # least recently used first
        self._num_uses = 0
        self.num_bytes = 0

    def get(self, key: MatcherKey, num_tokens: int) -> Matcher | None:
        """Returns the matcher of a text of `num_tokens`. It is empty if the text had none, or has
        outgrown it."""
        self._num_uses += 1
        kept = self._kept.get(key)
        matcher = None if kept is None else kept.matcher
        if matcher is None or matcher.capacity < num_tokens:
            self.forget(key)
            matcher = self._make(num_tokens)
        if matcher is not None:
            self._kept[key] = _Kept(matcher, self._num_uses)
            self._kept.move_to_end(key)
        return matcher

    def forget(self, key: MatcherKey) -> None:
        if kept := self._kept.pop(key, None):
            self.num_bytes -= kept.matcher.num_bytes

    def _make(self, num_tokens: int) -> Matcher | None:
        num_bytes = bytes_of_matcher(num_tokens)
        if num_bytes > self._most_bytes:
            return None
        while self.num_bytes + num_bytes > self._most_bytes:
            oldest, kept = next(iter(self._kept.items()))
            if self._num_uses - kept.last_use <= _IDLE_USES:
                return None
            self.forget(oldest)
        self.num_bytes += num_bytes
        return Matcher(num_tokens, min_match=self._min_match, max_match=self.max_match)
