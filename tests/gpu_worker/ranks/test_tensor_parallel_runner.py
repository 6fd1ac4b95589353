"""Two gloo ranks, as processes, are one worker: the same tokens as one, and one fate."""

import json
import math
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
import torch

from contract.model import WorkerCapacity
from contract.step import Step
from gpu_worker.batch.batch import Batch
from gpu_worker.batch.runner_protocol import Runner
from gpu_worker.batch.sampling_rows import PromptRows
from gpu_worker.config import (
    GIB,
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ModelError,
    ParallelConfig,
)
from gpu_worker.device.device_choice import choose_device
from gpu_worker.device.device_errors import DeviceLost
from gpu_worker.ranks import follower_handles, rank_codec
from gpu_worker.ranks import tensor_parallel_runner as ranks_runner
from gpu_worker.ranks.follower_handles import Followers
from gpu_worker.ranks.rank_messages import Ask, Done, InitCacheEngine, Start
from gpu_worker.ranks.tensor_parallel_runner import TensorParallelRunner
from gpu_worker.runner.model_runner import ModelRunner
from gpu_worker.runner_factory import make_runner
from scheduler_svc.config import PreemptionMode, SchedulingSettings
from signalbox import LLM, EngineDeadError, RequestOutput, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from tests.gpu_worker.builders import make_mapping, make_step
from tests.gpu_worker.generation import Driver, make_batch, make_sequence
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.tiny_models import make_model
from tests.rounding import LOGITS
from tests.signalbox.llm.make import assert_at_rest
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.system

MAX_TOKENS = 26
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 0.9, "seed": 3, "n": 2, "presence_penalty": 0.8, "frequency_penalty": 0.4},
    {"temperature": 1, "seed": 5, "top_p": 0.8, "repetition_penalty": 1.4, "logprobs": 0},
    {"temperature": 0.7, "seed": 8, "top_k": 9, "min_p": 0.02},
]


def load(path: Path, size: int, *, kv_bytes: int = 1 << 20, **more: Any) -> Runner:
    return make_runner(
        ModelConfig(model=str(path), dtype="float32"),
        CacheConfig(
            kv_cache_memory=kv_bytes / GIB,
            swap_space=kv_bytes / GIB,
            max_num_seqs=8,
            max_num_batched_tokens=64,
        ),
        tensor_parallel_size=size,
        device_config=DeviceConfig(device="cpu"),
        progress=lambda _: None,
        **{"on_lost": lambda _: None} | more,
    )


def load_ranks(path: Path, **more: Any) -> TensorParallelRunner:
    return cast(TensorParallelRunner, load(path, 2, **more))


def make_llm(path: Path, size: int, mode: PreemptionMode, *, num_blocks: int) -> LLM:
    read = json.loads((path / "config.json").read_text())
    head_size = read.get("head_dim") or read["hidden_size"] // read["num_attention_heads"]
    kv_bytes = (
        num_blocks
        * 16
        * 2
        * 4
        * (read["num_hidden_layers"] * read["num_key_value_heads"] * head_size)
    )
    scheduling = SchedulingSettings(preemption_mode=mode, prefix_caching=False)
    config = CoreConfig(scheduling=scheduling)
    return LLM._from_runner(partial(load, path, size, kv_bytes=kv_bytes), config)


def generate(llm: LLM) -> list[RequestOutput]:
    """More than there are blocks for, drawn in every way."""
    prompts: Any = [{"prompt_token_ids": ids} for ids in make_prompts(*[31, 17, 9, 23] * 2)]
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, **SAMPLING[i % len(SAMPLING)])
        for i in range(len(prompts))
    ]
    return llm.generate(prompts, params, use_tqdm=False)


def tokens_of(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[one.token_ids for one in output.outputs] for output in outputs]


def logprobs_of(outputs: list[RequestOutput]) -> list[float]:
    """Of all tokens for which they were reported, in order."""
    found: list[float] = []
    for output in outputs:
        for position in output.prompt_logprobs or []:
            found += [one.logprob for one in (position or {}).values()]
        for completion in output.outputs:
            for ranked in completion.logprobs or []:
                found += [one.logprob for one in ranked.values()]
    return found


