"""Profiles are taken of a worker that goes on; the memory report adds up."""

import asyncio
import gzip
import itertools
import json
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch

from signalbox.commands.inspect.profile import time_spent
from signalbox_contract.columns import pack_int64
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_worker.device.memory import tensor_bytes
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.profiler import Profile, Profiler
from tests.gpu_worker.builders import make_config
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.served_worker import EPOCH, make_group, serving
from tests.waiting import EVENT_S

SHORT_NS = 300_000_000
BLOCKS = {"num_gpu_blocks": 8, "num_cpu_blocks": 4}


def load(path: Path, **options: Any) -> LocalRunner:
    return make_runner(path, kv_cache_memory=1 / 1024, swap_space=1 / 1024, **options)


def size_on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


async def execute(stub: worker_pb2_grpc.WorkerServiceStub, *, step_id: int) -> None:
    """One step that prefills a sequence, and forgets the one before."""
    request = pb.ExecuteModelRequest(
        epoch=EPOCH,
        step_id=step_id,
        new_groups=[make_group(step_id, [3, 4, 5], [0])],
        finished_seq_ids=pack_int64([step_id - 1] if step_id > 1 else []),
    )
    async for response in stub.ExecuteModel(iter([request])):
        assert response.step_id == step_id


async def execute_during(
    stub: worker_pb2_grpc.WorkerServiceStub, task: asyncio.Task[tuple[pb.ProfileResponse, bytes]]
) -> tuple[pb.ProfileResponse, bytes]:
    """Executes steps until a profile is taken."""
    for step_id in itertools.count(1):
        await execute(stub, step_id=step_id)
        if task.done():
            return task.result()
        await asyncio.sleep(0.02)
    raise AssertionError


async def profile(
    stub: worker_pb2_grpc.WorkerServiceStub, **fields: int
) -> tuple[pb.ProfileResponse, bytes]:
    call = stub.Profile(pb.ProfileRequest(**{"duration_ns": SHORT_NS} | fields))
    parts = [part async for part in call]
    assert not any(part.kernel_ns for part in parts[1:])
    return parts[0], b"".join(part.chunk for part in parts)


async def test_a_profile_shows_the_steps_that_ran_meanwhile(tiny: Path) -> None:
    async with serving(load(tiny), **BLOCKS) as stub:
        task = asyncio.create_task(profile(stub, record_shapes=True))
        first, trace = await execute_during(stub, task)
    names = {one.name: one.count for one in time_spent(trace)}
    assert names["forward"] == names["sample"] == first.num_steps > 0
    assert not first.kernel_ns
    assert any(name.startswith("aten::") for name in names)
    assert json.loads(gzip.decompress(trace))["traceEvents"]


async def test_profiles_are_taken_one_at_a_time_and_end_with_their_call(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, record = asyncio.Event(), Profiler._record

    async def observed(self: Profiler, *arguments: Any) -> Profile:
        begun.set()
        return await record(self, *arguments)

    monkeypatch.setattr(Profiler, "_record", observed)
    async with serving(load(tiny), **BLOCKS) as stub:
        first = stub.Profile(pb.ProfileRequest(duration_ns=60 * 10**9))
        await begun.wait()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await profile(stub)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        first.cancel()
        async with asyncio.timeout(EVENT_S):
            while True:  # the recording ends soon after its call
                try:
                    await profile(stub, duration_ns=1)
                    break
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("duration_ns", [0, 60 * 10**9 + 1])
async def test_a_profile_of_no_or_of_unbounded_time_is_refused(
    duration_ns: int, tiny: Path
) -> None:
    async with serving(load(tiny), **BLOCKS) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await profile(stub, duration_ns=duration_ns)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_simulated_worker_has_neither_profile_nor_memory() -> None:
    async with serving(SimulatedRunner(make_config())) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await profile(stub)
        info = await stub.GetWorkerInfo(pb.GetWorkerInfoRequest())
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not info.memory


@pytest.mark.parametrize("cpu_backend", ["torch", "native"])
async def test_the_memory_report_adds_up(cpu_backend: str, native_tiny: Path) -> None:
    async with serving(load(native_tiny, cpu_backend=cpu_backend), **BLOCKS) as stub:
        info = await stub.GetWorkerInfo(pb.GetWorkerInfoRequest())
    memory = {part.name: part.num_bytes for part in info.memory}
    block_bytes = info.capacity.block_bytes
    assert (memory["kv"], memory["swap"]) == (8 * block_bytes, 4 * block_bytes)
    on_disk = size_on_disk(native_tiny)
    assert 0.9 * on_disk < memory["weights"] < 3 * on_disk  # packed panels are padded
    assert memory["weights"] < memory["used"] < memory["total"]
    assert memory["unused"] == 0


async def test_native_kernels_say_what_the_forward_pass_consists_of(native_tiny: Path) -> None:
    async with serving(load(native_tiny, cpu_backend="native"), **BLOCKS) as stub:
        first, trace = await execute_during(stub, asyncio.create_task(profile(stub)))
    names = {one.name: one.count for one in time_spent(trace)}
    assert names["forward"] == names["sample"] == first.num_steps > 0
    assert set(first.kernel_ns) >= {"embed", "norm", "linear", "rotate", "attend", "head"}
    assert all(0 < ns < 60 * 10**9 for ns in first.kernel_ns.values())


@pytest.mark.parametrize("option", ["record_shapes", "with_stack"])
async def test_a_native_profile_has_neither_shapes_nor_stacks(
    option: str, native_tiny: Path
) -> None:
    async with serving(load(native_tiny, cpu_backend="native"), **BLOCKS) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await profile(stub, **{option: True})
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await execute_during(stub, asyncio.create_task(profile(stub)))  # others are taken


def test_each_memory_is_counted_once() -> None:
    class Layer:
        def __init__(self, weight: torch.Tensor) -> None:
            self.weight = weight
            self.apply = partial(print, weight)

    weight = torch.zeros(10, 10)
    layers = [Layer(weight), Layer(weight.view(100)), Layer(torch.zeros(5))]
    layers[0].parent = layers  # type: ignore[attr-defined]
    assert tensor_bytes(layers) == 400 + 20
