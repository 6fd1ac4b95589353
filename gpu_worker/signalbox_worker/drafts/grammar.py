"""Drafts of what a sequence's structured output leaves no choice of."""

import sys

from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.drafts.proposer import NO_DRAFTS, DraftAsk, Drafts, NoProposer

_CERTAIN = sys.maxsize


class GrammarProposer(NoProposer):
    """Keeps nothing: the state of a sequence in its constraint comes with it."""

    def propose(self, ask: DraftAsk) -> Drafts:
        if ask.grammar is None:
            return NO_DRAFTS
        forced = ask.grammar.forced(ask.token_ids[ask.num_prompt :])
        return Drafts(forced[: ask.most], DraftSource.GRAMMAR, _CERTAIN) if forced else NO_DRAFTS
