"""Random turns and shared prefixes: a snapshot that is found is always one with all its blocks."""

import os
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.prefix_cache import name_in_group
from signalbox_scheduler.requests.sequence_group import Sequence
from tests.scheduler_svc.kv.test_cache_groups import compute, make_blocks
from tests.scheduler_svc.make import make_request

SIZE = 4
ASKED = st.tuples(
    st.sampled_from([(1,), (1,), (2,), (1, 1), (1, 2)]),  # pieces of 12 tokens
    st.integers(3, 5),  # another piece
    st.integers(1, 9),  # of so many tokens
    st.sampled_from([(), (12,), (12, 99), (99,)]),  # named; 99 is the end
    st.integers(0, 9),  # tokens of the answer
    st.booleans(),  # whether the sequence yields before it has ended
)


@given(
    others=st.sampled_from([(), (CacheGroup(kind="window", window=5),)]),
    state_blocks=st.sampled_from([1, 3]),
    asked=st.lists(ASKED, min_size=2, max_size=12),
    num_blocks=st.integers(40, 80),
)
@settings(max_examples=int(os.environ.get("EXAMPLES", "60")), deadline=None)
def test_blocks_that_only_a_snapshot_reaches_go_after_it(
    others: tuple[CacheGroup, ...], state_blocks: int, asked: list[Any], num_blocks: int
) -> None:
    groups = (*others, FULL_GROUP, CacheGroup(kind="state", state_blocks=state_blocks))
    blocks = make_blocks(groups, num_gpu_blocks=num_blocks, block_size=SIZE)
    chains: dict[bytes, list[bytes]] = {}
    """Names of rows up to each, by the name of its state."""
    for pieces, kind, num_tokens, named, num_answer, yields in asked:
        prompt = [piece for piece in (*pieces, 10) for _ in range(12)] + [kind] * num_tokens
        positions = tuple(min(one, len(prompt)) for one in named)
        group = make_request(prompt, snapshot_positions=positions)
        if blocks.can_allocate(group) is not AllocStatus.OK:
            continue
        (seq,) = group.sequences
        run(blocks, seq, num_answer=0 if yields else num_answer, yields=yields)
        width = len(groups)
        names = blocks.prefix_hashes(seq, 0, seq.num_cached_blocks * width)[::width]
        blocks.check([seq])
        blocks.free(seq)
        blocks.check([])
        for row, name in enumerate(names):
            chains[name_in_group(name, len(groups) - 1)] = names[: row + 1]
        assert_whole(blocks, chains, column=len(others))
    assert blocks.gpu.num_free == num_blocks


def run(blocks: BlockSpaceManager, seq: Sequence, *, num_answer: int, yields: bool) -> None:
    prefix = blocks.find_prefix(seq)
    seq.num_computed_tokens = blocks.num_tokens(len(prefix))
    blocks.start(seq, prefix)
    num_left = seq.num_tokens - seq.num_computed_tokens
    compute(blocks, seq, num_left // 2 if yields else num_left)
    seq.is_on_worker = True
    for _ in range(num_answer):
        if blocks.can_append_slots(seq, 1) is not AllocStatus.OK:
            return
        seq.output_token_ids.append(1)
        compute(blocks, seq, 1)


def assert_whole(blocks: BlockSpaceManager, chains: dict[bytes, list[bytes]], column: int) -> None:
    for state, names in chains.items():
        if blocks.gpu.find(state) is not None:
            missing = [one for one in names if blocks.gpu.find(name_in_group(one, column)) is None]
            assert not missing, "a snapshot has outlived blocks that it needs"
