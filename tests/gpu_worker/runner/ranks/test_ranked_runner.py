"""Ranks, as processes, are one worker and have one fate; as threads, what they hold and pass on."""

import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch

from signalbox import LLM, EngineDeadError, SamplingParams
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sampling_params import SamplingParams as ContractParams
from signalbox_contract.startup import StartupProgress
from signalbox_contract.step import Step
from signalbox_contract.step_result import StageTimings
from signalbox_protos.rank.v1 import rank_pb2 as pb
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.sampling_rows import PromptRows, TokenRuns
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from signalbox_worker.device.device_choice import choose_device
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.kv.store_config import DiskConfig, SharedConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.ranks import rank_pool, ranked_runner
from signalbox_worker.runner.ranks.launchers import LocalRanks
from signalbox_worker.runner.ranks.rank_pool import RankPool
from signalbox_worker.runner.ranks.rank_shard import load_shard
from signalbox_worker.runner.ranks.ranked_runner import RankedRunner
from signalbox_worker.runner.ranks.service import rank_codec
from signalbox_worker.runner.ranks.service.rank_messages import (
    FailedStates,
    Failure,
    InitCacheEngine,
    Loaded,
    PassedStates,
    RankAddress,
    RemoveBlock,
    Start,
    Sync,
)
from signalbox_worker.runner.ranks.service.rank_servicer import (
    FirstRankServicer,
    JoinedRank,
    Meeting,
    RankServer,
)
from signalbox_worker.service.runner_factory import make_runner
from tests.gpu_worker.builders import make_mapping, make_step
from tests.gpu_worker.generation import Driver, make_batch, make_sequence
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.models.pooling.encoder_models import save_model
from tests.gpu_worker.runner.ranks.thread_ranks import (
    ThreadRank,
    load_threads,
    make_start,
    with_sizes,
)
from tests.gpu_worker.tiny_models import make_llama, make_model
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.system


def load(path: Path, tp: int = 2, pp: int = 1, **more: Any) -> RankedRunner:
    """Loads a worker of processes."""
    on_lost = more.pop("on_lost", lambda _: None)
    start = with_sizes(make_start(path, ParallelConfig(), **more), tp, pp)
    runner = make_runner(start, on_lost=on_lost)
    assert isinstance(runner, RankedRunner)
    return runner


def load_one(path: Path, **more: Any) -> Any:
    return load_threads(make_start(path, ParallelConfig(), cpu_backend="torch", **more))


@pytest.fixture(scope="module")
def ranks(tiny: Path) -> Iterator[RankedRunner]:
    runner = load(tiny)
    capacity = runner.profile()
    runner.init_cache_engine(
        num_gpu_blocks=capacity.num_gpu_blocks, num_cpu_blocks=capacity.num_cpu_blocks
    )
    yield runner
    runner.close()
    assert not any(map(psutil.pid_exists, runner.follower_pids))


def make_some(num_tokens: int = 5) -> Batch:
    (prompt,) = make_prompts(num_tokens)
    return make_batch([(make_sequence(prompt, [3]), num_tokens)], block_size=16)


def test_each_rank_holds_its_share_of_weights_and_cache(tiny: Path, ranks: RankedRunner) -> None:
    whole = load_one(tiny)
    capacity, shared = whole.profile(), ranks.profile()
    assert shared.block_bytes * 2 == capacity.block_bytes
    assert shared.num_gpu_blocks == capacity.num_gpu_blocks
    assert shared.num_cpu_blocks == capacity.num_cpu_blocks
    assert (shared.tensor_parallel_size, capacity.tensor_parallel_size) == (2, 1)
    assert ranks.memory().weights < 0.6 * whole.memory().weights  # norms are on each
    ranks.init_cache_engine(
        num_gpu_blocks=shared.num_gpu_blocks, num_cpu_blocks=shared.num_cpu_blocks
    )


def test_a_step_that_fails_on_all_ranks_costs_no_rank(ranks: RankedRunner) -> None:
    expected = ranks.execute(make_some()).token_ids.tolist()
    bad = make_some()
    bad.token_ids = bad.token_ids[:3]
    with pytest.raises((RuntimeError, ValueError)) as failure:
        ranks.execute(bad)
    assert not isinstance(failure.value, DeviceLost)
    assert ranks.execute(make_some()).token_ids.tolist() == expected


