"""Blocks that the GPU evicts are kept on the CPU and copied back: exactly, and where it pays."""

import pytest

from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.kv.block_allocator import BlockAllocator
from signalbox_scheduler.kv.cost_model import MAX_KEEP_S, CostModel
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.fake_worker import Block, expected
from tests.scheduler_svc.make import (
    NOT_FINITE,
    Loop,
    content_of,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

PROMPT = [11, 12, 13, 14, 15, 16, 17, 18, 3]  # two blocks and a token
OTHER = [*range(21, 36)]  # four blocks with its answer: all of a small pool


class Server:
    """A loop on a small pool that runs one request after the other, and checks all it can."""

    def __init__(self, **fields: object) -> None:
        fields = {"num_gpu_blocks": 4, "num_cpu_blocks": 8, **fields}
        scheduler = make_scheduler(**fields)  # type: ignore[arg-type]
        self.loop: Loop = make_loop(scheduler)
        self.content: dict[bytes, Block] = {}
        self.num_requests = 0

    def add(self, prompt: list[int], *, max_tokens: int = 2, salt: str = "") -> SequenceGroup:
        self.num_requests += 1
        arrival = float(self.num_requests)
        group = make_request(prompt, max_tokens=max_tokens, arrival=arrival, cache_salt=salt)
        self.content |= content_of(group, block_size=4)
        self.loop.scheduler.admission.add(group)
        return group

    def run(self, prompt: list[int], *, max_tokens: int = 2, salt: str = "") -> SequenceGroup:
        group = self.add(prompt, max_tokens=max_tokens, salt=salt)
        self.loop.run()
        self.check()
        assert outputs(group) == [expected(prompt, num_tokens=max_tokens)]
        return group

    def check(self) -> None:
        scheduler = self.loop.scheduler
        scheduler.check()
        self.loop.check_content(self.content)
        for pool in (scheduler.blocks.gpu, scheduler.blocks.cpu):
            assert pool.num_free == pool.num_blocks


def test_an_evicted_prefix_is_copied_back_and_not_computed_again() -> None:
    server = Server()
    server.run(PROMPT)
    server.run(OTHER)
    assert server.loop.scheduler.blocks.cpu.num_cached == 2
    again = server.run(PROMPT)
    assert again.num_cached_tokens == 8
    assert server.loop.scheduler.planner.num_cpu_prefix_hits == 8
    assert server.loop.worker.num_swapped_in == 2


def test_half_of_a_prefix_may_be_on_the_gpu() -> None:
    server = Server()
    server.run(PROMPT)
    server.run(OTHER[:9])  # takes three blocks of four: the last of the prefix goes
    assert server.run(PROMPT).num_cached_tokens == 8
    assert server.loop.scheduler.planner.num_cpu_prefix_hits == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"cpu_prefix_cache": False},
        {"num_cpu_blocks": 0},
        {"prefix_caching": False},
        {"cost": CostModel(block_bytes=10, copy_bytes_per_s=1, prefill_tokens_per_s=100)},
    ],
)
def test_nothing_is_kept_that_may_not_or_does_not_pay(fields: dict[str, object]) -> None:
    server = Server(**fields)
    for prompt in (PROMPT, OTHER, PROMPT):
        server.run(prompt)
    assert server.loop.scheduler.planner.num_cpu_prefix_hits == 0
    assert server.loop.scheduler.blocks.cpu.num_cached == 0
    assert not server.loop.worker.cpu


def test_other_salts_find_nothing_on_the_cpu() -> None:
    server = Server()
    server.run(PROMPT, salt="a")
    server.run(OTHER)
    assert server.run(PROMPT, salt="b").num_cached_tokens == 0
    assert server.run(PROMPT, salt="a").num_cached_tokens == 8


def test_a_copy_that_came_back_is_not_copied_out_again() -> None:
    server = Server(num_cpu_blocks=16)
    for prompt in (PROMPT, OTHER, PROMPT):
        server.run(prompt)
    num_swapped_out = server.loop.worker.num_swapped_out
    for prompt in (OTHER, PROMPT, OTHER):  # all that is evicted is on the CPU still
        server.run(prompt)
    assert server.loop.worker.num_swapped_out == num_swapped_out


def test_requests_of_one_step_share_what_comes_back() -> None:
    server = Server(num_gpu_blocks=8)
    server.run(PROMPT)
    for first in (40, 60):  # two prompts of four blocks each take everything
        server.run([*range(first, first + 15)])
    groups = [server.add([*PROMPT, i], max_tokens=1) for i in range(2)]
    server.loop.send()
    assert [len(plan.block_moves.swap_in.src) for plan in server.loop.sent] == [2]
    first, second = (group.sequences[0].block_table for group in groups)
    assert first[:2] == second[:2]
    server.loop.run()
    server.check()
    for group in groups:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=1)]


