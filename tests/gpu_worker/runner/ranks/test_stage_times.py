"""Where a batch's time goes in the stages of a worker, and what is shown of its ranks."""

import socket
from pathlib import Path

import pytest

from signalbox_worker.batch.batch import Batch
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.ranks.ranked_runner import RankedRunner
from tests.gpu_worker.generation import make_batch, make_sequence
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.waiting import wait_until

pytestmark = pytest.mark.system

NUM_TOKENS = 5


def load(path: Path, tp: int, pp: int) -> RankedRunner:
    runner = load_threads(with_sizes(make_start(path, ParallelConfig()), tp, pp))
    assert isinstance(runner, RankedRunner)
    return runner


def make_some() -> Batch:
    (prompt,) = make_prompts(NUM_TOKENS)
    return make_batch([(make_sequence(prompt, [3]), NUM_TOKENS)], block_size=16)


def test_each_stage_reports_what_it_computed_waited_for_and_passed_on(native_tiny: Path) -> None:
    runner = load(native_tiny, 1, 2)
    capacity = runner.profile()
    runner.init_cache_engine(num_gpu_blocks=capacity.num_gpu_blocks, num_cpu_blocks=0)
    first = runner.execute(make_some())
    assert first.forward_ns == sum(stage.forward_ns for stage in first.stages)
    assert min(stage.forward_ns for stage in first.stages) > 0
    known_ns = sum(stage.queue_ns + stage.forward_ns for stage in first.stages)
    assert first.stages_ns >= known_ns  # what is left is the ways between
    assert (first.stages[0].wait_ns, first.stages[1].boundary_bytes) == (0, 0)
    last = first.stages[1]  # its thread began before the states came, or after
    assert last.wait_ns + last.queue_ns > 0
    found = []

    def passed() -> int:
        found.append(runner.execute(make_some()).stages[0])
        return sum(stage.boundary_bytes for stage in found)

    wait_until(lambda: passed() > 0)  # answers come beside the batches
    confirmed = [stage for stage in found if stage.boundary_bytes]
    row_bytes = runner._own.executor.program.shape.hidden_size * 4  # float32
    assert all(stage.boundary_bytes % (NUM_TOKENS * row_bytes) == 0 for stage in confirmed)
    assert all(stage.boundary_ns > 0 for stage in confirmed)
    runner.close()


@pytest.mark.parametrize("model", ["tiny", "native_tiny"])
def test_ranks_of_a_stage_report_the_time_in_collectives(
    model: str, request: pytest.FixtureRequest
) -> None:
    runner = load(request.getfixturevalue(model), 2, 1)
    runner.profile()
    runner.init_cache_engine(num_gpu_blocks=4, num_cpu_blocks=0)
    (stage,) = runner.execute(make_some()).stages
    assert 0 < stage.collective_ns < stage.forward_ns
    runner.close()


def test_a_worker_names_the_place_and_the_layers_of_each_rank(tiny: Path) -> None:
    runner = load(tiny, 1, 2)
    ranks = runner.profile().ranks
    assert [(one.rank, one.stage, one.tensor_parallel_rank) for one in ranks] == [
        (0, 1, 0),
        (1, 0, 0),
    ]
    last, first = ranks
    assert (first.first_layer, last.first_layer) == (0, first.num_layers)
    assert {(one.host, one.address) for one in ranks} == {(socket.gethostname(), "")}
    runner.close()
