"""What the scheduler knows of the sessions that clients name."""

from typing import Any

import pytest

from signalbox_contract.errors import Code, InvalidArgument
from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_contract.request import SessionPause
from signalbox_contract.updates import RequestFailure
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import stats_pb2
from signalbox_scheduler.insight.sessions import ClientSessions, TurnTokens, broken
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.service.reports import insight_codec
from signalbox_scheduler.service.router_session import Session
from signalbox_scheduler.service.scheduler_servicer import apply_message
from signalbox_scheduler.workers.cluster import Cluster
from tests.scheduler_svc.kv import test_cpu_tier
from tests.scheduler_svc.make import join_worker, make_arrival, make_cluster
from tests.scheduler_svc.routers import finish
from tests.scheduler_svc.transfers import test_loading

A, B = bytes(16), bytes([1] * 16)
PROMPT = [*range(11, 32)]  # five blocks and a token


def add(cluster: Cluster, prompt: list[int], **fields: Any) -> SequenceGroup:
    group = make_arrival(prompt, **{"max_tokens": 4, "session": A, **fields})
    assert cluster.requests.add(group)
    return group


def sessions_of(cluster: Cluster, most: int = 10) -> list[stats_pb2.SessionSummary]:
    return list(insight_codec.stats(cluster, max_sessions=most).sessions)


def test_turns_are_counted_with_what_they_found() -> None:
    times = iter(range(1000))
    cluster = make_cluster(clock=lambda: float(next(times)))
    _, loop = join_worker(cluster, name="host:7")
    add(cluster, PROMPT, tenant="t")
    (live,) = sessions_of(cluster)
    assert (live.num_turns, live.num_live_requests, live.last_request_id) == (0, 1, "")
    finish(cluster, loop)
    add(cluster, [*PROMPT, 7], request_id="second", tenant="t", keep_ns=5)
    finish(cluster, loop)
    (session,) = sessions_of(cluster)
    assert (session.session, session.tenant, session.keep_ns) == (A, "t", 5)
    assert (session.num_turns, session.num_live_requests) == (2, 0)
    assert (session.last_request_id, session.last_worker) == ("second", "host:7")
    assert session.last_turn == stats_pb2.TurnTokens(
        num_prompt_tokens=22, num_device_tokens=20, num_output_tokens=4
    )
    assert session.total == stats_pb2.TurnTokens(
        num_prompt_tokens=43, num_device_tokens=20, num_output_tokens=8
    )
    assert session.idle_ns > 0
    assert not session.HasField("called_tool")


def test_a_router_says_how_a_turn_has_ended() -> None:
    cluster = make_cluster()
    _, loop = join_worker(cluster)
    router = Session(cluster.requests, max_messages=8)
    for called_tool in (True, False):
        add(cluster, PROMPT)
        finish(cluster, loop)
        assert not sessions_of(cluster)[0].HasField("called_tool"), "that was of the turn before"
        for session in (A, B):  # another is unknown
            pause = pb.SessionPause(session=session, called_tool=called_tool)
            apply_message(pb.ConnectRequest(session_pauses=[pause]), router, 0.0)
        assert sessions_of(cluster)[0].called_tool is called_tool
    assert len(sessions_of(cluster)) == 1


@pytest.mark.parametrize("session", [b"", b"short", bytes(17)])
def test_a_pause_of_what_is_no_session_ends_the_stream(session: bytes) -> None:
    router = Session(make_cluster().requests, max_messages=8)
    pause = pb.SessionPause(session=session)
    with pytest.raises(InvalidArgument, match="session"):
        apply_message(pb.ConnectRequest(session_pauses=[pause]), router, 0.0)


def test_a_request_that_fails_is_no_turn() -> None:
    cluster = make_cluster()
    join_worker(cluster)
    cluster.requests.fail(add(cluster, PROMPT), RequestFailure(Code.INTERNAL, "no"))
    cluster.requests.abort(add(cluster, PROMPT))
    (session,) = sessions_of(cluster)
    assert (session.num_turns, session.num_live_requests) == (0, 0)


def test_a_request_without_a_session_is_in_none() -> None:
    cluster = make_cluster()
    _, loop = join_worker(cluster)
    add(cluster, PROMPT, session=b"")
    finish(cluster, loop)
    assert sessions_of(cluster) == []


def test_the_sessions_that_were_used_last_are_known_and_listed_first() -> None:
    sessions = ClientSessions(max_sessions=3)
    groups = [make_arrival(PROMPT, session=bytes([number] * 16)) for number in range(5)]
    for group in groups[:3]:
        sessions.begin(group, 0.0)
    sessions.end(groups[0], 1.0)
    for group in groups[3:]:
        sessions.begin(group, 2.0)
    kept = [one.session[0] for one in sessions.latest(10)]
    assert kept == [4, 3, 0]
    assert [one.session[0] for one in sessions.latest(1)] == [4]
    sessions.end(groups[1], 3.0)  # forgotten while it ran
    (latest,) = sessions.latest(1)
    assert (latest.session[0], latest.num_live_requests, latest.num_turns) == (1, 0, 1)
    sessions.pause(SessionPause(groups[2].request.session, called_tool=True))
    assert len(sessions) == 3


def test_tokens_are_counted_where_they_were_found() -> None:
    small = test_cpu_tier.Server()
    prompt, other = test_cpu_tier.PROMPT, test_cpu_tier.OTHER
    ended = [small.run(one) for one in (prompt, prompt, other, prompt, other[:9], prompt)]
    found = [TurnTokens.of(group) for group in ended]
    assert [one.num_device_tokens for one in found] == [0, 8, 0, 0, 4, 4]
    assert [one.num_cpu_tokens for one in found] == [0, 0, 0, 8, 4, 4]
    stored = TurnTokens.of(test_loading.filled().run())
    assert stored == TurnTokens(num_prompt_tokens=21, num_store_tokens=20, num_output_tokens=2)


@pytest.mark.parametrize(
    ("cause", "is_elsewhere", "num_found", "expected"),
    [
        (PrefixCause.UNCHANGED, False, 64, PrefixComparison(PrefixCause.UNCHANGED, 64)),
        (PrefixCause.UNCHANGED, False, 0, PrefixComparison(PrefixCause.EVICTED, 0, 64)),
        (
            PrefixCause.UNCHANGED,
            True,
            16,
            PrefixComparison(PrefixCause.OTHER_SCHEDULER, 16, 48, is_elsewhere=True),
        ),
        (PrefixCause.TOOLS_CHANGED, False, 0, PrefixComparison(PrefixCause.TOOLS_CHANGED, 64)),
    ],
)
def test_equal_tokens_that_were_not_found_are_evicted_or_elsewhere(
    cause: PrefixCause, is_elsewhere: bool, num_found: int, expected: PrefixComparison
) -> None:
    compared = PrefixComparison(cause, 64, is_elsewhere=is_elsewhere)
    assert broken(compared, num_found) == expected


def test_a_session_has_what_broke_the_prefix_of_its_last_turn() -> None:
    cluster = make_cluster()
    _, loop = join_worker(cluster, name="host:7")
    add(cluster, PROMPT, prefix=PrefixComparison(PrefixCause.MESSAGE_CHANGED, 0, 32, "messages[1]"))
    finish(cluster, loop)
    (session,) = sessions_of(cluster)
    assert (session.last_prefix.path, session.last_prefix.num_lost_tokens) == ("messages[1]", 32)
    add(cluster, PROMPT, request_id="second")
    finish(cluster, loop)
    (session,) = sessions_of(cluster)
    assert not session.HasField("last_prefix")
