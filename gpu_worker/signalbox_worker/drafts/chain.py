"""The sources of a worker's drafts, and the choice between what they propose."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from signalbox_contract.sections.drafts import DraftSource
from signalbox_kernels.native import NativeUnavailable
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.drafts.grammar import GrammarProposer
from signalbox_worker.drafts.matcher_pool import MatcherPool
from signalbox_worker.drafts.packages import package_proposer
from signalbox_worker.drafts.prediction import PredictionProposer
from signalbox_worker.drafts.proposer import (
    NO_DRAFTS,
    NO_PROPOSER,
    DraftAsk,
    Drafts,
    EndedSequence,
    Proposer,
)
from signalbox_worker.drafts.recent import RecentOutputs, RecentProposer
from signalbox_worker.drafts.text import TextProposer

logger = logging.getLogger(__name__)


class ProposerChain:
    """Asks all sources, and takes the drafts with the longest match, or longer ones that begin with
    these. A draft model, which takes more time, is asked only about sequences without drafts."""

    def __init__(self, proposers: Iterable[Proposer], model: Proposer | None = None) -> None:
        self._proposers, self._model = tuple(proposers), model

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        found = [proposer.propose(asks) for proposer in self._proposers]
        best = [_best(drafts) for _, *drafts in zip(asks, *found, strict=True)]
        without = [i for i, drafts in enumerate(best) if not drafts.token_ids]
        if self._model is not None and without:
            of_model = self._model.propose([asks[i] for i in without])
            for i, drafts in zip(without, of_model, strict=True):
                best[i] = drafts
        return best

    def learn(self, ended: EndedSequence) -> None:
        for proposer in self._proposers:
            proposer.learn(ended)

    def forget(self, seq_id: int) -> None:
        for proposer in self._proposers:
            proposer.forget(seq_id)
        if self._model is not None:
            self._model.forget(seq_id)


def _best(candidates: Iterable[Drafts]) -> Drafts:
    best = NO_DRAFTS
    for found in candidates:
        is_better = not best.token_ids or found.num_matched > best.num_matched
        if found.token_ids and (is_better or _extends(found, best)):
            best = found
    return best


def _extends(found: Drafts, best: Drafts) -> bool:
    num_best = len(best.token_ids)
    return len(found.token_ids) > num_best and [*found.token_ids[:num_best]] == [*best.token_ids]


def make_proposer(
    config: SpeculationConfig, *, vocab_size: int, model: Proposer | None = None
) -> Proposer:
    """Returns the proposer of a worker. Without native kernels it logs a warning, and has no drafts
    from texts and predictions. Raises ModelError if that of a package cannot be used.

    Args:
        model: proposer of a draft model or an MTP layer, if there is one.
    """
    if not config.num_tokens:
        return NO_PROPOSER
    makers: dict[DraftSource, Callable[[], Proposer]] = {DraftSource.GRAMMAR: GrammarProposer}
    try:
        matchers = MatcherPool(config)
        makers[DraftSource.PREDICTION] = partial(PredictionProposer, matchers, vocab_size)
        makers[DraftSource.RECENT] = lambda: RecentProposer(RecentOutputs(config))
        makers[DraftSource.TEXT] = partial(TextProposer, matchers)
    except NativeUnavailable as error:
        logger.warning("no drafts from texts and predictions: %s", error)
    makers[DraftSource.PACKAGE] = partial(package_proposer, config, vocab_size=vocab_size)
    sources = (makers[source]() for source in config.sources if source in makers)
    return ProposerChain(sources, model)
