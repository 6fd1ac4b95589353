"""Decides which models are started and which are ended.

Pure bookkeeping: no clock and no processes. The caller says what has happened and when; `next`
books and returns what is to be done.

Models that are asked for wait in one queue, first come, first served. The first one ends as many
loaded models as it needs room for, or none if all that may end are too few: first those that have
been idle longest; once it has waited for PATIENCE_S also those in use, which get no further
requests and end after their last answer. A model stays for as long as its start took, so that at
most half of the time goes into starts. So each model that is asked for gets its turn, as long as
answers end.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from signalbox_contract.model_state import ModelState

PATIENCE_S = 10.0
"""Seconds that a model waits before another one that is in use must end for it."""
MOST_STAY_S = 30.0
"""Most seconds that a model stays because its start took long."""
FIRST_HOLD_S, MOST_HOLD_S = 10.0, 300.0
"""Seconds that a model is held back after it has failed; they double with each further failure."""

MOST_RETRIES = 3
"""Most failures in a row after which a model is not held back, as its processes were killed."""


IN_MEMORY = frozenset((ModelState.LOADING, ModelState.LOADED, ModelState.DRAINING))


@dataclass(frozen=True, slots=True)
class Needs:
    """The memory that the processes of a model take while it is loaded."""

    num_bytes: int
    gpu_share: float = 0.0
    """Share of the GPUs' memory."""

    def __add__(self, other: "Needs") -> "Needs":
        return Needs(self.num_bytes + other.num_bytes, self.gpu_share + other.gpu_share)

    def fit(self, room: "Needs") -> bool:
        # A sum of shares such as 0.3 + 0.6 + 0.1 exceeds 1 by its rounding.
        return self.num_bytes <= room.num_bytes and self.gpu_share <= room.gpu_share + 1e-9


NOTHING = Needs(0)


@dataclass(slots=True, kw_only=True, eq=False)
class PlannedModel:
    """The plan's state of a model. Only `ModelPlan` changes it."""

    name: str
    needs: Needs
    is_kept: bool = False
    """True if it is loaded at the start, and stays."""
    state: ModelState = ModelState.UNLOADED
    reason: str = ""
    """Reason for which it waits, or has failed."""
    since: float = 0.0
    """Time when its state began."""
    used_at: float = 0.0
    """Time when it was last in use, or was loaded."""
    num_live: int = 0
    """Requests that are at its scheduler."""
    num_callers: int = 0
    """Calls that wait until it is loaded."""
    num_starts: int = 0
    start_s: float = 0.0
    """Seconds that its last start took."""
    num_retries: int = 0
    """Failures since it last ended, or was loaded for long, after which it might start at once."""
    num_holds: int = 0
    """Failures since then for which it was held back."""
    held_until: float = 0.0
    """Time before which it is not started again."""

    def forget_failures(self) -> None:
        self.num_retries = self.num_holds = 0

    @property
    def is_idle(self) -> bool:
        return self.state is ModelState.LOADED and not self.num_live

    @property
    def stays_until(self) -> float:
        """Time until which a loaded model is not ended for another one."""
        return self.since + min(self.start_s, MOST_STAY_S)


class ModelActions(NamedTuple):
    """The starts and ends that the caller carries out now, and the time of the next decision."""

    starts: tuple[str, ...]
    """Models whose processes it starts; `loaded` or `failed` follows."""
    drains: tuple[str, ...]
    """Models whose processes it ends after their last answer; `ended` follows."""
    wake_at: float | None
    """Time when `next` may decide otherwise; None if only news change that."""