def test_a_draw_that_fails_on_rank_0_costs_no_rank(
    ranks: RankedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ranks.execute(make_some()).token_ids.tolist()

    def fail(*_: object) -> None:
        raise MemoryError("no memory to draw")

    with monkeypatch.context() as patch:
        patch.setattr(ranks._own.executor, "sampler", fail)
        with pytest.raises(MemoryError, match="no memory to draw"):
            ranks.execute(make_some())
    assert ranks.execute(make_some()).token_ids.tolist() == expected


def test_a_cache_that_rank_0_has_no_memory_for_costs_no_rank(
    ranks: RankedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ranks.execute(make_some()).token_ids.tolist()

    def fail(**_: int) -> None:
        raise MemoryError("no memory for 9 GPU blocks")

    with monkeypatch.context() as patch:
        patch.setattr(ranks._own, "init_cache_engine", fail)
        with pytest.raises(MemoryError, match="no memory for 9"):
            ranks.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=2)
    assert ranks.profile().tensor_parallel_size == 2  # no answer is taken for another's
    ranks.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=2)
    assert ranks.execute(make_some()).token_ids.tolist() == expected


def test_ranks_of_which_some_have_graphs_do_not_compute(
    ranks: RankedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(ranks._own.executor), "num_graphs", 3)
        with pytest.raises(DeviceLost, match="graphs could be recorded on some ranks only"):
            ranks.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=2)
    ranks.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=2)


def test_a_rank_that_fails_alone_ends_all(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_pool, "AGREE_S", 0.2)
    reasons: list[str] = []
    told = threading.Event()
    runner = load(tiny, on_lost=lambda reason: (reasons.append(reason), told.set()))
    bad = make_some()
    bad.token_ids = bad.token_ids[:3]
    runner._others.send(bad)  # and not to rank 0
    assert told.wait(EVENT_S)
    assert reasons[0].startswith("rank 1 failed alone: ")
    with pytest.raises(DeviceLost, match="rank 1 failed alone"):
        runner.execute(make_some())
    runner.close()
    assert len(reasons) == 1


@pytest.mark.parametrize("model", ["tiny", "native_tiny"])
def test_a_rank_that_dies_ends_an_engine_that_is_waiting_for_it(
    model: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    path, others = request.getfixturevalue(model), set(psutil.Process().children())
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory": 0.001}
    with LLM(str(path), tensor_parallel_size=2, device="cpu", dtype="float32", **limits) as llm:
        started = set(psutil.Process().children()) - others
        (rank,) = (one for one in started if "follower_process" in str(one.cmdline()))
        has_torch = any("torch" in one.path for one in rank.memory_maps())
        assert has_torch == (model == "tiny")
        threading.Timer(0.5, rank.kill).start()
        params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0)
        with pytest.raises(EngineDeadError):
            while True:
                llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)
        wait_until(lambda: "rank 1 was killed by SIGKILL; the engine is dead" in caplog.text)


def test_a_rank_that_stands_still_ends_all(tmp_path: Path) -> None:
    make_llama(tmp_path)
    reasons: list[str] = []
    told = threading.Event()
    on_lost = lambda reason: (reasons.append(reason), told.set())  # noqa: E731
    runner = load(tmp_path, 2, 2, cpu_backend="native", on_lost=on_lost)
    runner.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=0)
    ranks = [psutil.Process(pid) for pid in runner.follower_pids]
    runner.execute(make_some())
    ranks[0].suspend()
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(runner.execute, make_some())
        assert told.wait(EVENT_S)
        assert reasons == ["rank 1 no longer answers"]
        runner.close()
        with pytest.raises(DeviceLost):
            waiting.result()
    assert not any(rank.is_running() for rank in ranks)


