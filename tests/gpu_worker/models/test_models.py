"""Every family against transformers, on random weights: prefill, chunks, paged decode, ranks."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.device.division import kv_heads_per_rank
from signalbox_worker.files.checkpoints.quantization import Quantization
from signalbox_worker.kv.cache.cache_engine import CacheEngine
from signalbox_worker.models import ModelShape, model_spec
from signalbox_worker.models.attention import AttentionShape
from signalbox_worker.models.attention.torch_backend import TorchAttention
from signalbox_worker.models.decoder_config import llama_config
from signalbox_worker.models.layers import ForwardContext, ParallelGroup, Placement
from signalbox_worker.runner.loading.model_source import open_model
from signalbox_worker.runner.loading.weight_loader import load_weights
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.generation import make_batch, make_sequence
from tests.gpu_worker.model_runners import (
    WHOLE,
    assert_greedy,
    last_logits,
    make_prompts,
    make_runner,
)
from tests.gpu_worker.tiny_models import FAMILIES, SHAPE, architecture_of, make_model
from tests.rounding import LOGITS
from tests.waiting import EVENT_S

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def make_torch_runner(path: Path, **options: Any) -> LocalRunner:
    return make_runner(
        path, model_impl="signalbox", cpu_backend="torch", num_gpu_blocks=400, **options
    )


@pytest.mark.compares(how="in PyTorch", of=architecture_of)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_logits_equal_those_of_transformers(family: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family)
    prompts = make_prompts(1, 5, 16, 17, 33, 70)
    runner = make_torch_runner(tmp_path)
    assert_greedy(runner, reference, prompts, 12, chunks=(WHOLE, 7, 16), alone=True)

    (prompt,) = make_prompts(45)
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    actual = last_logits(runner, prompt, chunks=(20, 1, 1, 23))
    torch.testing.assert_close(actual, expected, rtol=0, atol=LOGITS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "family", ["qwen3", "granite", "opt", "gpt2", "gemma2", "gemma3", "mixtral"]
)
def test_half_precision_is_close(family: str, dtype: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family)
    runner = make_torch_runner(tmp_path, dtype=dtype)
    prompts = make_prompts(30, 31)
    with torch.no_grad():
        expected = reference(torch.tensor([prompts[0]])).logits[0, -1]
    actual = last_logits(runner, *prompts, chunks=(29, 1))
    assert torch.nn.functional.cosine_similarity(actual, expected, dim=0) > 0.99


def test_contexts_of_very_different_lengths_decode_together(tmp_path: Path) -> None:
    reference = make_model(tmp_path, "llama2")
    prompts = make_prompts(*([3] * 12), 200, 201, 2, 90)
    assert_greedy(make_torch_runner(tmp_path), reference, prompts, 12, chunks=[64])


class ThreadGroup(ParallelGroup):
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, board: list[Tensor], barrier: threading.Barrier):
        super().__init__(rank, size)
        object.__setattr__(self, "exchange", (board, barrier))

    def _all(self, tensor: Tensor) -> list[Tensor]:
        board, barrier = self.exchange  # type: ignore[attr-defined]
        board[self.rank] = tensor
        barrier.wait(timeout=EVENT_S)
        parts = [part.clone() for part in board]
        barrier.wait(timeout=EVENT_S)
        return parts

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(sum(self._all(tensor)))  # type: ignore[arg-type]

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.cat(self._all(tensor), dim=-1)


def rank_logits(
    path: Path, group: ParallelGroup, prompt: list[int], quantization: Quantization | None = None
) -> Tensor:
    source = open_model(ModelConfig(model=str(path)), lambda _: None)
    spec = model_spec(source.config)
    config = spec.read_config(source.config)
    placement = Placement(CPU, torch.float32)
    model = spec.build(config, 256, placement, group)
    with torch.inference_mode():
        load_weights(model, source, lambda _: None, quantization)
        attention = TorchAttention(rank_shape(ModelShape.of(config), group))
        cache = CacheEngine(
            num_gpu_blocks=8, num_cpu_blocks=0, block_bytes=attention.block_bytes, device=CPU
        )
        attention.bind(cache.gpu_pool)
        batch = make_batch([(make_sequence(prompt, [4, 2, 6]), len(prompt))], block_size=16)
        hidden = model.forward(
            torch.from_numpy(batch.token_ids),
            torch.from_numpy(batch.positions),
            ForwardContext(attention.plan(batch)),
        )
        return model.logits(hidden)


def rank_shape(config: ModelShape, group: ParallelGroup) -> AttentionShape:
    return AttentionShape(
        num_layers=config.num_layers,
        num_heads=config.num_heads // group.size,
        num_kv_heads=kv_heads_per_rank(config.num_kv_heads, group.size),
        head_size=config.head_size,
        block_size=16,
        scale=config.scale,
        sliding_windows=config.sliding_windows,
        soft_cap=config.attention_soft_cap,
        dtype=torch.float32,
        device=CPU,
    )


@pytest.mark.parametrize("size", [2, 4])  # 4 ranks share 2 K and V heads
@pytest.mark.parametrize(
    "family",
    [
        *("llama3", "llama-biased", "qwen3", "opt", "opt-350m", "gpt2", "gemma2", "gemma3"),
        *("granite", "phi3", "mixtral", "qwen3-moe", "qwen3-moe-partly"),
    ],
)
def test_ranks_together_compute_what_one_does(family: str, size: int, tmp_path: Path) -> None:
    make_model(tmp_path, family, num_attention_heads=8, head_dim=6)
    assert_ranks_agree(tmp_path, size)


def assert_ranks_agree(path: Path, size: int, quantization: Quantization | None = None) -> None:
    """Compares the logits of `size` ranks, which are threads, with those of one."""
    (prompt,) = make_prompts(37)
    expected = rank_logits(path, ParallelGroup(), prompt, quantization)
    board, barrier = [torch.empty(0)] * size, threading.Barrier(size)
    results: list[Tensor] = [torch.empty(0)] * size

    def run(rank: int) -> None:
        group = ThreadGroup(rank, size, board, barrier)
        results[rank] = rank_logits(path, group, prompt, quantization)

    with ThreadPoolExecutor(size) as threads:
        list(threads.map(run, range(size)))
    for result in results:
        torch.testing.assert_close(result, expected, rtol=0, atol=LOGITS)


def test_heads_that_ranks_cannot_divide_are_refused() -> None:
    with pytest.raises(ModelError, match=r"num_attention_heads \(9\) cannot be divided"):
        ParallelGroup(0, 2).divide(9, "num_attention_heads")


def test_architecture_that_is_not_supported_is_named() -> None:
    with pytest.raises(
        ModelError, match=r"not supported: OursForCausalLM; supported are .*GPT2LMHeadModel, Gemma2"
    ):
        model_spec({"architectures": ["OursForCausalLM"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rope_parameters": {"rope_type": "axial"}}, "rope scaling 'axial' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    ],
)
def test_variants_that_are_not_served_are_refused(change: dict[str, object], message: str) -> None:
    config = SHAPE | {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5}
    assert llama_config(config).num_kv_heads == 2
    with pytest.raises(ModelError, match=message):
        llama_config(config | change)
