"""Workers whose ranks are threads of this process, which start sooner than processes."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.config import (
    GIB,
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    SpeculationConfig,
)
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.ranks.follower_process import Follower
from signalbox_worker.runner.ranks.launchers import LocalRanks
from signalbox_worker.runner.ranks.rank_network import RankNetwork
from signalbox_worker.runner.ranks.ranked_runner import RankedRunner
from signalbox_worker.runner.ranks.service.rank_messages import Start
from signalbox_worker.runner.ranks.stage import Stage
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service.runner_factory import make_runner
from tests.waiting import EVENT_S

SIZES = [
    ("native", 1, 1),
    ("torch", 1, 1),
    *(pytest.param(*one, marks=pytest.mark.system) for one in [("native", 2, 1), ("native", 1, 2)]),
]
"""What computes, tensor-parallel ranks and stages."""


class ThreadRank:
    """Satisfies `StartedRank`."""

    def __init__(self, rank: int, address: str) -> None:
        self.status: int | None = None
        self._ended = threading.Event()
        network = RankNetwork(address=f"{address.rpartition('/')[0]}/{rank}", first_address=address)
        self._made: Future[Follower] = Future()
        arguments = (rank, network)
        threading.Thread(
            target=self._serve, args=arguments, name=f"serves {rank}", daemon=True
        ).start()

    def _serve(self, rank: int, network: RankNetwork) -> None:
        try:  # rank 0 listens once it has started the others
            made = Follower(rank, network, on_end=self._end, on_loaded=self._keep)
            self._made.set_result(made)
        except BaseException as error:
            self._made.set_exception(error)
            self._end(1)
        else:
            self._follower.serve()

    @property
    def _follower(self) -> Follower:
        return self._made.result(EVENT_S)

    def _keep(self, stage: Stage, number: int) -> None:
        self.shard = stage.runner

    def _end(self, status: int) -> None:
        self.status = status
        self._ended.set()

    def wait(self) -> None:
        self._ended.wait()

    def kill(self) -> None:
        self._follower.close()

    def end(self, *, within_s: float) -> None:
        assert self._ended.wait(within_s)
        self._follower.close()

    def how_it_ended(self) -> str:
        return f"exited with status {self.status}"


def make_start(
    path: Path,
    parallel: ParallelConfig,
    *,
    kv_bytes: int = 1 << 20,
    kv_dtype: str = "auto",
    **more: Any,
) -> Start:
    """Args: more: fields of the model's and the device's configuration."""
    model = {"model": str(path), "dtype": "float32"}
    device = {"device": "cpu", "num_threads": 1}
    for name, value in more.items():
        (model if name in ModelConfig.model_fields else device)[name] = value
    return Start(
        model=ModelConfig.model_validate(model),
        cache=CacheConfig(
            kv_cache_dtype=kv_dtype,
            kv_cache_memory=kv_bytes / GIB,
            swap_space=kv_bytes / GIB,
            max_num_seqs=8,
            max_num_batched_tokens=64,
        ),
        parallel=parallel,
        device=DeviceConfig.model_validate(device),
    )


def load_threads(start: Start) -> Any:
    """Returns a runner over threads, which are its `followers`; one of a single rank has none."""
    if start.parallel.num_ranks == 1:
        return make_runner(start)
    followers: list[ThreadRank] = []

    def launch(rank: int, address: str) -> ThreadRank:
        followers.append(ThreadRank(rank, address))
        return followers[-1]

    runner: Any = RankedRunner(start, on_lost=lambda _: None, ranks=LocalRanks(launch))
    runner.followers = followers
    return runner


def loading(
    path: Path, backend: str, tp: int, pp: int, *, num_drafts: int = 0
) -> Callable[[], Runner]:
    """Returns what loads a model of 250 tokens over threads, with room for several requests.

    Args: num_drafts: most drafts of a sequence in a step.
    """
    start = make_start(
        path, ParallelConfig(), kv_bytes=1 << 25, max_model_len=250, cpu_backend=backend
    )
    start = replace(
        start,
        cache=start.cache.model_copy(update={"max_num_seqs": 32}),
        speculation=SpeculationConfig(num_tokens=num_drafts),
    )
    return lambda: load_threads(with_sizes(start, tp, pp))


def with_sizes(start: Start, tp: int, pp: int) -> Start:
    return replace(
        start, parallel=ParallelConfig(tensor_parallel_size=tp, pipeline_parallel_size=pp)
    )
