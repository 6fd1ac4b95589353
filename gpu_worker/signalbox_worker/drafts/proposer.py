"""The interface of a source of drafts.

Drafts change no output: each is kept only if it equals the token that is drawn at its position. A
source may therefore guess, and bad guesses only cost time.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.sampling.compiled_grammar import Grammar

NO_PREDICTION: Int32Array = np.empty(0, dtype=np.int32)


class DraftAsk(NamedTuple):
    """A sequence that may compute drafts."""

    seq_id: int
    token_ids: Int32Array
    """Known tokens, the newest last; C-contiguous, and not to be kept."""
    num_prompt: int
    most: int
    """Most drafts, at least 1."""
    prediction: Int32Array
    """Tokens that the client expects as the output; empty if the request names none."""
    grammar: Grammar | None
    """State of the sequence in its grammar, which has read known tokens alone."""


class Drafts(NamedTuple):
    """Tokens that are expected to follow."""

    token_ids: Sequence[int]
    source: DraftSource
    num_matched: int = 0
    """Newest known tokens that match the place from which the drafts were read. A chain takes the
    source with the longest match."""


NO_DRAFTS = Drafts((), DraftSource.TEXT)


class Proposer(Protocol):
    """A source of drafts. Used on the execution thread alone."""

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        """Returns the drafts of each sequence of a step: at most `most` of its ask, or none."""

    def forget(self, seq_id: int) -> None:
        """Drops what is kept of a sequence, if anything."""


class NoProposer:
    """Proposes nothing; the base class of sources that look at one sequence at a time."""

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        return [self.propose_one(ask) for ask in asks]

    def propose_one(self, ask: DraftAsk) -> Drafts:
        """Returns the drafts of one sequence."""
        return NO_DRAFTS

    def forget(self, seq_id: int) -> None:
        pass


NO_PROPOSER: Proposer = NoProposer()
