"""A proposer that knows what sequences will draw, for tests of drafts through a whole stack."""

from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.drafts.proposer import DraftAsk, Drafts, NoProposer


class Foresight(NoProposer):
    """Proposes what texts say next; the last token of every third run is wrong."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        """Prompts, each with the tokens that are drawn behind it without drafts."""
        self._num_asked = 0

    def propose_one(self, ask: DraftAsk) -> Drafts:
        known = ask.token_ids.tolist()
        text = next((one for one in self.texts if one[: len(known)] == known), [])
        drafts = text[len(known) :][: ask.most]
        self._num_asked += 1
        if drafts and self._num_asked % 3 == 0:
            drafts[-1] ^= 1
        return Drafts(drafts, DraftSource.TEXT)
