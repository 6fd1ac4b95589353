"""Drafts from the sequence itself: what followed an earlier occurrence of its newest tokens."""

from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.drafts.matcher_pool import MatcherPool
from signalbox_worker.drafts.proposer import NO_DRAFTS, DraftAsk, Drafts, NoProposer


class TextProposer(NoProposer):
    """Looks for the newest tokens of a sequence in its prompt and its output."""

    def __init__(self, matchers: MatcherPool) -> None:
        self._matchers = matchers

    def propose_one(self, ask: DraftAsk) -> Drafts:
        matcher = self._matchers.get((DraftSource.TEXT, ask.seq_id), len(ask.token_ids))
        if matcher is None:
            return NO_DRAFTS
        found = matcher.find(ask.token_ids, ask.token_ids, most=ask.most)
        return Drafts(found.token_ids, DraftSource.TEXT, found.num_matched)

    def forget(self, seq_id: int) -> None:
        self._matchers.forget((DraftSource.TEXT, seq_id))
