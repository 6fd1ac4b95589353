"""Requests with a common prefix share its blocks, and only what is right and theirs to share."""

import pytest

from signalbox_contract.updates import FinishReason
from signalbox_scheduler.kv.block_allocator import AllocStatus, BlockAllocator
from signalbox_scheduler.kv.prefix_cache import owner_of
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    NOT_FINITE,
    Loop,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

PREFIX = [11, 12, 13, 14, 15, 16, 17, 18]  # two blocks


def run(loop: Loop, group: SequenceGroup) -> None:
    loop.scheduler.admission.add(group)
    loop.run()
    for branch, tokens in enumerate(outputs(group)):
        prompt = group.request.prompt_token_ids
        assert tokens == expected(prompt, num_tokens=group.max_tokens, branch=branch)
    scheduler = loop.scheduler
    scheduler.check()
    assert scheduler.blocks.gpu.num_free == scheduler.blocks.gpu.num_blocks


@pytest.mark.parametrize(
    ("second", "num_cached_tokens"),
    [
        ([*PREFIX, 1, 2], 8),
        ([*PREFIX[:7], 99, 1], 4),
        (PREFIX, 4),  # the last token is computed in any case: its logits are wanted
        ([*PREFIX, 1], 8),
        ([99, *PREFIX], 0),
    ],
)
def test_whole_blocks_of_a_common_prefix_are_not_computed_again(
    second: list[int], num_cached_tokens: int
) -> None:
    loop = make_loop(make_scheduler())
    run(loop, make_request([*PREFIX, 3], max_tokens=4))
    group = make_request(second, arrival=1.0, max_tokens=4)
    run(loop, group)
    assert group.num_cached_tokens == num_cached_tokens


def test_blocks_that_a_running_sequence_shares_need_no_room() -> None:
    loop = make_loop(make_scheduler(num_gpu_blocks=4))
    first = make_request([*PREFIX, 3], max_tokens=4)
    loop.scheduler.admission.add(first)
    assert loop.send()
    loop.answer()
    assert loop.scheduler.blocks.gpu.num_free == 1
    sharing, other = (make_request([*prompt, 1], max_tokens=2) for prompt in (PREFIX, PREFIX[1:]))
    assert loop.scheduler.blocks.can_allocate(sharing) is AllocStatus.OK
    assert loop.scheduler.blocks.can_allocate(other) is AllocStatus.LATER


def test_a_conversation_finds_its_own_answer() -> None:
    loop = make_loop(make_scheduler())
    first = make_request(PREFIX, max_tokens=9)
    run(loop, first)
    turn = PREFIX + outputs(first)[0] + [1, 2]
    second = make_request(turn, arrival=1.0)
    run(loop, second)
    assert second.num_cached_tokens == 16  # the last token drawn was never computed


def test_a_running_request_shares_what_it_has_computed() -> None:
    loop = make_loop(make_scheduler())
    first, second = make_request([*PREFIX, 1]), make_request([*PREFIX, 2], arrival=1.0)
    loop.scheduler.admission.add(first)
    loop.turn()
    loop.scheduler.admission.add(second)
    loop.send()
    assert second.num_cached_tokens == 8
    assert second.sequences[0].block_table[:2] == first.sequences[0].block_table[:2]
    loop.run()
    assert outputs(second) == [expected([*PREFIX, 2], num_tokens=8)]
    loop.scheduler.check()


@pytest.mark.parametrize(
    "other",
    [
        {"cache_salt": "b"},
        {"cache_salt": "a", "tenant": "t"},
        {"tenant": "a"},
        {},
    ],
)
def test_other_salts_and_tenants_find_nothing(other: dict[str, str]) -> None:
    loop = make_loop(make_scheduler())
    run(loop, make_request([*PREFIX, 1], cache_salt="a"))
    group = make_request([*PREFIX, 1], arrival=1.0, **other)
    run(loop, group)
    assert group.num_cached_tokens == 0


@pytest.mark.parametrize("other", [{"tenant": "t"}, {"cache_salt": "b"}, {"adapter": "c"}, {}])
def test_an_owner_is_a_tenant_a_salt_and_an_adapter_in_a_lease(other: dict[str, str]) -> None:
    own = {"tenant": "a", "cache_salt": "b", "adapter": "c"}
    request, again = make_request([1], **own).request, make_request([2, 3], **own).request
    name = owner_of(request, epoch=7, num_clears=0)
    assert owner_of(again, epoch=7, num_clears=0) == name
    assert owner_of(make_request([1], **other).request, epoch=7, num_clears=0) != name
    assert owner_of(request, epoch=8, num_clears=0) != name
    assert owner_of(request, epoch=7, num_clears=1) != name
    shifted = make_request([1], tenant="ab", cache_salt="", adapter="c").request
    assert owner_of(shifted, epoch=7, num_clears=0) != name


