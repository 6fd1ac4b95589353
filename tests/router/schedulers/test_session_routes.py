"""The scheduler that a session goes to: the same for all routers, and the last one for each."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from signalbox_router.schedulers.session_routes import (
    LOAD_RATIO,
    SPARE_REQUESTS,
    ModelSession,
    SessionRoutes,
)


@dataclass(eq=False)
class FakeDestination:
    address: str
    num_live: int = 0


def make_destinations(number: int = 4) -> list[FakeDestination]:
    return [FakeDestination(f"10.0.0.{index}:50052") for index in range(number)]


SESSIONS = [ModelSession("m", index.to_bytes(16)) for index in range(400)]


def chosen(
    routes: SessionRoutes, schedulers: list[FakeDestination], sessions: Iterable[ModelSession]
) -> dict[ModelSession, str]:
    return {session: routes.choose(session, schedulers).address for session in sessions}


def test_routers_agree_without_talking() -> None:
    schedulers = make_destinations()
    here = chosen(SessionRoutes(), schedulers, SESSIONS)
    there = chosen(SessionRoutes(), schedulers[::-1], reversed(SESSIONS))
    assert here == there
    counts = Counter(here.values())
    assert len(counts) == 4
    assert min(counts.values()) > 50, "each has about a hundred"


def test_a_lost_scheduler_moves_its_own_sessions_alone() -> None:
    schedulers = make_destinations()
    for routes in (SessionRoutes(), None):  # one that remembers, and others that do not
        before = chosen(routes or SessionRoutes(), schedulers, SESSIONS)
        lost, *left = schedulers
        after = chosen(routes or SessionRoutes(), left, SESSIONS)
        moved = {session for session in SESSIONS if before[session] != after[session]}
        assert moved == {session for session in SESSIONS if before[session] == lost.address}
        assert len({after[session] for session in moved}) == 3, "all others take some"


def test_what_has_gone_on_elsewhere_stays_there_when_a_scheduler_is_back() -> None:
    schedulers = make_destinations(2)
    routes = SessionRoutes()
    before = chosen(routes, schedulers, SESSIONS)
    of_lost = [one for one in SESSIONS if before[one] == schedulers[0].address]
    has_gone_on, has_not = of_lost[:50], of_lost[50:]
    assert has_not
    chosen(routes, schedulers[1:], has_gone_on)
    after = chosen(routes, schedulers, SESSIONS)
    assert {after[one] for one in has_gone_on} == {schedulers[1].address}
    assert {after[one] for one in has_not} == {schedulers[0].address}


def test_an_overloaded_scheduler_is_passed_over_and_the_other_one_is_remembered() -> None:
    schedulers = make_destinations(2)
    routes = SessionRoutes()
    session = SESSIONS[0]
    first = routes.choose(session, schedulers)
    (second,) = [one for one in schedulers if one is not first]
    second.num_live = 10
    first.num_live = int(LOAD_RATIO * second.num_live) + SPARE_REQUESTS
    assert routes.choose(session, schedulers) is first, "not more than the bound"
    first.num_live += 1
    assert routes.choose(session, schedulers) is second
    first.num_live = second.num_live = 0
    assert routes.choose(session, schedulers) is second, "where its prefix is"


def test_idle_schedulers_share_the_sessions_of_one_that_is_overloaded() -> None:
    schedulers = make_destinations()
    first = SessionRoutes().choose(SESSIONS[0], schedulers)
    of_first = [one for one in SESSIONS if SessionRoutes().choose(one, schedulers) is first]
    first.num_live = 100
    others = chosen(SessionRoutes(), schedulers, of_first)
    assert len(set(others.values())) == 3
    assert first.address not in others.values()


def test_a_session_has_a_scheduler_for_each_of_its_models() -> None:
    schedulers = make_destinations(4)
    routes = SessionRoutes()
    for_model = {"large": schedulers[:2], "small": schedulers[2:]}
    sessions = {model: ModelSession(model, bytes(16)) for model in for_model}
    first = {model: routes.choose(sessions[model], for_model[model]) for model in for_model}
    for model, one in first.items():
        (other,) = [each for each in for_model[model] if each is not one]
        one.num_live = 100  # the session goes on at the other one
        assert routes.choose(sessions[model], for_model[model]) is other
        one.num_live = 0
    for model, one in first.items():
        assert routes.choose(sessions[model], for_model[model]) is not one


def test_only_the_sessions_that_were_used_last_are_remembered() -> None:
    schedulers = make_destinations(2)
    routes = SessionRoutes(max_remembered=10)
    chosen(routes, schedulers, SESSIONS)
    assert len(routes) == 10