class ModelPlan:
    """States of all models, and the queue of those that are asked for."""

    def __init__(
        self,
        models: Iterable[PlannedModel],
        *,
        room: Needs,
        idle_timeout_s: float | None = None,
    ) -> None:
        """Makes a plan in which nothing is loaded.

        Args:
            room: that all models in memory have together.
            idle_timeout_s: seconds after which a model without requests ends; None is never.
        """
        self._models = {model.name: model for model in models}
        self._room = room
        self._idle_timeout_s = idle_timeout_s
        self._queue: dict[str, None] = {}

    @property
    def models(self) -> Mapping[str, PlannedModel]:
        return self._models

    @property
    def charged(self) -> Needs:
        """The memory of the models that are loaded, starting or draining."""
        return sum((one.needs for one in self._in(*IN_MEMORY)), NOTHING)

    def never_fits(self, name: str) -> str:
        """Returns why a model cannot be loaded whatever else ends; empty if it can."""
        model = self._models[name]
        kept = [one for one in self._models.values() if one.is_kept and one is not model]
        needed = sum((one.needs for one in kept), model.needs)
        beside = f" beside {', '.join(one.name for one in kept)}, kept loaded" if kept else ""
        if needed.num_bytes > self._room.num_bytes:
            return (
                f"{name} takes {_gib(model.needs)}, and models may take {_gib(self._room)}{beside};"
                " raise --models-memory, or lower --kv-cache-memory or --swap-space"
            )
        if not needed.fit(self._room):
            share = f"{model.needs.gpu_share:.2f} of the GPU"
            return (
                f"{name} takes {share}, which has no room{beside}; lower --gpu-memory-utilization"
            )
        return ""

    # What has happened

    def ask(self, name: str, now: float) -> None:
        """Puts a model into the queue unless it is there, loaded, or held back."""
        model = self._models[name]
        is_held = model.state is ModelState.FAILED and now < model.held_until
        if model.state in (ModelState.UNLOADED, ModelState.FAILED) and not is_held:
            self._enter(model, ModelState.WAITING, now)
        if model.state in (ModelState.WAITING, ModelState.DRAINING):
            self._queue.setdefault(name)

    def add_caller(self, name: str, now: float) -> None:
        """Counts a call that waits for a model, which is asked for by it."""
        self._models[name].num_callers += 1
        self.ask(name, now)

    def remove_caller(self, name: str, now: float) -> None:
        """Takes a call away; a model that no call waits for leaves the queue."""
        model = self._models[name]
        model.num_callers -= 1
        if not model.num_callers and not model.is_kept:
            self.withdraw(name, now)

    def withdraw(self, name: str, now: float) -> None:
        """Takes a model that waits out of the queue."""
        model = self._models[name]
        self._queue.pop(name, None)
        if model.state is ModelState.WAITING:
            self._enter(model, ModelState.UNLOADED, now)

    def use(self, name: str, num_live: int, now: float) -> None:
        """Says how many requests are at a model's scheduler."""
        model = self._models[name]
        if num_live or model.num_live:
            model.used_at = now
        model.num_live = num_live

    def loaded(self, name: str, now: float) -> None:
        """Says that a model serves."""
        model = self._models[name]
        model.start_s = now - model.since
        model.num_starts += 1
        model.used_at = now
        self._queue.pop(name, None)
        self._enter(model, ModelState.LOADED, now)

    def measured(self, name: str, needs: Needs) -> None:
        """Says what a model takes."""
        self._models[name].needs = needs

    def failed(self, name: str, reason: str, now: float, *, may_retry: bool = False) -> None:
        """Says that a start has failed, or that a model that drains has been lost.

        Args:
            may_retry: says that another start may succeed: MOST_RETRIES times it is not held back,
                and goes on being waited for.
        """
        model = self._models[name]
        model.num_live = 0
        self._queue.pop(name, None)
        if may_retry and model.num_retries < MOST_RETRIES:
            model.num_retries += 1
            is_wanted = model.num_callers or model.is_kept
            self._queue = {name: None, **self._queue} if is_wanted else self._queue
            self._enter(model, ModelState.WAITING if is_wanted else ModelState.UNLOADED, now)
            return
        model.held_until = now + min(MOST_HOLD_S, FIRST_HOLD_S * 2.0**model.num_holds)
        model.num_holds += 1
        self._enter(model, ModelState.FAILED, now, reason)

    def drain(self, name: str, now: float) -> None:
        """Books that a loaded model ends: `ended` follows after its last answer, or `failed` if its
        processes have died."""
        model = self._models[name]
        if now - model.since >= MOST_HOLD_S:
            model.forget_failures()
        self._enter(model, ModelState.DRAINING, now)

    def ended(self, name: str, now: float) -> None:
        """Says that the processes of a model that drained have ended."""
        model = self._models[name]
        model.num_live = 0
        model.forget_failures()
        self._enter(model, ModelState.UNLOADED, now)
        if name in self._queue:
            self._enter(model, ModelState.WAITING, now)

    # What is to be done

    def next(self, now: float) -> ModelActions:
        """Books what is to be done now, and returns it."""
        wakes = list(self._ask_for_kept(now))
        starts, drains = [], self._idle_too_long(now)
        self._drain(drains, now)
        if not self._staying().fit(self._room):  # those in memory have grown
            drains += self._make_room(NOTHING, now, now, wakes)
        while (model := self._first_waiting()) is not None:
            if fault := self.never_fits(model.name):
                self.failed(model.name, fault, now)
            elif (self.charged + model.needs).fit(self._room):
                self._queue.pop(model.name)
                self._enter(model, ModelState.LOADING, now)
                starts.append(model.name)
            elif not (model.num_callers or model.is_kept):  # no reason to end another one
                self.withdraw(model.name, now)
            else:
                if not (self._staying() + model.needs).fit(self._room):
                    drains += self._make_room(model.needs, model.since, now, wakes)
                model.reason = self._wait_reason()
                break  # no model overtakes the first one, which would never find room
        wakes += self._idle_ends(now)
        return ModelActions(tuple(starts), tuple(drains), min(wakes, default=None))

    def _ask_for_kept(self, now: float) -> Iterator[float]:
        """Asks for the models that are kept; yields when those held back may be asked for."""
        for one in self._models.values():
            if not one.is_kept:
                continue
            self.ask(one.name, now)
            if one.state is ModelState.FAILED:
                yield one.held_until

    def _first_waiting(self) -> PlannedModel | None:
        waiting = (self._models[name] for name in self._queue)
        return next((one for one in waiting if one.state is ModelState.WAITING), None)

    def _drain(self, names: Iterable[str], now: float) -> None:
        for name in names:
            self.drain(name, now)

    def _idle_too_long(self, now: float) -> list[str]:
        if self._idle_timeout_s is None:
            return []
        return [
            one.name
            for one in self._in(ModelState.LOADED)
            if one.is_idle and not one.is_kept and now >= one.used_at + self._idle_timeout_s
        ]

    def _idle_ends(self, now: float) -> list[float]:
        """Returns when models end unless they are used meanwhile."""
        if self._idle_timeout_s is None:
            return []
        idle = [one for one in self._in(ModelState.LOADED) if one.is_idle and not one.is_kept]
        return [one.used_at + self._idle_timeout_s for one in idle]

    def _make_room(
        self, needs: Needs, asked_at: float, now: float, wakes: list[float]
    ) -> list[str]:
        """Lets models end for one that needs room, unless those that may end are too few; adds the
        times when more may end. Returns their names."""
        patient_until = asked_at + PATIENCE_S
        chosen: list[PlannedModel] = []
        for one in self._by_idleness():
            ends_at = one.stays_until if one.is_idle else max(one.stays_until, patient_until)
            if ends_at > now:
                wakes.append(ends_at)
                continue
            chosen.append(one)
            if (self._staying(chosen) + needs).fit(self._room):
                break
        else:
            return []
        for one in reversed(chosen[:-1]):  # the last one was needed
            rest = [other for other in chosen if other is not one]
            if (self._staying(rest) + needs).fit(self._room):
                chosen = rest
        names = [one.name for one in chosen]
        self._drain(names, now)
        return names

    def _by_idleness(self) -> list[PlannedModel]:
        """Returns the models that may end: first idle ones, used longest ago, then those in use,
        loaded longest ago."""
        mortal = [one for one in self._in(ModelState.LOADED) if not one.is_kept]
        return sorted(
            mortal, key=lambda one: (not one.is_idle, one.used_at if one.is_idle else one.since)
        )

    def _staying(self, ending: Iterable[PlannedModel] = ()) -> Needs:
        """Returns what the models take that neither drain nor are `ending`."""
        staying = self._in(ModelState.LOADING, ModelState.LOADED)
        return sum((one.needs for one in staying if one not in ending), NOTHING)

    def _wait_reason(self) -> str:
        draining = [one.name for one in self._in(ModelState.DRAINING)]
        if draining:
            return f"waits until {', '.join(draining)} has ended"
        others = [one.name for one in self._in(*IN_MEMORY)]
        return f"waits for the memory of {', '.join(others)}"

    def _in(self, *states: ModelState) -> list[PlannedModel]:
        return [one for one in self._models.values() if one.state in states]

    def _enter(self, model: PlannedModel, state: ModelState, now: float, reason: str = "") -> None:
        model.state, model.since, model.reason = state, now, reason


def _gib(needs: Needs) -> str:
    return f"{needs.num_bytes / (1 << 30):.1f} GiB"