@pytest.mark.parametrize("is_in_order", [True, False])
def test_a_follower_ends_with_rank_0_and_not_before(is_in_order: bool, tmp_path: Path) -> None:
    joined: SimpleQueue[JoinedRank] = SimpleQueue()
    meeting = Meeting()
    servicer = FirstRankServicer(lambda one: joined.put(one), meeting, lambda rank: None)
    server = RankServer(servicer, f"unix:{tmp_path}/0", num_streams=2)
    module = "signalbox_worker.runner.ranks.follower_process"
    process = subprocess.Popen(
        [sys.executable, "-m", "signalbox_rpc.lifetime.parent", module, "1", server.address]
    )
    try:
        stream = joined.get(timeout=EVENT_S)
        until_it_ignores(process.pid, signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        if not is_in_order:
            meeting.call_off("rank 2 is gone")
        stream.end()
        assert process.wait(EVENT_S) == (0 if is_in_order else 1)
    finally:
        process.kill()
        server.close()


def until_it_ignores(pid: int, number: signal.Signals) -> None:
    def ignores() -> bool:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (ignored,) = (int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
        return bool(ignored >> (number - 1) & 1)

    wait_until(ignores)


def test_heads_that_do_not_divide_are_named_and_leave_no_process(tmp_path: Path) -> None:
    make_model(tmp_path, num_attention_heads=3, num_key_value_heads=3)
    others = psutil.Process().children()
    with pytest.raises(ModelError, match=r"num_attention_heads \(3\) .*size 2; it can by 1, 3"):
        load(tmp_path)
    assert psutil.Process().children() == others


def test_a_rank_that_dies_before_it_meets_the_others_is_not_waited_for(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(psutil.Process().children())

    def kill_first(*args: Any, **kwargs: Any) -> Any:
        for rank in set(psutil.Process().children()) - others:
            rank.kill()
        return load_shard(*args, **kwargs)

    monkeypatch.setattr(ranked_runner, "load_shard", kill_first)
    with pytest.raises(RuntimeError, match=r"rank 1 was killed|[Cc]onnect"):  # or gloo is first
        load(tiny)
    assert set(psutil.Process().children()) == others


def test_a_rank_that_cannot_load_waits_until_rank_0_has_said_why() -> None:
    others = RankPool(2, LocalRanks(ThreadRank))
    others.wait_until_joined()
    parallel = ParallelConfig(rank=1, tensor_parallel_size=2)
    others.send(replace(make_start(Path("none"), parallel), parallel=parallel))
    with pytest.raises(RuntimeError, match=r"rank 1: model not found: none"):
        others.answers(Loaded)
    others.close()
    assert not others.lost.done()


def test_more_ranks_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = DeviceConfig(device="cuda")
    sizes = {"tensor_parallel_size": 4, "rank": 3}
    with pytest.raises(ValueError, match="is 4, of which 4 are on this host, but PyTorch finds 2"):
        choose_device(config, ParallelConfig(local_rank=3, local_size=4, **sizes))
    assert choose_device(config, ParallelConfig(local_rank=1, local_size=2, **sizes)).index == 1
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # as for a task with its own
    alone = ParallelConfig(local_rank=1, local_size=2, is_placed=True, **sizes)
    assert choose_device(config, alone).index == 0


def test_blocks_are_moved_on_every_rank(ranks: RankedRunner) -> None:
    (prompt,) = make_prompts(9)
    (expected,) = Driver(runner=cast(Any, ranks)).generate([prompt], num_tokens=4)
    sequence = make_sequence(prompt, [2])
    ranks.execute(make_batch([(sequence, 9)], block_size=16))
    mapping = make_mapping
    ranks.apply(make_step(swap_out=mapping({2: 1}), swap_in=mapping({1: 7}), copy=mapping({7: 4})))
    moved = make_sequence([*prompt, *expected[:1]], [4], num_computed=9)
    drawn = ranks.execute(make_batch([(moved, 1)], block_size=16)).token_ids.tolist()
    assert drawn == expected[1:2]


def test_what_is_sent_between_ranks_arrives_as_it_was() -> None:
    disk = DiskConfig(kv_disk=Path("/d"), kv_disk_space=2)
    start = Start(
        model=ModelConfig(model="m", model_plugin="a,b", max_model_len=9, trust_remote_code=True),
        cache=CacheConfig(kv_cache_memory=1024, gpu_memory_utilization=0.7),
        parallel=ParallelConfig(rank=1, tensor_parallel_size=2, layer_partition=(3, 1)),
        device=DeviceConfig(num_threads=3, kernel_cache=Path("/k"), max_cudagraph_capture_size=0),
        disk=disk,
        addresses=(RankAddress("host:9", "worker.a"), RankAddress("host:10")),
    )
    for command in (start, Sync(), InitCacheEngine(5, 0), RemoveBlock(b"\xff\0")):
        assert rank_codec.decode_command(rank_codec.encode_command(command)) == command
    sections = make_step(swap_in=make_mapping({5: 1, 2: 3}))
    arrived = rank_codec.decode_command(rank_codec.encode_command(sections))
    assert isinstance(arrived, Step)
    assert arrived.section_counts == sections.section_counts
    np.testing.assert_array_equal(arrived.block_moves.swap_in, sections.block_moves.swap_in)


def test_a_batch_arrives_with_the_tokens_whose_logits_are_wanted() -> None:
    batch = make_batch(
        [
            (make_sequence([5, 6, 7], [1]), 3),
            (make_sequence([8, 9], [2], ContractParams(temperature=1.0)), 2),
        ],
        block_size=16,
    )
    batch.rows.suppressed = TokenRuns(
        np.array([2, 2], dtype=np.int32), np.array([3, 4], dtype=np.int32)
    )
    tokens = np.array([1, 2, 4])
    batch.prompt_rows = PromptRows(
        seq_index=np.array([0]),
        first_position=np.array([1]),
        lengths=np.array([3]),
        token_index=tokens,
        targets=np.array([8, 8, 8], dtype=np.int32),
        num_logprobs=np.array([0, 0, 0]),
    )
    arrived = rank_codec.decode_command(rank_codec.encode_command(batch))
    assert isinstance(arrived, Batch) and arrived.prompt_rows is not None
    for name in ("token_ids", "positions", "slot_mapping", "query_start", "context_lens"):
        np.testing.assert_array_equal(getattr(arrived, name), getattr(batch, name))
    np.testing.assert_array_equal(arrived.block_tables, batch.block_tables)
    np.testing.assert_array_equal(arrived.rows.token_index, batch.rows.token_index)
    np.testing.assert_array_equal(arrived.prompt_rows.token_index, tokens)
    assert arrived.wanted is not None and arrived.wanted.suppressed is not None
    assert batch.rows.token_index.tolist() == [2, 4]
    assert arrived.wanted.tokens.tolist() == [4]  # the other row takes its likeliest token
    assert arrived.wanted.suppressed.ends.tolist() == [2, 2]
    assert arrived.wanted.suppressed.token_ids.tolist() == [3, 4]
    assert math.prod(arrived.block_tables.shape) == batch.block_tables.size


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("", b""),
        ("Loaded", b'["a","b","c"]'),  # a report
        ("Path", b'"/etc"'),
        ("InitCacheEngine", b"[5]"),
        ("InitCacheEngine", b'[5,"0"]'),
        ("InitCacheEngine", b"[5,0,1]"),
        ("RemoveBlock", b'["*"]'),
        ("Start", b'{"model":{"later":1}}'),
        ("Start", b"[" * 100_000),
    ],
)
def test_a_message_that_ranks_do_not_send_is_refused(name: str, fields: bytes) -> None:
    sent = pb.JoinResponse(message=pb.RankMessage(name=name, fields=fields))
    with pytest.raises(ValueError):
        rank_codec.decode_command(sent)


def test_hidden_states_arrive_as_they_were() -> None:
    values = np.arange(24, dtype=np.uint8).reshape(3, 8)
    sent = PassedStates(7, values, (StageTimings(1, 2, 3, 4, 5, 6),))
    arrived = rank_codec.decode_states(rank_codec.encode_states(sent), num_tokens=3)
    assert isinstance(arrived, PassedStates) and arrived.values.flags.writeable
    assert arrived._replace(values=values) == sent
    np.testing.assert_array_equal(arrived.values, values)
    failed = FailedStates(7, Failure("no memory for it", True))
    assert rank_codec.decode_states(rank_codec.encode_states(failed), num_tokens=3) == failed


def test_ranks_whose_blocks_have_other_sizes_are_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank tries backends on its own device, and may take another one."""
    runner = load_threads(with_sizes(make_start(tiny, ParallelConfig()), 1, 2))
    measure = LocalRunner.measure

    def odd(self: LocalRunner) -> WorkerCapacity:
        return replace(measure(self), block_size=32 if self is runner._own else 16)

    with monkeypatch.context() as patch:
        patch.setattr(LocalRunner, "measure", odd)
        with pytest.raises(ValueError, match="blocks of different sizes; name one of them"):
            runner.profile()
    assert runner.profile().pipeline_parallel_size == 2
    runner.close()


@pytest.mark.parametrize(
    ("store", "flag"),
    [
        ({"disk": DiskConfig(kv_disk=Path("/kv"))}, "--kv-disk"),
        ({"shared": SharedConfig(kv_store="redis://localhost")}, "--kv-store"),
    ],
)
def test_a_model_that_pools_is_refused_a_store_before_it_is_loaded(
    store: dict[str, Any], flag: str, tmp_path: Path
) -> None:
    save_model(tmp_path, "bert")
    start = replace(make_start(tmp_path, ParallelConfig()), **store)
    reports: list[StartupProgress] = []
    with pytest.raises(ModelError, match=f"{flag} takes a model that generates; leave it out"):
        load_shard(start, progress=reports.append)
    assert reports == []


@pytest.mark.parametrize("sizes", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_a_model_that_pools_is_refused_on_several_ranks(
    sizes: dict[str, int], tmp_path: Path
) -> None:
    save_model(tmp_path, "bert")
    start = make_start(tmp_path, ParallelConfig(**sizes))
    with pytest.raises(ModelError, match="a model that pools runs on one rank; use tensor_"):
        load_shard(start)
