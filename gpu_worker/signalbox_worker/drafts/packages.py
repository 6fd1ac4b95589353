"""Sources of drafts that packages bring, as entry points of the group "signalbox.draft_proposers".

The name of an entry point is the `method` of --speculative-config that selects it. Its object is
called with the settings and the size of the vocabulary, and returns a `Proposer` for one lease.
"""

from collections.abc import Sequence
from importlib.metadata import EntryPoint

from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.config import ModelError, SpeculationConfig
from signalbox_worker.drafts.proposer import DraftAsk, Drafts, Proposer
from signalbox_worker.speculation_settings import PROPOSERS, find_method

_METHODS = ("propose", "learn", "forget")


def package_proposer(config: SpeculationConfig, *, vocab_size: int) -> Proposer:
    """Returns the proposer of the method that the settings name. Raises ModelError."""
    entry = find_method(config.method)
    if entry is None:
        raise ModelError(f"no installed package has the method {config.method!r} in {PROPOSERS}")
    proposer = _made(entry, config, vocab_size)
    if not isinstance(proposer, Proposer):
        missing = [name for name in _METHODS if not hasattr(proposer, name)]
        raise ModelError(f"{_origin(entry)} makes no Proposer: it has no {', '.join(missing)}")
    return PackageProposer(proposer)


def _made(entry: EntryPoint, config: SpeculationConfig, vocab_size: int) -> object:
    try:
        return entry.load()(config, vocab_size=vocab_size)
    except Exception as error:  # foreign code may raise anything
        lines = str(error).splitlines() or [""]
        raise ModelError(
            f"{_origin(entry)} cannot be used ({type(error).__name__}: {lines[0]})"
        ) from error


def _origin(entry: EntryPoint) -> str:
    return f"entry point {entry.name!r} of {PROPOSERS}: {entry.value}"


class PackageProposer:
    """A package's proposer. Its drafts always have the source PACKAGE."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.learn, self.forget = proposer.learn, proposer.forget

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        proposed = self._proposer.propose(asks)
        return [found._replace(source=DraftSource.PACKAGE) for found in proposed]
