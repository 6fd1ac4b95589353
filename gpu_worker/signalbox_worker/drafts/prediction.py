"""Drafts from a request's prediction: what the client expects the output to be."""

import numpy as np

from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.drafts.matcher_pool import MatcherPool
from signalbox_worker.drafts.proposer import NO_DRAFTS, DraftAsk, Drafts, NoProposer


class PredictionProposer(NoProposer):
    """Looks for the newest tokens of an output in its prediction."""

    def __init__(self, matchers: MatcherPool, vocab_size: int) -> None:
        self._matchers = matchers
        self._vocab_size = vocab_size
        self._predictions: dict[int, Int32Array] = {}

    def propose_one(self, ask: DraftAsk) -> Drafts:
        if not len(ask.prediction):
            return NO_DRAFTS
        prediction = self._predictions.get(ask.seq_id)
        if prediction is None:
            prediction = self._predictions[ask.seq_id] = self._read(ask.prediction)
        output = ask.token_ids[ask.num_prompt :]
        num_drawn = len(output)
        rest = prediction[num_drawn : num_drawn + ask.most]
        if len(rest) and (prediction[:num_drawn] == output).all():  # also if it is empty
            return Drafts(rest.tolist(), DraftSource.PREDICTION, self._matchers.max_match)
        matcher = self._matchers.get((DraftSource.PREDICTION, ask.seq_id), len(prediction))
        if matcher is None:
            return NO_DRAFTS
        found = matcher.find(prediction, output, most=ask.most)
        return Drafts(found.token_ids, DraftSource.PREDICTION, found.num_matched)

    def forget(self, seq_id: int) -> None:
        self._predictions.pop(seq_id, None)
        self._matchers.forget((DraftSource.PREDICTION, seq_id))

    def _read(self, prediction: Int32Array) -> Int32Array:
        """Returns the prediction up to its first token that the model does not have."""
        unknown = np.flatnonzero((prediction < 0) | (prediction >= self._vocab_size))
        return prediction[: unknown[0]] if len(unknown) else prediction
