"""The first request that names an adapter of `--adapter-dir` gets that adapter's tokens: PEFT's."""

from pathlib import Path

import httpx2
import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from tests.gpu_worker.files.adapters.peft_adapters import KINDS, make_adapters, peft_tokens
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import make_model, reference_tokens
from tests.integration.adapters.loading import loaded_on
from tests.integration.stack import assert_idle, running_router, running_scheduler, running_worker
from tests.native_kernels import skip_without_native_kernels
from tests.waiting import EVENT_S

pytestmark = pytest.mark.slow

NUM_TOKENS = 8


async def tokens_over_http(address: str, model: str, prompt: list[int]) -> list[int]:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    async with httpx2.AsyncClient(timeout=EVENT_S) as client:
        answer = await client.post(f"http://{address}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    tokens: list[int] = answer.json()["choices"][0]["token_ids"]
    return tokens


async def tokens_over_grpc(address: str, model: str, prompt: list[int]) -> list[int]:
    request = pb.GenerateRequest(
        model=model,
        token_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True),
    )
    async with open_channel(address) as channel:
        answers = pb_grpc.InferenceServiceStub(channel).Generate(request, timeout=EVENT_S)
        return [i async for one in answers for output in one.outputs for i in output.token_ids]


@pytest.mark.parametrize("tp", [1, 2])
async def test_the_first_request_for_an_adapter_is_computed_with_it(
    tmp_path: Path, tp: int
) -> None:
    skip_without_native_kernels()
    model, folder = make_model(tmp_path, "llama3", head_dim=16), tmp_path / "adapters"
    make_adapters(model, folder, KINDS[:2])
    (prompt,) = make_prompts(17)
    base = reference_tokens(model, prompt, NUM_TOKENS)
    first, second = (
        peft_tokens(model, folder / name, [prompt], NUM_TOKENS)[0] for name in ("a0", "a1")
    )
    start = make_start(tmp_path, ParallelConfig(), cpu_backend="native", adapter_dir=folder)

    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(
            scheduler.address,
            lambda: load_threads(with_sizes(start, tp, 1)),
            adapter_dir=folder,
        ) as worker,
        running_router(scheduler.address, http_port=0, allow_adapter_loading=True) as router,
    ):
        assert router.http is not None
        http, grpc = router.http.address, router.server.address
        served = router.schedulers.models.of().name
        assert await tokens_over_http(http, served, prompt) == base
        assert not loaded_on(worker)
        assert await tokens_over_http(http, "a0", prompt) == first
        assert await tokens_over_grpc(grpc, "a1", prompt) == second
        assert {name for name, _ in loaded_on(worker)} == {"a0", "a1"}
        assert await tokens_over_grpc(grpc, served, prompt) == base
        assert len({tuple(tokens) for tokens in (base, first, second)}) == 3
        await assert_idle(scheduler)