@pytest.mark.parametrize(
    ("family", "changes", "mode"),
    [
        ("llama3", {}, PreemptionMode.SWAP),  # grouped queries, tied embeddings
        ("mistral", {"num_key_value_heads": 1}, PreemptionMode.SWAP),  # its head on both ranks
        ("qwen2", {}, PreemptionMode.RECOMPUTE),  # biases
        ("mixtral", {}, PreemptionMode.RECOMPUTE),
    ],
)
def test_two_ranks_give_the_tokens_of_one(
    family: str, changes: dict[str, int], mode: PreemptionMode, tmp_path: Path
) -> None:
    make_model(tmp_path, family, **changes)
    outputs = []
    for size in (1, 2):
        with make_llm(tmp_path, size, mode, num_blocks=16) as llm:
            outputs.append(generate(llm))
            assert llm.llm_engine._core.scheduler.preemption.num_preemptions > 0
            assert_at_rest(llm.llm_engine)
    one, two = outputs
    assert tokens_of(two) == tokens_of(one)
    assert len(logprobs_of(one)) > 2 * 2 * MAX_TOKENS
    np.testing.assert_allclose(logprobs_of(two), logprobs_of(one), rtol=0, atol=LOGITS)


@pytest.fixture(scope="module")
def ranks(tiny: Path) -> Iterator[TensorParallelRunner]:
    runner = load_ranks(tiny)
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


def test_each_rank_holds_its_share_of_weights_and_cache(
    tiny: Path, ranks: TensorParallelRunner
) -> None:
    whole = cast(Any, load(tiny, 1))
    capacity, shared = whole.profile(), ranks.profile()
    assert shared.block_bytes * 2 == capacity.block_bytes
    assert shared.num_gpu_blocks == capacity.num_gpu_blocks
    assert shared.num_cpu_blocks == capacity.num_cpu_blocks
    assert (shared.tensor_parallel_size, capacity.tensor_parallel_size) == (2, 1)
    assert ranks.memory().weights < 0.6 * whole.memory().weights  # norms are on each
    ranks.init_cache_engine(
        num_gpu_blocks=shared.num_gpu_blocks, num_cpu_blocks=shared.num_cpu_blocks
    )


def test_a_step_that_fails_on_all_ranks_costs_no_rank(ranks: TensorParallelRunner) -> None:
    expected = ranks.execute(make_some()).token_ids.tolist()
    bad = make_some()
    bad.token_ids = bad.token_ids[:3]
    with pytest.raises((RuntimeError, ValueError)) as failure:
        ranks.execute(bad)
    assert not isinstance(failure.value, DeviceLost)
    assert ranks.execute(make_some()).token_ids.tolist() == expected


def test_a_draw_that_fails_on_rank_0_costs_no_rank(
    ranks: TensorParallelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ranks.execute(make_some()).token_ids.tolist()

    def fail(*_: object) -> None:
        raise MemoryError("no memory to draw")

    with monkeypatch.context() as patch:
        patch.setattr(ranks._rank._executor, "sampler", fail)
        with pytest.raises(MemoryError, match="no memory to draw"):
            ranks.execute(make_some())
    assert ranks.execute(make_some()).token_ids.tolist() == expected


def test_a_cache_that_rank_0_has_no_memory_for_costs_no_rank(
    ranks: TensorParallelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ranks.execute(make_some()).token_ids.tolist()

    def fail(**_: int) -> None:
        raise MemoryError("no memory for 9 GPU blocks")

    with monkeypatch.context() as patch:
        patch.setattr(ranks._rank, "init_cache_engine", fail)
        with pytest.raises(MemoryError, match="no memory for 9"):
            ranks.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=2)
    assert ranks.profile().tensor_parallel_size == 2  # no answer is taken for another's
    ranks.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=2)
    assert ranks.execute(make_some()).token_ids.tolist() == expected


def test_ranks_of_which_some_have_graphs_do_not_compute(
    ranks: TensorParallelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(ranks._rank), "num_graphs", 3)
        with pytest.raises(DeviceLost, match="graphs could be recorded on some ranks only"):
            ranks.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=2)
    ranks.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=2)


def test_a_rank_that_fails_alone_ends_all(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_handles, "AGREE_S", 0.2)
    reasons: list[str] = []
    told = threading.Event()
    runner = load_ranks(tiny, on_lost=lambda reason: (reasons.append(reason), told.set()))
    bad = make_some()
    bad.token_ids = bad.token_ids[:3]
    runner._others.send(bad)  # and not to rank 0
    assert told.wait(EVENT_S)
    assert reasons[0].startswith("rank 1 failed alone: ")
    with pytest.raises(DeviceLost, match="rank 1 failed alone"):
        runner.execute(make_some())
    runner.close()
    assert len(reasons) == 1


