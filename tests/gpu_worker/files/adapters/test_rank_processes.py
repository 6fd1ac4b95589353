"""Ranks that are processes load an adapter together, or none of them does."""

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.config import ModelError
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.ranks.launchers import LocalRank, LocalRanks
from signalbox_worker.runner.ranks.ranked_runner import RankedRunner
from tests.gpu_worker.files.adapters.peft_adapters import KINDS, make_adapter, peft_tokens
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.ranks.thread_ranks import make_start, with_sizes
from tests.gpu_worker.tiny_models import make_model
from tests.waiting import wait_until

pytestmark = pytest.mark.system

NUM_TOKENS = 8
NUM_BLOCKS = 64
SIZES = pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])


class TwoHosts:
    """Two ranks whose relative paths are below folders of their own, as on two hosts."""

    def __init__(self, folder: Path) -> None:
        self.here, self.there = folder / "here", folder / "there"
        self.model_path = folder / "model"
        self.model = make_model(self.model_path, "llama3", head_dim=16)
        for number, host in enumerate((self.here, self.there)):
            make_adapter(self.model, host / "same", **KINDS[0])
            make_adapter(self.model, host / "differs", seed=number, **KINDS[0])
        shutil.copytree(self.here / "same", self.here / "missing")
        self.lost: list[str] = []

    @contextlib.contextmanager
    def load(self, tp: int, pp: int) -> Iterator[RankedRunner]:
        start = make_start(self.model_path, ParallelConfig(), max_lora_rank=16, max_cpu_loras=8)
        start = with_sizes(start, tp, pp)
        with contextlib.chdir(self.here):
            runner = RankedRunner(start, on_lost=self.lost.append, ranks=LocalRanks(self._launch))
            try:
                runner.init_cache_engine(num_gpu_blocks=NUM_BLOCKS, num_cpu_blocks=0)
                yield runner
            finally:
                runner.close()

    def _launch(self, rank: int, address: str) -> LocalRank:
        with contextlib.chdir(self.there):
            return LocalRank(rank, address)


@pytest.fixture
def hosts(tmp_path: Path) -> TwoHosts:
    return TwoHosts(tmp_path)


@SIZES
def test_an_adapter_that_one_rank_cannot_load_is_loaded_by_none(
    hosts: TwoHosts, tp: int, pp: int
) -> None:
    prompts = make_prompts(7, 20)
    expected = peft_tokens(hosts.model, hosts.here / "same", prompts, NUM_TOKENS)
    with hosts.load(tp, pp) as runner:
        with pytest.raises(ModelError, match=r"rank 1: cannot read missing/adapter_config\.json"):
            runner.open_adapter("a", "missing")
        with pytest.raises(ModelError, match=r"rank 1 has other files of a .* than rank 0"):
            runner.open_adapter("a", "differs")
        assert runner.adapter_slots == {} and not runner.model.adapters
        opened = runner.open_adapter("a", "same")
        runner.add_adapter(opened)
        assert runner.model.adapters == (opened.info,)
        tokens = Driver(runner=runner).generate(prompts, num_tokens=NUM_TOKENS, adapters=[0, 0])
        assert tokens == expected
        runner.remove_adapter(opened.info)
        assert runner.adapter_slots == {} and not runner.model.adapters
    assert not hosts.lost


def test_the_end_of_a_rank_ends_the_wait_for_it(
    hosts: TwoHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    others_are_asked = threading.Event()

    with hosts.load(1, 2) as runner:
        open_own = runner._own.open_adapter

        def open_after_others(name: str, folder: str) -> OpenedAdapter:
            others_are_asked.set()
            return open_own(name, folder)

        def load() -> None:
            try:
                runner.open_adapter("a", "same")
            except DeviceLost as error:
                errors.append(error)

        monkeypatch.setattr(runner._own, "open_adapter", open_after_others)
        (rank,) = runner.follower_pids
        os.kill(rank, signal.SIGSTOP)  # it gives no answer
        loading = threading.Thread(target=load)
        loading.start()
        others_are_asked.wait()
        os.kill(rank, signal.SIGKILL)
        loading.join()
        assert len(errors) == 1
        wait_until(lambda: bool(hosts.lost))
