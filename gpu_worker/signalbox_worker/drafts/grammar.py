"""Drafts from a grammar, where it admits one token alone."""

import sys

from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.drafts.proposer import NO_DRAFTS, DraftAsk, Drafts, NoProposer

_CERTAIN = sys.maxsize


class GrammarProposer(NoProposer):
    """Keeps nothing of a sequence, since the state of its grammar is part of what is asked."""

    def propose_one(self, ask: DraftAsk) -> Drafts:
        if ask.grammar is None:
            return NO_DRAFTS
        forced = ask.grammar.forced(ask.token_ids[ask.num_prompt :])
        return Drafts(forced[: ask.most], DraftSource.GRAMMAR, _CERTAIN) if forced else NO_DRAFTS
