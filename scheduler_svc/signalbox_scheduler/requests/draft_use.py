"""Fates of drafts: counts of a request or a worker, and the record of one sequence."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from signalbox_contract.updates import SpeculationUse
from signalbox_rpc.metrics.sample import Sample, counter


@dataclass(slots=True)
class SourceRecord:
    """Acceptance of one sequence's recent drafts from one source; older runs weigh less."""

    num_runs: float = 0.0
    """Runs of this source, among those of all sources."""
    num_accepted: float = 0.0
    """Accepted drafts."""
    num_refused: float = 0.0
    """Runs that a refused draft ended."""
    num_in_row: int = 0
    """Accepted drafts since the last one that was refused, or the last pause."""


@dataclass(slots=True)
class DraftRecord:
    """Acceptance of one sequence's recent drafts, and its pauses; see planning/draft_lengths.py."""

    sources: dict[int, SourceRecord] = field(default_factory=dict)
    """Records of the sources that have had drafts, by `DraftSource`."""

    is_off: bool = False
    """True during a pause, since drafts would not pay."""
    is_idle: bool = False
    """True while the worker has no drafts, until it offers some."""
    num_pause_steps: int = 0
    """Steps of the last pause; 0 if drafts have paid since."""
    is_trial: bool = False
    """True if the next run has a draft though acceptance is against it, until one is refused."""
    num_idle: int = 0
    """Consecutive steps for which nothing was proposed."""

    @property
    def is_out(self) -> bool:
        """True if the next step allows no drafts."""
        return self.is_off or self.is_idle


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
        "spec_decode_num_drafts", "Steps of a sequence that computed drafts.", use.num_runs
    )
    yield counter("spec_decode_num_draft_tokens", "Drafts that were computed.", use.num_drafts)
    yield counter(
        "spec_decode_num_accepted_tokens",
        "Drafts that were kept, since they equalled the token that was drawn.",
        use.num_accepted,
    )