def test_the_least_recently_used_prefix_goes_first_on_the_cpu_too() -> None:
    server = Server(num_cpu_blocks=4)
    prompts = [[i] * 9 for i in (1, 2, 3)]
    for prompt in (*prompts, OTHER):  # the first is evicted from the CPU by the third
        server.run(prompt)
    assert server.run(prompts[2]).num_cached_tokens == 8
    assert server.run(prompts[0]).num_cached_tokens == 0


def test_what_is_on_the_gpu_as_well_goes_before_what_is_not() -> None:
    server = Server(num_gpu_blocks=6, num_cpu_blocks=5)
    first, second = [1] * 9, [2] * 9
    for prompt in (first, second, [3] * 17):
        server.run(prompt)
    assert server.run(first).num_cached_tokens == 8  # back, and used last of all
    server.run([4] * 9)  # evicts two blocks of the third, which take the place of the first's
    assert server.run(second).num_cached_tokens == 8


def test_what_the_gpu_gives_up_again_is_the_last_to_be_evicted_on_the_cpu() -> None:
    server = Server(num_gpu_blocks=4, num_cpu_blocks=8)
    first = [1] * 9
    for prompt in (first, [2] * 9, [3] * 9, first, [4] * 9, [5] * 9, [6] * 9):
        server.run(prompt)  # the first came back, and was evicted again while its copy was there
    assert server.run(first).num_cached_tokens == 8


def test_nothing_is_kept_of_what_is_evicted_first() -> None:
    told = list[bytes]()
    pool = BlockAllocator(3, on_evict=lambda _, block_hash: told.append(block_hash))
    blocks = {name: pool.allocate() for name in (b"a", b"b", b"c")}
    for name, block in blocks.items():
        pool.cache_block(block, name)
        pool.free(block, evict_first=name != b"c")
    pool.share(blocks[b"a"])  # it is wanted after all
    pool.free(blocks[b"a"])
    pool.check({})
    used = [pool.allocate() for _ in blocks]
    assert told == [b"c", b"a"]
    pool.check(dict.fromkeys(used, 1))


def test_a_swapped_group_goes_before_cached_blocks() -> None:
    server = Server(num_gpu_blocks=6, num_cpu_blocks=4, mode=PreemptionMode.SWAP)
    for kind in (1, 2, 3):
        server.run([kind] * 17)
    assert server.loop.scheduler.blocks.cpu.num_cached == 4
    groups = [server.add([kind] * 8, max_tokens=12) for kind in (5, 6)]
    server.loop.run()
    server.check()
    assert groups[1].num_preemptions > 0
    for group in groups:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=12)]
        assert group.sequences[0].num_cached_blocks == 0


def test_a_step_copies_no_more_evicted_blocks_than_its_time_allows() -> None:
    cost = CostModel(block_bytes=1, copy_bytes_per_s=3 / MAX_KEEP_S, prefill_tokens_per_s=1)
    server = Server(num_gpu_blocks=6, cost=cost)
    server.run([1] * 20)
    server.add([2] * 20)
    server.loop.send()
    assert len(server.loop.sent[0].block_moves.swap_out.src) == 3
    server.loop.run()
    server.check()


def test_a_group_that_is_recomputed_finds_its_own_blocks_on_the_cpu() -> None:
    server = Server(num_gpu_blocks=7, num_cpu_blocks=16, mode=PreemptionMode.RECOMPUTE)
    groups = [server.add([kind] * 9, max_tokens=16) for kind in (1, 2)]
    server.loop.run()
    server.check()
    assert groups[1].num_preemptions > 0
    assert server.loop.scheduler.planner.num_cpu_prefix_hits > 0
    for group in groups:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=16)]
        assert group.num_cached_tokens == 0  # of its own making


def test_a_lost_worker_takes_both_tiers_with_it() -> None:
    server = Server()
    for prompt in (PROMPT, OTHER):
        server.run(prompt)
    group = server.add(PROMPT)
    server.loop.send()
    for lost in server.loop.scheduler.evacuate():
        server.loop.scheduler.admission.add(lost)
    other = make_loop(make_scheduler(num_cpu_blocks=8, admission=server.loop.scheduler.admission))
    other.run()
    assert outputs(group) == [expected(PROMPT, num_tokens=2)]
    assert other.scheduler.planner.num_prefix_hits == 0
    other.scheduler.check()


def test_blocks_of_a_sequence_that_failed_are_not_found_on_the_cpu() -> None:
    server = Server(num_gpu_blocks=8)
    server.loop.depth = 1
    server.run(PROMPT)
    for first in (40, 60):
        server.run([*range(first, first + 15)])
    assert server.loop.scheduler.blocks.cpu.num_cached
    group = server.add(PROMPT)
    server.loop.send()
    answer = server.loop.worker.execute(server.loop.sent.popleft())
    answer.failures[group.sequences[0].seq_id] = NOT_FINITE
    server.loop.scheduler.update(answer, server.loop.now)
    assert server.run(PROMPT).num_cached_tokens == 0
