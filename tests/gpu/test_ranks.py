"""Ranks on cards: NCCL as the layers use it, and the tokens of two ranks."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import distributed

from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.process_group import GroupCollectives, _nccl
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service.runner_factory import make_runner
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.tiny_models import make_model

CUDA = torch.device("cuda")


@pytest.fixture
def alone(tmp_path: Path) -> GroupCollectives:
    """A group of one rank, which NCCL takes like any other."""
    store = distributed.FileStore(str(tmp_path / "ranks"), 1)  # type: ignore[attr-defined]
    together = GroupCollectives(_nccl(store, ParallelConfig()), 1)
    together.all_reduce(torch.zeros(1, device=CUDA))
    return together


def test_collectives_are_recorded_in_a_graph(alone: GroupCollectives) -> None:
    x, out = torch.zeros(4, 8, device=CUDA), torch.zeros(4, 8, device=CUDA)

    def work() -> None:
        y = x + 1
        alone.all_reduce(y)
        out.copy_(alone.all_gather(y)[0])

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    x.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out.cpu(), torch.full((4, 8), 6.0))


def test_a_group_that_is_aborted_lets_go(alone: GroupCollectives) -> None:
    alone.abort()
    torch.cuda.synchronize()  # nothing is waited for


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_two_cards_give_the_tokens_of_one(tmp_path: Path, enforce_eager: bool) -> None:
    make_model(tmp_path, head_dim=64)
    drawn = []
    for size in (1, 2):
        runner = cast(
            Any,
            make_runner(
                RunnerConfig(
                    model=ModelConfig(model=str(tmp_path), dtype="float32"),
                    cache=CacheConfig(max_num_seqs=8, kv_cache_memory=1 / 64, swap_space=1 / 1024),
                    parallel=ParallelConfig(tensor_parallel_size=size),
                    device=DeviceConfig(device="cuda", enforce_eager=enforce_eager),
                ),
                progress=lambda _: None,
                on_lost=lambda _: None,
            ),
        )
        capacity = runner.profile()
        runner.init_cache_engine(num_gpu_blocks=capacity.num_gpu_blocks, num_cpu_blocks=4)
        drawn.append(Driver(runner=runner).generate(make_prompts(9, 40, 3), num_tokens=20))
        if size == 2:
            runner.close()
    assert drawn[0] == drawn[1]
