"""The benchmark of failover, with simulated workers."""

import pytest

from benchmarks.failover import Streams, fault
from benchmarks.harness.model_pool import model_pool

pytestmark = pytest.mark.system


async def test_streams_of_a_worker_that_is_killed_go_on_with_the_same_tokens() -> None:
    async with model_pool(None) as pool:
        streams = Streams(pool, num_streams=4, context=512)
        outcome = await fault(pool, streams, "killed", 0.0)
        assert outcome.after is not None
        assert outcome.longest_gap > 0
        assert len(await pool.workers()) == 1
