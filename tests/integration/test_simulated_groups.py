"""Groups of layers that a simulated worker is started with."""

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

from signalbox_contract.cache_groups import describe_groups
from signalbox_scheduler.config import SchedulerConfig
from tests.integration.stack import (
    RunningScheduler,
    assert_idle,
    router,
    running_scheduler,
    until_workers,
)
from tests.signalbox.stacks import COMMAND, environment, run_here
from tests.waiting import eventually

PROMPTS = [[3 + i, *range(3, 64), *range(3, 64)] for i in range(6)]
MAX_TOKENS = 60
AMPLE, SCARCE = 4096, 36

pytestmark = pytest.mark.system


@contextlib.contextmanager
def simulated_worker(scheduler: RunningScheduler, groups: str, num_blocks: int) -> Iterator[None]:
    flags = (f"--simulated-groups={groups}", f"--simulated-gpu-blocks={num_blocks}")
    address = f"--scheduler={scheduler.address}"
    command = [*COMMAND, "worker", "--simulate", *flags, address, "--port=0"]
    with subprocess.Popen(command, env=environment()) as process:
        try:
            yield
        finally:
            process.kill()


async def tokens_of(groups: str, num_blocks: int, *, expected: str, preempts: bool) -> list[object]:
    """Returns the tokens of some requests at once; the last prompts are found in the cache."""
    handles = range(len(PROMPTS))
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        with simulated_worker(scheduler, groups, num_blocks):
            await until_workers(scheduler, 1)
            (loop,) = scheduler.cluster.step_loops
            assert describe_groups(loop.scheduler.blocks.groups) == expected
            for handle in handles:
                await client.add(handle, PROMPTS[handle], max_tokens=MAX_TOKENS)
            got = await client.ended(*handles)
            for one in got:
                one.assert_served()
            samples = {one.name: one.value for one in loop.scheduler.samples()}
            assert bool(samples["num_preemptions"]) == preempts
            await assert_idle(scheduler)
        await eventually(lambda: not scheduler.cluster.step_loops)
    return [one.tokens for one in got]


async def test_a_window_that_hides_nothing_gives_the_tokens_of_one_group() -> None:
    plain = await tokens_of("full", AMPLE, expected="full", preempts=False)
    wide = "window:4096"
    same = await tokens_of(wide, SCARCE, expected="window of 4096", preempts=True)
    assert same == plain
    other = await tokens_of("window:40", AMPLE, expected="window of 40", preempts=False)
    assert other != plain


@pytest.mark.parametrize(
    ("groups", "said", "scarce"),
    [
        ("full,window:40,window:40", "full, 2 x window of 40", SCARCE),
        ("full,state:3", "full, states of 3 blocks", 28),
    ],
)
async def test_tokens_of_several_groups_depend_on_no_room(
    groups: str, said: str, scarce: int
) -> None:
    ample = await tokens_of(groups, AMPLE, expected=said, preempts=False)
    assert await tokens_of(groups, scarce, expected=said, preempts=True) == ample


@pytest.mark.parametrize(
    ("groups", "fault"),
    [
        ("", "'' is no group"),
        ("full:3", "'full:3' is no group"),
        ("window", "'window' is no group; give a kind, with a number in window:NUMBER"),
        ("window:0", "'window:0' is no group"),
        ("moving", "a group of layers is full, window or state, not 'moving'"),
        ("state:3,full", "behind all other groups of layers"),
        (",".join(["full"] * 65), "at most 64 groups"),
    ],
)
def test_what_names_no_groups_is_refused(groups: str, fault: str) -> None:
    ran = run_here("worker", "--simulate", f"--simulated-groups={groups}")
    assert ran.returncode == 1
    assert "--simulated-groups" in ran.stderr
    assert fault in ran.stderr
