"""The layers of one pipeline stage."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageLayers:
    """Layers [start, stop) of `total`."""

    start: int
    stop: int
    total: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def indices(self) -> range:
        return range(self.start, self.stop)

    @property
    def is_first(self) -> bool:
        """True if the stage looks tokens up; others take hidden states."""
        return self.start == 0

    @property
    def is_last(self) -> bool:
        """True if the stage computes logits; others give hidden states."""
        return self.stop == self.total

    @property
    def is_whole(self) -> bool:
        return self.is_first and self.is_last


def all_layers(total: int) -> StageLayers:
    """Returns the one stage of a model that is not divided."""
    return StageLayers(0, total, total)
