"""Counts what becomes of drafts, of a request or of a worker."""

from collections.abc import Iterator

from signalbox_contract.updates import SpeculationUse
from signalbox_rpc.metrics.sample import Sample, counter


def add_run(
    use: SpeculationUse, *, num_drafts: int, num_accepted: int, is_predicted: bool
) -> SpeculationUse:
    """Returns the counts with one run more."""
    return SpeculationUse(
        num_runs=use.num_runs + 1,
        num_drafts=use.num_drafts + num_drafts,
        num_accepted=use.num_accepted + num_accepted,
        num_predicted=use.num_predicted + num_drafts * is_predicted,
        num_predicted_accepted=use.num_predicted_accepted + num_accepted * is_predicted,
    )


def draft_samples(use: SpeculationUse) -> Iterator[Sample]:
    """Yields counts under the names that vLLM gives them."""
    yield counter(
        "spec_decode_num_drafts", "Runs of drafts: steps of a sequence with some.", use.num_runs
    )
    yield counter(
        "spec_decode_num_draft_tokens", "Drafts that steps have computed.", use.num_drafts
    )
    yield counter(
        "spec_decode_num_accepted_tokens",
        "Of those, drafts that equalled the token that was drawn.",
        use.num_accepted,
    )
