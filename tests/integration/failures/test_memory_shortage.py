"""A worker with less memory than it had when it was profiled: no request is lost, steps shrink."""

from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.integration.stack import router, running_scheduler, running_worker
from tests.simulated_model import expected_tokens
from tests.waiting import eventually

NUM_TOKENS = 100


class Short(SimulatedRunner):
    """Has memory for so many tokens at once."""

    def __init__(self) -> None:
        super().__init__(SimulatedConfig(max_num_seqs=16, max_num_batched_tokens=512))
        self.sizes: list[int] = []

    def execute(self, batch: Batch) -> BatchOutput:
        self.sizes.append(len(batch.token_ids))
        if len(batch.token_ids) > NUM_TOKENS:
            raise MemoryError("no room")
        return super().execute(batch)


async def test_the_steps_that_a_scheduler_plans_shrink_and_every_request_is_answered() -> None:
    runner = Short()
    prompts = [[7 + i] + [10 + k % 400 for k in range(150 * i)] for i in range(1, 6)]
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, lambda: runner),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        planning = scheduler.cluster.step_loops[0].scheduler
        for handle, prompt in enumerate(prompts):
            await client.add(handle, prompt)
        ended = await client.ended(*range(len(prompts)))
        for got, prompt in zip(ended, prompts, strict=True):
            got.assert_served()
            assert got.tokens == {0: expected_tokens(prompt, num_tokens=16)}
        assert planning.limits.max_num_batched_tokens == 512
        assert NUM_TOKENS / 2 < planning.token_budget <= NUM_TOKENS
        failures = [size for size in runner.sizes if size > NUM_TOKENS]
        assert 1 <= len(failures) <= 6  # of the first steps alone: two were on their way
        scheduler.cluster.check()
