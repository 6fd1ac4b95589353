"""Which models are loaded: within the memory, without breaking off an answer, each in its turn."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from signalbox.stack.models.model_plan import (
    FIRST_HOLD_S,
    IN_MEMORY,
    MOST_RETRIES,
    MOST_STAY_S,
    PATIENCE_S,
    ModelActions,
    ModelPlan,
    Needs,
    PlannedModel,
)
from signalbox_contract.model_state import ModelState

SIZES = {"a": 30, "b": 40, "c": 50, "d": 60, "kept": 20}
ROOM = 100
NAMES = st.sampled_from(sorted(SIZES))


class Models:
    """A plan, a clock, and processes that start and end when a test says so."""

    def __init__(
        self,
        sizes: dict[str, int] | None = None,
        *,
        room: int = ROOM,
        kept: tuple[str, ...] = (),
        idle_timeout_s: float | None = None,
    ) -> None:
        planned = [
            PlannedModel(name=name, needs=Needs(size), is_kept=name in kept)
            for name, size in (sizes or SIZES).items()
        ]
        self.plan = ModelPlan(planned, room=Needs(room), idle_timeout_s=idle_timeout_s)
        self.now = 0.0

    def next(self) -> ModelActions:
        return self.plan.next(self.now)

    def load(self, name: str) -> None:
        """Loads a model that a call asks for, however long it takes, and ends the call."""
        self.plan.add_caller(name, self.now)
        for _ in range(100):
            actions = self.next()
            for one in actions.drains:
                self.plan.use(one, 0, self.now)
                self.plan.ended(one, self.now)
            for one in actions.starts:
                self.plan.loaded(one, self.now)
            if self.state(name) is ModelState.LOADED:
                self.plan.remove_caller(name, self.now)
                return
            if not actions.drains and actions.wake_at is not None:
                self.now = actions.wake_at
        raise AssertionError(f"{name} is never loaded")

    def state(self, name: str) -> ModelState:
        return self.plan.models[name].state

    def loaded(self) -> list[str]:
        return [name for name in self.plan.models if self.state(name) is ModelState.LOADED]


def test_the_model_that_was_idle_longest_ends_for_another_one() -> None:
    models = Models({"a": 40, "b": 40, "c": 40})
    models.load("a")
    models.now = 5
    models.load("b")
    models.plan.use("a", 1, 6)
    models.plan.use("a", 0, 7)
    models.now = 8
    models.load("c")
    assert models.loaded() == ["a", "c"]


def test_no_model_ends_for_room_that_would_not_suffice() -> None:
    models = Models({"a": 40, "busy": 50, "c": 60})
    models.load("a")
    models.load("busy")
    models.plan.use("busy", 1, models.now)
    models.plan.add_caller("c", models.now)
    assert models.next().drains == ()
    assert models.plan.models["c"].reason == "waits for the memory of a, busy"


def test_only_as_many_end_as_are_needed() -> None:
    models = Models({"small": 10, "large": 80, "c": 60})
    models.load("small")
    models.now = 1
    models.load("large")
    models.plan.add_caller("c", models.now)
    assert models.next().drains == ("large",)


def test_a_model_in_use_ends_for_one_that_has_waited_and_not_before() -> None:
    models = Models({"a": 60, "b": 60})
    models.load("a")
    models.plan.use("a", 3, 0.0)
    models.plan.add_caller("b", 1.0)
    models.now = 1.0
    actions = models.next()
    assert (actions.drains, actions.wake_at) == ((), 1.0 + PATIENCE_S)
    models.now = 1.0 + PATIENCE_S
    assert models.next().drains == ("a",)
    assert models.next().starts == ()  # its answers go on
    models.plan.use("a", 0, models.now)
    models.plan.ended("a", models.now)
    assert models.next().starts == ("b",)


def test_a_model_stays_for_as_long_as_its_start_took() -> None:
    models = Models({"a": 60, "b": 60})
    models.plan.add_caller("a", 0.0)
    assert models.next().starts == ("a",)
    models.plan.loaded("a", 4.0)
    models.plan.remove_caller("a", 4.0)
    models.now = 5.0
    models.plan.add_caller("b", 5.0)
    actions = models.next()
    assert (actions.drains, actions.wake_at) == ((), 8.0)
    models.now = 8.0
    assert models.next().drains == ("a",)


def test_models_get_their_turn_in_the_order_in_which_they_were_asked_for() -> None:
    """Two that are asked for again and again do not starve the third."""
    models = Models({"a": 60, "b": 60, "c": 60})
    models.load("a")
    started = []
    for name in ("b", "c", "a"):
        models.plan.add_caller(name, models.now)
    for _ in range(6):
        actions = models.next()
        for one in actions.drains:
            models.plan.ended(one, models.now)
        for one in actions.starts:
            started.append(one)
            models.plan.loaded(one, models.now)
            models.plan.remove_caller(one, models.now)
            again = "b" if one == "a" else "a"
            models.plan.add_caller(again, models.now)
    assert "c" in started[:3]


def test_one_that_fits_does_not_overtake_one_that_waits_for_room() -> None:
    models = Models({"a": 60, "large": 90, "small": 30})
    models.load("a")
    models.plan.use("a", 1, models.now)
    models.plan.add_caller("large", models.now)
    models.plan.add_caller("small", models.now)
    assert models.next().starts == ()


def test_a_model_that_fails_is_held_back_longer_each_time() -> None:
    models = Models()
    for hold_s in (FIRST_HOLD_S, 2 * FIRST_HOLD_S):
        models.plan.add_caller("a", models.now)
        assert models.next().starts == ("a",)
        models.plan.failed("a", "no such file", models.now)
        models.plan.remove_caller("a", models.now)
        models.now += hold_s - 1
        models.plan.ask("a", models.now)
        assert models.state("a") is ModelState.FAILED
        models.now += 1


def test_a_model_that_was_killed_keeps_its_place_in_the_queue_a_few_times() -> None:
    models = Models({"a": 60, "b": 60})
    models.plan.add_caller("a", 0.0)
    models.plan.add_caller("b", 0.0)
    for _ in range(MOST_RETRIES + 1):
        assert models.next().starts == ("a",)
        models.plan.failed("a", "it was killed", 1.0, may_retry=True)
    assert models.state("a") is ModelState.FAILED
    assert models.next().starts == ("b",)


def test_a_model_that_no_call_waits_for_leaves_the_queue() -> None:
    models = Models({"a": 60, "b": 60})
    models.load("a")
    models.plan.use("a", 1, models.now)
    models.plan.add_caller("b", models.now)
    models.plan.remove_caller("b", models.now)
    assert models.state("b") is ModelState.UNLOADED
    models.now += PATIENCE_S
    assert models.next().drains == ()


def test_what_is_loaded_at_the_start_ends_nothing() -> None:
    models = Models({"a": 60, "b": 60, "c": 30})
    for name in ("a", "b", "c"):
        models.plan.ask(name, 0.0)
    assert models.next().starts == ("a", "c")
    assert models.state("b") is ModelState.UNLOADED


def test_a_kept_model_is_loaded_again_and_never_ended_for_others() -> None:
    models = Models({"kept": 60, "b": 60, "c": 30}, kept=("kept",), idle_timeout_s=5.0)
    assert models.next().starts == ("kept",)
    models.plan.failed("kept", "it was killed", 0.0)
    assert models.next().wake_at == FIRST_HOLD_S
    models.now = FIRST_HOLD_S
    assert models.next().starts == ("kept",)
    models.plan.loaded("kept", models.now)
    models.now += 1000
    assert models.next().drains == ()
    models.plan.add_caller("b", models.now)
    assert models.next().starts == ()
    assert models.state("b") is ModelState.FAILED
    assert "b takes 0.0 GiB" in models.plan.never_fits("b")
    assert "beside kept, kept loaded" in models.plan.never_fits("b")


def test_an_idle_model_ends_and_one_in_use_does_not() -> None:
    models = Models(idle_timeout_s=5.0)
    models.load("a")
    assert models.next().wake_at == 5.0
    models.plan.use("a", 1, 4.0)
    models.now = 6.0
    assert models.next() == ModelActions((), (), None)
    models.plan.use("a", 0, 6.0)
    models.now = 11.0
    assert models.next().drains == ("a",)


def test_models_that_have_grown_beyond_the_room_end() -> None:
    models = Models({"a": 40, "b": 40})
    models.load("a")
    models.now = 1.0
    models.load("b")
    models.plan.measured("b", Needs(70))
    assert models.next().drains == ("a",)


def test_gpus_have_room_for_their_shares() -> None:
    planned = [PlannedModel(name=name, needs=Needs(1, 0.45)) for name in ("a", "b", "c")]
    plan = ModelPlan(planned, room=Needs(100, 1.0))
    for name in ("a", "b", "c"):
        plan.add_caller(name, 0.0)
    assert plan.next(0.0).starts == ("a", "b")


class AnyHistory(RuleBasedStateMachine):
    """Calls, answers, starts, failures and ends in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.models = Models(kept=("kept",), idle_timeout_s=60.0)
        self.plan = self.models.plan
        self.callers = dict.fromkeys(SIZES, 0)

    def in_state(self, *states: ModelState) -> Iterator[str]:
        return (name for name in SIZES if self.models.state(name) in states)

    def act(self) -> None:
        before = {name: self.plan.models[name].num_live for name in SIZES}
        actions = self.models.next()
        for name in actions.drains:
            waited = any(one.num_callers for one in self.plan.models.values())
            assert name != "kept"
            assert not before[name] or waited
        assert actions.wake_at is None or actions.wake_at > self.models.now

    @rule(name=NAMES)
    def call(self, name: str) -> None:
        if self.models.state(name) is not ModelState.LOADED:
            self.plan.add_caller(name, self.models.now)
            self.callers[name] += 1
        self.act()

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        if self.callers[name]:
            self.callers[name] -= 1
            self.plan.remove_caller(name, self.models.now)
        self.act()

    @rule(name=NAMES, num_live=st.integers(0, 2))
    def use(self, name: str, num_live: int) -> None:
        state = self.models.state(name)
        most = self.plan.models[name].num_live if state is ModelState.DRAINING else num_live
        if state in (ModelState.LOADED, ModelState.DRAINING):
            self.plan.use(name, min(num_live, most), self.models.now)
        self.act()

    @rule(data=st.data(), grown=st.sampled_from((0, 5)))
    def finish_start(self, data: st.DataObject, grown: int) -> None:
        if names := [*self.in_state(ModelState.LOADING)]:
            name = data.draw(st.sampled_from(names))
            self.plan.loaded(name, self.models.now)
            self.plan.measured(name, Needs(SIZES[name] - grown))
            for _ in range(self.callers[name]):
                self.plan.remove_caller(name, self.models.now)
            self.callers[name] = 0
        self.act()

    @rule(data=st.data(), may_retry=st.booleans())
    def fail(self, data: st.DataObject, may_retry: bool) -> None:
        if names := [*self.in_state(ModelState.LOADING, ModelState.LOADED)]:
            name = data.draw(st.sampled_from(names))
            if self.models.state(name) is ModelState.LOADED:
                self.plan.drain(name, self.models.now)
            self.plan.failed(name, "it was killed", self.models.now, may_retry=may_retry)
            while self.callers[name] and self.models.state(name) is ModelState.FAILED:
                self.callers[name] -= 1
                self.plan.remove_caller(name, self.models.now)
        self.act()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        quiet = [
            name
            for name in self.in_state(ModelState.DRAINING)
            if not self.plan.models[name].num_live
        ]
        if quiet:
            self.plan.ended(data.draw(st.sampled_from(quiet)), self.models.now)
        self.act()

    @rule(seconds=st.sampled_from((0.5, PATIENCE_S, MOST_STAY_S, 400.0)))
    def wait(self, seconds: float) -> None:
        self.models.now += seconds
        self.act()

    @precondition(lambda self: sum(self.callers.values()))
    @rule()
    def let_all_end(self) -> None:
        """If answers and starts end, each model that is waited for is loaded or has failed."""
        waiting = [name for name in SIZES if self.callers[name]]
        seen: set[str] = set()
        for _ in range(200):
            for name in self.in_state(ModelState.LOADED, ModelState.DRAINING):
                self.plan.use(name, 0, self.models.now)
            for name in [*self.in_state(ModelState.DRAINING)]:
                self.plan.ended(name, self.models.now)
            for name in [*self.in_state(ModelState.LOADING)]:
                self.plan.loaded(name, self.models.now)
            for name in self.in_state(ModelState.LOADED, ModelState.FAILED):
                seen.add(name)
                for _ in range(self.callers[name]):
                    self.plan.remove_caller(name, self.models.now)
                self.callers[name] = 0
            wake_at = self.models.next().wake_at
            if wake_at is not None and not [
                *self.in_state(ModelState.DRAINING, ModelState.LOADING)
            ]:
                self.models.now = wake_at
            if seen.issuperset(waiting):
                return
        raise AssertionError(f"{set(waiting) - seen} never get their turn")

    @invariant()
    def memory_suffices(self) -> None:
        in_memory = [one for one in self.plan.models.values() if one.state in IN_MEMORY]
        assert sum(one.needs.num_bytes for one in in_memory) <= ROOM

    @invariant()
    def those_that_wait_have_a_reason_to(self) -> None:
        for one in self.plan.models.values():
            assert one.num_callers == self.callers[one.name]


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_history = AnyHistory.TestCase


@pytest.mark.parametrize("size", [ROOM, ROOM + 1])
def test_what_never_fits_is_said_so(size: int) -> None:
    models = Models({"a": size})
    models.plan.add_caller("a", 0.0)
    models.next()
    assert models.state("a") is (ModelState.LOADING if size <= ROOM else ModelState.FAILED)
