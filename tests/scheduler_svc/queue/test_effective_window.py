"""The effective window: what the largest live worker's KV cache holds, and what is cut to it."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalbox_contract.errors import Code
from signalbox_contract.request import BeamSearchParams
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.updates import RequestUpdates
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.workers.cluster import Cluster
from tests.scheduler_svc.make import (
    MODEL,
    join_worker,
    make_arrival,
    make_cluster,
    make_request,
    make_scheduler,
)
from tests.scheduler_svc.routers import Router, add_request, failure_of, finish, turn

SMALL, LARGE = 4, 8
"""Blocks of 4 tokens; the last token of a sequence needs none."""


class Listening(Router):
    """Records what requests were cut to."""

    def __init__(self) -> None:
        super().__init__()
        self.admitted: dict[int, int] = {}

    def send(self, message: RequestUpdates) -> None:
        self.admitted.update(message.admitted)
        super().send(message)


def ask(
    cluster: Cluster,
    router: Router,
    handle: int,
    *,
    num_prompt_tokens: int = 5,
    n: int = 1,
    min_tokens: int = 0,
    attempt: int = 0,
    beam_search: BeamSearchParams | None = None,
) -> SequenceGroup | None:
    """Adds a request whose client has set no max_tokens."""
    group = make_arrival(
        [handle] * num_prompt_tokens,
        reply_to=router,
        arrival=float(handle),
        handle=handle,
        request_id=f"r{handle}",
        params=SamplingParams(min_tokens=min_tokens),
        max_tokens=MODEL.max_model_len - num_prompt_tokens,
        max_tokens_is_default=True,
        num_sequences=n,
        attempt=attempt,
        beam_search=beam_search,
    )
    return group if cluster.requests.add(group) else None


@given(
    num_gpu_blocks=st.integers(1, 40),
    num_prompt_tokens=st.integers(1, 127),
    n=st.integers(1, 5),
)
def test_the_most_that_is_cut_to_fits_and_one_more_does_not(
    num_gpu_blocks: int, num_prompt_tokens: int, n: int
) -> None:
    scheduler = make_scheduler(num_gpu_blocks=num_gpu_blocks)

    def fits(max_tokens: int) -> bool:
        prompt = [1] * num_prompt_tokens
        return scheduler.can_ever_take(make_request(prompt, max_tokens=max_tokens, n=n))

    most = scheduler.most_new_tokens(make_request([1] * num_prompt_tokens, n=n))
    room = MODEL.max_model_len - num_prompt_tokens
    if most < 1:
        assert not fits(1)
    else:
        assert fits(most)
        assert most == room or not fits(most + 1)
    if n == 1:
        assert (most < 1) == (num_prompt_tokens >= scheduler.effective_max_model_len)


def test_a_default_is_cut_to_the_largest_worker_and_told() -> None:
    cluster, router = make_cluster(), Listening()
    _, loop = join_worker(cluster, num_gpu_blocks=LARGE)
    join_worker(cluster, num_gpu_blocks=SMALL)
    assert cluster.step_loops.effective_max_model_len == LARGE * 4 + 1
    one = ask(cluster, router, 1)
    two = ask(cluster, router, 2, n=2)
    beams = ask(cluster, router, 3, beam_search=BeamSearchParams(width=3))
    assert one and two and beams
    # 5 tokens of prompt share one block; the others are each branch's own.
    expected = {1: 33 - 5, 2: (1 + 7 // 2) * 4 + 1 - 5, 3: (1 + 7 // 3) * 4 + 1 - 5}
    assert router.admitted == expected
    assert [one.max_tokens, two.max_tokens] == [expected[1], expected[2]]
    finish(cluster, loop)
    assert [router.ended[handle].failure for handle in (1, 2, 3)] == [None] * 3


def test_a_limit_that_the_client_sets_is_never_cut() -> None:
    cluster, router = make_cluster(), Listening()
    join_worker(cluster, num_gpu_blocks=SMALL)
    assert add_request(cluster, router, 1, max_tokens=13) is None
    code, message, _ = failure_of(router, 1)
    assert code is Code.RESOURCE_EXHAUSTED and "lower max_tokens" in message
    fitting = add_request(cluster, router, 2, max_tokens=12)
    assert fitting is not None and fitting.max_tokens == 12
    assert not router.admitted


def test_a_prompt_too_long_for_every_worker_is_invalid_and_says_the_window() -> None:
    cluster, router = make_cluster(), Listening()
    join_worker(cluster, num_gpu_blocks=SMALL)
    assert ask(cluster, router, 1, num_prompt_tokens=16) is not None
    assert ask(cluster, router, 2, num_prompt_tokens=17) is None
    failure = router.ended[2].failure
    assert failure is not None and failure.code is Code.INVALID_ARGUMENT
    assert failure.exceeded_window == 17
    assert "17 tokens; the maximum context length is 17 tokens" in failure.message
    # A prompt that only its branches do not fit with could be asked for with fewer.
    assert ask(cluster, router, 3, num_prompt_tokens=16, n=5) is not None
    assert ask(cluster, router, 4, num_prompt_tokens=15, n=5) is None
    assert failure_of(router, 4)[0] is Code.RESOURCE_EXHAUSTED
    assert ask(cluster, router, 5, min_tokens=13) is None
    assert failure_of(router, 5)[0] is Code.RESOURCE_EXHAUSTED


def test_the_window_follows_workers_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = make_cluster()
    with caplog.at_level(logging.INFO, "signalbox_scheduler.queue.effective_window"):
        small, _ = join_worker(cluster, num_gpu_blocks=SMALL)
        large, _ = join_worker(cluster, num_gpu_blocks=LARGE)
        join_worker(cluster, num_gpu_blocks=SMALL)
        windows = [cluster.step_loops.effective_max_model_len]
        cluster.drain(large)
        windows.append(cluster.step_loops.effective_max_model_len)
        cluster.leave(large)
        cluster.leave(small)
        windows.append(cluster.step_loops.effective_max_model_len)
        join_worker(cluster, num_gpu_blocks=64)
        windows.append(cluster.step_loops.effective_max_model_len)
    assert windows == [33, 17, 17, MODEL.max_model_len]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(",")[0] for line in lines] == [
        "effective window: 17 of 128 tokens",
        "effective window: 33 of 128 tokens",
        "effective window: 17 of 128 tokens",
        "effective window: 128 tokens",
    ]
    assert all("--kv-cache-memory" in line for line in lines[:3])


def test_an_admitted_request_keeps_its_limit_when_the_larger_worker_dies() -> None:
    cluster, router = make_cluster(), Listening()
    large, loop = join_worker(cluster, num_gpu_blocks=LARGE)
    _, small = join_worker(cluster, num_gpu_blocks=SMALL)
    kept, branches = ask(cluster, router, 1), ask(cluster, router, 2, n=2)
    assert kept and branches
    for _ in range(3):
        turn(cluster, loop)
    cluster.leave(large)
    assert kept.max_tokens == 28
    for handle in (1, 2):
        code, message, retry_after_s = failure_of(router, handle)
        assert code is Code.UNAVAILABLE and "no worker that is left has room" in message
        assert retry_after_s
    again = ask(cluster, router, 3)  # a new one is cut to what is left
    assert again is not None and again.max_tokens == 12
    finish(cluster, small)
    assert router.ended[3].failure is None
    assert not len(cluster.requests)


def test_an_admitted_request_goes_on_where_there_is_room() -> None:
    cluster, router = make_cluster(), Listening()
    first, loop = join_worker(cluster, num_gpu_blocks=LARGE)
    _, second = join_worker(cluster, num_gpu_blocks=LARGE)
    request = ask(cluster, router, 1)
    loop.send()
    cluster.leave(first)
    finish(cluster, second)
    assert request is not None and request.max_tokens == 28
    assert router.ended[1].failure is None
    assert len(request.sequences[0].output_token_ids) == 28
    assert not len(cluster.requests)
