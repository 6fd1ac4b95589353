"""Compares the adapters of a worker that joins with those of the workers before it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from signalbox_contract.errors import FailedPrecondition
from signalbox_contract.model import Adapter


@dataclass(slots=True)
class GoneAdapters:
    """Adapters that are unloaded, or were not loaded on all workers; some may still have them."""

    _loads: set[int] = field(default_factory=set)
    """Adapter.loaded_at_ns of loads at run time, each of which is of one adapter."""
    _given: set[Adapter] = field(default_factory=set)
    """Adapters that workers were started with."""

    def add(self, adapter: Adapter) -> None:
        if adapter.loaded_at_ns:
            self._loads.add(adapter.loaded_at_ns)
        else:
            self._given.add(adapter)

    def add_load(self, loaded_at_ns: int) -> None:
        """Adds whatever a load has left behind."""
        self._loads.add(loaded_at_ns)

    def __contains__(self, adapter: Adapter) -> bool:
        if adapter.loaded_at_ns:
            return adapter.loaded_at_ns in self._loads
        return adapter in self._given


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Adapters that a worker that joins must load and unload, or that others must load."""

    to_load: list[Adapter]
    to_unload: list[Adapter]
    to_adopt: list[Adapter]
    to_forget: list[Adapter]
    """Adapters with which workers were started that have all left."""


def find_differences(
    mine: Iterable[Adapter], served: Iterable[Adapter], *, gone: GoneAdapters, is_first: bool
) -> Differences:
    """Compares a worker's adapters with those of the workers before it.

    What was loaded at run time is made equal; one that came before this scheduler did is kept. What
    workers are started with must be equal.

    Args:
        is_first: True if there is no other worker.

    Raises FailedPrecondition.
    """
    mine, served = dict.fromkeys(mine), list(served)
    lacking = [one for one in served if one not in mine]
    to_forget = [one for one in lacking if not one.loaded_at_ns] if is_first else []
    kept = dict.fromkeys(served)
    for one in to_forget:
        del kept[one]
    names = {one.name for one in kept if not one.is_leaving}
    to_adopt, to_unload = list[Adapter](), list[Adapter]()
    for one in sorted(mine, key=lambda one: -one.loaded_at_ns):
        if one in kept:
            continue
        is_other = one.name in names
        if one in gone or (one.loaded_at_ns and is_other):
            to_unload.append(one)
        elif is_other or not (one.loaded_at_ns or is_first):
            raise _differ(mine, kept)
        else:
            to_adopt.append(one)
            names.add(one.name)
    to_load = [one for one in lacking if one in kept]
    if not all(one.loaded_at_ns for one in to_load):
        raise _differ(mine, kept)
    return Differences(to_load=to_load, to_unload=to_unload, to_adopt=to_adopt, to_forget=to_forget)


def _differ(mine: Collection[Adapter], served: Collection[Adapter]) -> FailedPrecondition:
    return FailedPrecondition(
        f"this worker has {_listed(mine)}, but the scheduler serves {_listed(served)}; give all"
        " workers the same"
    )


def _listed(adapters: Collection[Adapter]) -> str:
    return f"the adapters {', '.join(map(str, adapters))}" if adapters else "no adapters"
