"""The interface of a source of drafts.

Drafts change no output: each is kept only if it equals the token that is drawn at its position. A
source may therefore guess, and wrong guesses only cost time. Packages may add sources, see
packages.py.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

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
    owner: bytes = b""
    """Opaque name of the tenant, cache salt and adapter. Tokens of a sequence may be proposed only
    to sequences with the same name; if it is empty, to no other sequence."""


class EndedSequence(NamedTuple):
    """A sequence that leaves the worker: it has ended, or continues later or elsewhere."""

    seq_id: int
    token_ids: Int32Array
    """Its tokens; not to be kept. The last ones may have been drawn after its end."""
    num_prompt: int
    owner: bytes
    """Name of the owner, as in `DraftAsk`."""
    num_received: int
    """Tokens that it came with: its prompt, and what was drawn before it was preempted or moved."""


class Drafts(NamedTuple):
    """Tokens that are expected to follow."""

    token_ids: Sequence[int]
    source: DraftSource = DraftSource.PACKAGE
    num_matched: int = 0
    """Number of the newest known tokens that match the text before the drafts. A chain takes the
    source with the longest match."""


NO_DRAFTS = Drafts((), DraftSource.TEXT)


@runtime_checkable
class Proposer(Protocol):
    """A source of drafts. Used on the execution thread alone."""

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        """Returns the drafts of each sequence of a step: at most `most` of its ask, or none.

        Called in steps that allow drafts, which wait for it. It is also called now and then for a
        sequence that had none; drafts are then computed in a later step.
        """

    def learn(self, ended: EndedSequence) -> None:
        """Learns from a sequence that leaves, before it is forgotten."""

    def forget(self, seq_id: int) -> None:
        """Drops all data about a sequence."""


class NoProposer:
    """Proposes nothing; the base class of sources that look at one sequence at a time."""

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        return [self.propose_one(ask) for ask in asks]

    def propose_one(self, ask: DraftAsk) -> Drafts:
        """Returns the drafts of one sequence."""
        return NO_DRAFTS

    def learn(self, ended: EndedSequence) -> None:
        pass

    def forget(self, seq_id: int) -> None:
        pass


NO_PROPOSER: Proposer = NoProposer()
