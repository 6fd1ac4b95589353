"""The short form of the chaos run: one fault of each service, real processes, real signals."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.checks.history import check
from tests.chaos.load import Load
from tests.chaos.nemesis import Nemesis
from tests.chaos.services import POOLING_FLAGS, WORKER_FLAGS, chaos_stack
from tests.chaos.token_load import TokenLoad
from tests.chaos.vector_load import VectorLoad

FAULTS = ("worker killed", "steps frozen", "requests reset", "scheduler killed", "router killed")


@pytest.mark.parametrize(
    ("kind", "worker_flags"),
    [(TokenLoad, WORKER_FLAGS), (VectorLoad, POOLING_FLAGS)],
    ids=["tokens", "vectors"],
)
async def test_nothing_is_lost_or_repeated_whoever_dies(
    kind: Callable[[str], Load], worker_flags: tuple[str, ...], tmp_path: Path
) -> None:
    async with chaos_stack(tmp_path, num_workers=2, worker_flags=worker_flags) as stack:
        load = kind(stack.address)
        await load.learn()
        nemesis = Nemesis(stack, load, seed=1)
        asking = asyncio.create_task(load.run(num_clients=12, seed=1))
        for name in FAULTS:
            await nemesis.do(name)
            async with load.at_rest():
                await stack.until_audited()
        load.finish()
        await asking
        await stack.until_free()
        assert check(load.records, undisturbed=load.undisturbed, faults=nemesis.faults) == []
        assert stack.seen == []
        assert sum(record.is_ok for record in load.records) > 2 * len(FAULTS)
        computed, accepted = load.count_drafts()
        assert (0 < accepted < computed) is (kind is TokenLoad)
        assert (stack.num_audits > 0) is (kind is TokenLoad)
        assert set((await stack.stop()).values()) == {0}