def test_payers_of_one_tenant_share_what_is_cached() -> None:
    loop = make_loop(make_scheduler())
    run(loop, make_request([*PREFIX, 1], payer="10.0.0.1"))
    again = make_request([*PREFIX, 1], arrival=1.0, payer="10.0.0.2")
    run(loop, again)
    assert again.num_cached_tokens == 8


def test_a_tenant_finds_what_it_has_computed_under_the_same_salt() -> None:
    loop = make_loop(make_scheduler())
    run(loop, make_request([*PREFIX, 1], tenant="t", cache_salt="a"))
    again = make_request([*PREFIX, 1], arrival=1.0, tenant="t", cache_salt="a")
    run(loop, again)
    assert again.num_cached_tokens == 8


def test_requests_that_move_to_larger_blocks_find_only_what_is_theirs() -> None:
    """A name stands for a block of one size, also if workers differ in it."""
    large = make_loop(make_scheduler(block_size=4))
    for token in (3, 4):
        group = make_request([1, 2, token, 9, 9, 9], arrival=float(token))
        small = make_loop(make_scheduler(block_size=2, admission=large.scheduler.admission))
        small.scheduler.admission.add(group)
        small.turn()
        for moved in small.scheduler.evacuate():
            run(large, moved)
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=8)]
    large.scheduler.check()


def test_without_prefix_caching_nothing_is_found() -> None:
    loop = make_loop(make_scheduler(prefix_caching=False))
    run(loop, make_request([*PREFIX, 1]))
    again = make_request([*PREFIX, 1], arrival=1.0)
    run(loop, again)
    assert again.num_cached_tokens == 0
    assert loop.scheduler.blocks.gpu.num_cached == 0


def test_tokens_trimmed_after_a_stop_are_never_found() -> None:
    loop = make_loop(make_scheduler())
    prompt = [*PREFIX, 1, 2]
    stop = expected(prompt, num_tokens=2)[1]
    group = make_request(prompt, max_tokens=20, stop_token_ids=(stop,))
    loop.scheduler.admission.add(group)
    loop.run()
    late = make_request(prompt + expected(prompt, num_tokens=6), arrival=1.0)
    run(loop, late)
    assert late.num_cached_tokens == 8


def test_blocks_of_a_sequence_that_failed_are_not_found() -> None:
    loop = make_loop(make_scheduler(), depth=1)
    group = make_request([*PREFIX, 1])
    loop.scheduler.admission.add(group)
    loop.turn()
    loop.send()
    answer = loop.worker.execute(loop.sent.popleft())
    answer.failures[group.sequences[0].seq_id] = NOT_FINITE
    loop.scheduler.update(answer, loop.now)
    again = make_request([*PREFIX, 1], arrival=1.0)
    run(loop, again)
    assert again.num_cached_tokens == 0


def test_the_least_recently_used_block_is_evicted_first() -> None:
    pool = BlockAllocator(3)
    blocks = [pool.allocate() for _ in range(3)]
    for i, block in enumerate(blocks):
        pool.cache_block(block, bytes([i]))
        pool.free(block)
    used = pool.find(bytes([0]))
    assert used is not None
    pool.share(used)  # used again, so now the youngest
    pool.free(used)
    assert [pool.allocate(), pool.allocate()] == blocks[1:]
    assert pool.find(bytes([0])) == used
    assert pool.find(bytes([1])) is None
    pool.check({blocks[1]: 1, blocks[2]: 1})


def test_a_cached_prefix_does_not_count_twice() -> None:
    """A request whose prefix is cached fits if the rest does, and not if it does not."""
    loop = make_loop(make_scheduler(num_gpu_blocks=5), depth=1)
    run(loop, make_request([*PREFIX, 1], max_tokens=4))
    big, small = make_request([*PREFIX, *PREFIX], max_tokens=4), make_request([9], arrival=1.0)
    loop.scheduler.admission.add(small)
    loop.send()
    loop.scheduler.admission.add(big)
    loop.run()
    assert outputs(big) == [expected([*PREFIX, *PREFIX], num_tokens=4)]
    assert outputs(small) == [expected([9], num_tokens=8)]
    loop.scheduler.check()


def test_a_request_that_prewarms_draws_nothing_and_the_next_finds_its_prompt() -> None:
    loop = make_loop(make_scheduler())
    group = make_request([*PREFIX, 3], prewarm=True)
    loop.scheduler.admission.add(group)
    loop.run()
    assert outputs(group) == [[]]
    assert [seq.finish_reason for seq in group.sequences] == [FinishReason.LENGTH]
    assert loop.scheduler.blocks.gpu.num_free == loop.scheduler.blocks.gpu.num_blocks
    later = make_request([*PREFIX, 4], arrival=1.0)
    run(loop, later)
    assert later.num_cached_tokens == 8
    again = make_request([*PREFIX, 3], arrival=2.0, prewarm=True)
    loop.scheduler.admission.add(again)
    loop.run()
    assert outputs(again) == [[]]
    loop.scheduler.check()
