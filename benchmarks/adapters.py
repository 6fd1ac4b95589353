"""What LoRA adapters cost: tokens/s of eight beside the base model, and gaps while others load.

    python -m benchmarks.adapters MODEL [--rank 16] [--concurrency 32] [--turns 3] [--seconds 6] ...

Starts `signalbox serve` itself, with random adapters of all linear modules. Loads run in turns,
each for some seconds: all clients ask the base model; the adapters, evenly; the adapters, while
others are loaded and unloaded one after the other. Prints a Markdown table; the
ratios are those of the tokens/s of each turn, their median first.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from benchmarks.harness.prompts import random_prompts
from benchmarks.serving import vocab_size
from signalbox.bench.measurements import percentile_ms
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.local_stack import running
from signalbox_contract.startup import ignore_progress
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_protos.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_worker.config import ModelConfig
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.runner.loading.opened_model import open_with_config
from signalbox_worker.runner.native.adapter_modules import module_shapes

MAX_TOKENS = 384
HEADER = (
    "| load | tokens/s | ratio | between tokens p50 ms | p99 | longest |\n|---|---|---|---|---|---|"
)


def write_adapters(model: str, folder: Path, *, num: int, rank: int) -> list[str]:
    """Writes random adapters of all linear modules; returns their names."""
    opened = open_with_config(ModelConfig(model=model), ignore_progress)
    assert isinstance(opened.config, DecoderConfig), "a model of the Llama family"
    shapes = module_shapes(opened.config)
    modules = sorted({name.rpartition(".")[2] for name in shapes})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": modules}
    names = [f"a{number}" for number in range(num)]
    for seed, name in enumerate(names):
        random = np.random.default_rng(seed)
        tensors: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] = {}
        for module, (rows, columns) in shapes.items():
            for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                values = random.normal(0, 0.01, shape).astype(np.float32)
                tensors[f"base_model.model.{module}.lora_{part}.weight"] = values
        (folder / name).mkdir()
        (folder / name / "adapter_config.json").write_text(json.dumps(config))
        save_file(tensors, folder / name / "adapter_model.safetensors")
    return names


@dataclass(slots=True)
class Run:
    """What clients have seen in some seconds."""

    duration_s: float
    num_tokens: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """Times between two messages of a stream."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.duration_s


@dataclass(slots=True)
class Served:
    """A stack that serves, and calls of it."""

    inference: pb_grpc.InferenceServiceStub
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub
    vocab_size: int
    num_runs: int = 0

    async def run(self, models: Sequence[str], *, concurrency: int, seconds: float) -> Run:
        """Keeps clients streaming, which ask for the models evenly."""
        self.num_runs += 1
        prompts = random_prompts(vocab_size=self.vocab_size, num_tokens=32, seed=self.num_runs)
        run, have_begun = Run(seconds), asyncio.Barrier(concurrency + 1)

        async def client(number: int) -> None:
            is_first = True
            for prompt in prompts:
                last = None
                async for num_tokens in self._messages(prompt, models[number % len(models)]):
                    if is_first:
                        await have_begun.wait()  # until all prompts have been computed
                        is_first = False
                        continue
                    now = time.perf_counter()
                    if last is not None:
                        run.gaps_s.append(now - last)
                    last = now
                    run.num_tokens += num_tokens

        clients = [asyncio.create_task(client(number)) for number in range(concurrency)]
        try:
            await have_begun.wait()
            done, _ = await asyncio.wait(
                clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            for one in done:
                one.result()
        finally:
            for one in clients:
                one.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        return run

    async def _messages(self, prompt: list[int], model: str) -> AsyncIterator[int]:
        """Yields how many tokens each message brings."""
        params = pb.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=prompt), sampling_params=params, model=model
        )
        async for response in self.inference.Generate(request):
            if num_tokens := sum(len(output.token_ids) for output in response.outputs):
                yield num_tokens

    async def load(self, name: str) -> None:
        await self.scheduler.LoadAdapter(scheduler_pb2.LoadAdapterRequest(name=name, path=name))

    async def churn(self, names: Sequence[str], done: list[str]) -> None:
        """Loads and unloads adapters one after the other until it is cancelled."""
        while True:
            for name in names:
                await self.load(name)
                await self.scheduler.UnloadAdapter(scheduler_pb2.UnloadAdapterRequest(name=name))
                done.append(name)


@contextlib.asynccontextmanager
async def serving(options: argparse.Namespace, folder: Path) -> AsyncIterator[Served]:
    settings = {
        "grpc_port": 0,
        "http": False,
        "log_level": "warning",
        "model": options.model,
        "dtype": options.dtype,
        "quantization": options.quantization,
        "adapter_dir": str(folder),
        "max_lora_rank": options.rank,
        "max_cpu_loras": options.adapters + options.churned,
    }
    async with (
        running(load(ServeSettings, settings)) as stack,
        open_channel(stack.addresses.router) as router,
        open_channel(stack.addresses.scheduler) as scheduler,
    ):
        yield Served(
            pb_grpc.InferenceServiceStub(router),
            scheduler_pb2_grpc.SchedulerServiceStub(scheduler),
            await vocab_size(stack.addresses.router),
        )


def row(name: str, runs: Sequence[Run], ratios: Sequence[float]) -> str:
    rates = statistics.median(run.tokens_per_s for run in runs)
    gaps = [gap for run in runs for gap in run.gaps_s]
    ratio = ""
    if ratios:
        each = ", ".join(f"{one:.2f}" for one in sorted(ratios))
        ratio = f"{statistics.median(ratios):.2f} ({each})"
    return (
        f"| {name} | {rates:.0f} | {ratio} | {percentile_ms(gaps, 50):.0f} |"
        f" {percentile_ms(gaps, 99):.0f} | {max(gaps) * 1e3:.0f} |"
    )


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as text:
        folder, num = Path(text), options.adapters
        names = write_adapters(options.model, folder, num=num + options.churned, rank=options.rank)
        async with serving(options, folder) as served:
            for name in names[:num]:
                await served.load(name)

            async def measure(models: Sequence[str]) -> Run:
                seconds = options.seconds
                return await served.run(models, concurrency=options.concurrency, seconds=seconds)

            base, adapted, churned = list[Run](), list[Run](), list[Run]()
            done: list[str] = []
            for _ in range(options.turns):
                base.append(await measure([""]))
                adapted.append(await measure(names[:num]))
                churning = asyncio.create_task(served.churn(names[num:], done))
                churned.append(await measure(names[:num]))
                churning.cancel()
                await asyncio.gather(churning, return_exceptions=True)
    print(HEADER)
    print(row("base", base, []))
    print(row(f"{num} adapters", adapted, _ratios(adapted, base)))
    print(row(f"while {len(done)} come and go", churned, _ratios(churned, base)))


def _ratios(runs: Sequence[Run], others: Sequence[Run]) -> list[float]:
    return [a.tokens_per_s / b.tokens_per_s for a, b in zip(runs, others, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--churned", type=int, default=4, help="adapters that come and go")
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each load in a turn")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