def test_a_rank_that_dies_ends_an_engine_that_is_waiting_for_it(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = set(psutil.Process().children())
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "kv_cache_memory": 0.001}
    with LLM(str(tiny), tensor_parallel_size=2, device="cpu", dtype="float32", **limits) as llm:
        (rank,) = set(psutil.Process().children()) - others
        threading.Timer(0.5, rank.kill).start()
        params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0)
        with pytest.raises(EngineDeadError):
            while True:
                llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)
    assert "rank 1 was killed by SIGKILL; the engine is dead" in caplog.text


def test_a_follower_ends_with_rank_0_and_not_before() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "gpu_worker.ranks.follower_process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
    try:
        until_it_ignores(process.pid, signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        ours.close()
        assert process.wait(EVENT_S) == 0
    finally:
        process.kill()


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
        load(tmp_path, 2)
    assert psutil.Process().children() == others


def test_a_rank_that_dies_before_it_joins_is_not_waited_for(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(psutil.Process().children())

    def kill_first(*args: Any, **kwargs: Any) -> ModelRunner:
        for rank in set(psutil.Process().children()) - others:
            rank.kill()
        return ModelRunner(*args, **kwargs)

    monkeypatch.setattr(ranks_runner, "ModelRunner", kill_first)
    with pytest.raises(RuntimeError, match=r"rank 1 was killed|[Cc]onnect"):  # or gloo is first
        load_ranks(tiny)
    assert set(psutil.Process().children()) == others


def test_a_rank_that_cannot_load_waits_until_rank_0_has_said_why() -> None:
    start = Start(
        model=ModelConfig(model="m"),
        cache=CacheConfig(),
        parallel=ParallelConfig(rank=1, tensor_parallel_size=2),
        device=DeviceConfig(device="cpu"),
    )
    reasons: list[str] = []
    others = Followers([start], reasons.append)
    assert others.answers(Done) == [Done.JOINING]
    with pytest.raises(RuntimeError, match=r"rank 1: .* the ranks have no address to meet at"):
        others.answers(Done)
    (pid,) = others.pids
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(pid).wait(0.5)
    others.close()
    assert not reasons


def test_more_ranks_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = DeviceConfig(device="cuda")
    with pytest.raises(ValueError, match="tensor_parallel_size is 4, but PyTorch finds 2 CUDA"):
        choose_device(config, ParallelConfig(rank=3, tensor_parallel_size=4))
    assert choose_device(config, ParallelConfig(rank=1, tensor_parallel_size=2)).index == 1


def test_blocks_are_moved_on_every_rank(ranks: TensorParallelRunner) -> None:
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
    start = Start(
        model=ModelConfig(model="m", model_plugin="a,b", max_model_len=9),
        cache=CacheConfig(kv_cache_memory=1024, gpu_memory_utilization=0.7),
        parallel=ParallelConfig(rank=1, tensor_parallel_size=2, rendezvous="/f"),
        device=DeviceConfig(num_threads=3),
    )
    for command in (start, Ask.SYNC, InitCacheEngine(5, 0)):
        assert rank_codec.decode_command(rank_codec.encode_command(command)) == command
    sections = make_step(swap_in=make_mapping({5: 1, 2: 3}))
    arrived = rank_codec.decode_command(rank_codec.encode_command(sections))
    assert isinstance(arrived, Step)
    assert arrived.section_counts == sections.section_counts
    np.testing.assert_array_equal(arrived.block_moves.swap_in, sections.block_moves.swap_in)


def test_a_batch_arrives_with_the_tokens_whose_logits_are_wanted() -> None:
    batch = make_some(7)
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
    assert math.prod(arrived.block_tables.shape) == batch.block_tables.size


def test_ranks_whose_blocks_have_other_sizes_are_refused() -> None:
    """Each rank tries backends on its own device, and may take another one."""

    class Ranks:
        def __init__(self, block_size: int) -> None:
            sizes = {"block_size": block_size, "num_gpu_blocks": 9, "num_cpu_blocks": 0}
            limits = {"block_bytes": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1}
            self._capacity = WorkerCapacity(**sizes, **limits)

        def profile(self) -> WorkerCapacity:
            return self._capacity

        def send(self, command: object) -> None:
            assert command is Ask.PROFILE

        def answers(self, kind: object) -> list[WorkerCapacity]:
            return [self._capacity]

    runner = object.__new__(TensorParallelRunner)
    runner._own, runner._others = cast(Any, Ranks(16)), cast(Any, Ranks(16))
    assert runner.profile().block_size == 16
    runner._others = cast(Any, Ranks(256))
    with pytest.raises(ValueError, match="blocks of different sizes; name one of them"):
        runner.profile()
