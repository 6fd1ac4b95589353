"""Sequences that only decode get one token a step, up to their last, whatever comes beside them."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from signalbox_contract.columns import int32s, int64s
from signalbox_contract.request import BeamSearchParams
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.results.result_validation import find_fault
from tests.scheduler_svc.beams import assert_found
from tests.scheduler_svc.fake_worker import VOCAB_SIZE, expected
from tests.scheduler_svc.make import (
    NOT_FINITE,
    Loop,
    assert_all_free,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

PROMPT = [1, 2, 3, 4]


@pytest.mark.parametrize("max_tokens", [2, 3, 5, 13, 14, 40])
@pytest.mark.parametrize("depth", [1, 2])
def test_no_token_is_computed_after_the_last_that_is_drawn(max_tokens: int, depth: int) -> None:
    loop = make_loop(make_scheduler(block_size=16))
    loop.depth = depth
    groups = [make_request([*PROMPT, i], max_tokens=max_tokens + i) for i in range(2)]
    for group in groups:
        loop.scheduler.admission.add(group)
    num_computed = 0
    for _ in range(100):  # more steps than the longest takes
        while loop.send():
            num_computed += loop.scheduler.in_flight[-1].total_tokens
        loop.answer()
    assert all(group.is_finished for group in groups)
    for group in groups:
        prompt = group.request.prompt_token_ids
        assert outputs(group) == [expected(prompt, num_tokens=group.max_tokens)]
    assert num_computed == sum(len(PROMPT) + group.max_tokens for group in groups)
    loop.scheduler.check()


@dataclass(slots=True)
class Columns:
    """Decoding groups of a loop, and a count of those that leave the decode batch."""

    loop: Loop
    num_groups: int = 4
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for i in range(self.num_groups):
            self.add([*PROMPT, i], max_tokens=60)
        self.step(4)
        self.assert_inside(self.num_groups)

    def add(self, prompt: list[int], **params: Any) -> SequenceGroup:
        group = make_request(prompt, arrival=self.loop.now, **params)
        self.loop.scheduler.admission.add(group)
        return group

    @property
    def inside(self) -> dict[SequenceGroup, None]:
        """The groups that are in the decode batch."""
        return {seq.group: None for seq in self.loop.scheduler.state.decode_batch.seqs}

    def step(self, times: int = 1) -> None:
        """Runs steps, and notes which groups leave the decode batch though they have not ended."""
        for _ in range(times):
            while self.loop.send():
                self.loop.scheduler.check()
            before = self.inside
            self.loop.answer()
            self.loop.scheduler.check()
            left = before.keys() - self.inside.keys()
            self.left += [group.request_id for group in left if not group.is_finished]

    def assert_inside(self, number: int) -> None:
        assert len(self.inside) == number

    def end(self) -> None:
        """Lets all end."""
        self.loop.run()
        assert_all_free(self.loop)


def make_columns(**options: Any) -> Columns:
    options = {"max_num_batched_tokens": 16, "prefill_spread_steps": 4} | options
    return Columns(make_loop(make_scheduler(**options), depth=2))


def test_decodes_stay_in_the_columns_while_a_prompt_is_computed_in_chunks() -> None:
    batch = make_columns()
    group = batch.add([9] * 60, max_tokens=4)
    num_chunks = 0
    while group.times.first_token is None:
        batch.step()
        num_chunks += 1
    assert num_chunks > 4
    assert not batch.left
    batch.step(2)
    batch.assert_inside(5)
    batch.end()
    assert outputs(group) == [expected([9] * 60, num_tokens=4)]


@pytest.mark.parametrize("n", [1, 2])
def test_decodes_stay_in_the_columns_when_others_begin_and_end(n: int) -> None:
    batch = make_columns()
    groups = [batch.add([9, i], max_tokens=1 + i, n=n) for i in range(4)]
    while not all(group.is_finished for group in groups):
        batch.step()
    assert not batch.left
    batch.assert_inside(batch.num_groups)
    batch.end()
    for group in groups:
        for branch, output in enumerate(outputs(group)):
            prompt = group.request.prompt_token_ids
            assert output == expected(prompt, num_tokens=group.max_tokens, branch=branch)


def test_decodes_stay_in_the_columns_beside_a_beam_search() -> None:
    batch = make_columns()
    group = batch.add([9] * 9, max_tokens=6, beam_search=BeamSearchParams(width=2))
    while not group.is_finished:
        batch.step()
    assert not batch.left
    assert_found(group)
    batch.end()


@pytest.mark.parametrize("beside_a_prompt", [False, True])
def test_only_the_group_that_fails_leaves_the_columns(beside_a_prompt: bool) -> None:
    batch = make_columns()
    failing, *others = batch.inside
    if beside_a_prompt:
        batch.add([9] * 60, max_tokens=4)
        batch.step(2)
    batch.loop.send()
    result = batch.loop.worker.execute(batch.loop.sent.popleft())
    (seq,) = failing.sequences
    seq_ids, token_ids = result.seq_ids.tolist(), result.token_ids.tolist()
    row = seq_ids.index(seq.seq_id)
    result.seq_ids = int64s([*seq_ids[:row], *seq_ids[row + 1 :]])
    result.token_ids = int32s([*token_ids[:row], *token_ids[row + 1 :]])
    result.failures[seq.seq_id] = NOT_FINITE
    outcome = batch.loop.scheduler.update(result, batch.loop.now)
    assert outcome.ended == [failing]
    assert list(batch.inside) == others
    batch.end()
    for group in others:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=60)]


REQUESTS = st.fixed_dictionaries(
    {
        "num_prompt_tokens": st.integers(1, 30),
        "max_tokens": st.integers(1, 9),
        "n": st.sampled_from([1, 1, 2]),
        "beam_search": st.sampled_from([None, None, BeamSearchParams(width=2)]),
        "stop_token_ids": st.sampled_from([(), (3, 14, 15, 92, 65)]),
        "num_steps": st.integers(0, 4),
    }
)
"""`num_steps` are the steps after which the next request comes."""


@settings(max_examples=100)
@given(
    requests=st.lists(REQUESTS, min_size=2, max_size=6),
    reverses=st.lists(st.booleans(), min_size=1, max_size=5),
    depth=st.sampled_from([1, 2, 3]),
)
def test_the_scheduler_counts_what_the_worker_has_computed(
    requests: list[dict[str, Any]], reverses: list[bool], depth: int
) -> None:
    """Prompts in chunks, first tokens, forks and ends beside decodes; results in any order."""
    loop = make_loop(make_scheduler(max_num_batched_tokens=16, prefill_spread_steps=4), depth=depth)
    order, groups = itertools.cycle(reverses), []
    for i, request in enumerate(requests):
        params, prompt = dict(request), [i + 1] * request["num_prompt_tokens"]
        num_steps = params.pop("num_steps")
        del params["num_prompt_tokens"]
        groups.append(make_request(prompt, arrival=float(i), **params))
        loop.scheduler.admission.add(groups[-1])
        for _ in range(num_steps):
            answer(loop, reverses=next(order))
    while loop.scheduler.has_unfinished or loop.scheduler.admission:
        answer(loop, reverses=next(order))
    assert_all_free(loop)
    for group in groups:
        if group.request.beam_search is not None:
            assert_found(group)
            continue
        for branch, output in enumerate(outputs(group)):
            prompt = group.request.prompt_token_ids
            assert output == expected(prompt, num_tokens=len(output), branch=branch)


def answer(loop: Loop, *, reverses: bool) -> None:
    """Sends steps, and answers the oldest with the runs of its tokens in one order or the other."""
    while loop.send():
        loop.scheduler.check()
    if not loop.sent:
        return
    plan = loop.scheduler.in_flight[0]
    result = loop.worker.execute(loop.sent.popleft())
    if reverses:
        last = len(result.token_ids) - 1
        result.seq_ids = int64s(result.seq_ids.tolist()[::-1])
        result.token_ids = int32s(result.token_ids.tolist()[::-1])
        if result.branches is not None:
            result.branches = int32s(result.branches.tolist()[::-1])
        result.logprobs = {last - row: entry for row, entry in result.logprobs.items()}
    assert find_fault(plan, result, vocab_size=VOCAB_SIZE) is None
    loop.ended += loop.scheduler.update(result, loop.now).ended
    loop.scheduler.check()
    for seq in (seq for group in loop.scheduler.running for seq in group.unfinished):
        known = loop.worker.sequences.get(seq.seq_id)
        if known is not None and not loop.sent:
            assert loop.scheduler.counters(seq) == (known.num_computed_tokens, 0, 0)
