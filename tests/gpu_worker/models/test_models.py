"""Every family against transformers, on random weights: prefill, chunks, paged decode, ranks."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from contract.sampling_params import SamplingParams
from gpu_worker.attention import AttentionShape
from gpu_worker.attention.torch_backend import TorchAttention
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from gpu_worker.kv_cache.cache_engine import CacheEngine
from gpu_worker.layers import ForwardContext, ParallelGroup, Placement
from gpu_worker.layers.linear import kv_heads_per_rank
from gpu_worker.loading.model_source import open_model
from gpu_worker.loading.weight_loader import load_weights
from gpu_worker.models import ServedConfig, SoftCapped, model_spec
from gpu_worker.models.decoder_config import llama_config
from gpu_worker.runner.model_runner import ModelRunner
from tests.gpu_worker.generation import Driver, make_batch, make_sequence
from tests.gpu_worker.tiny_models import FAMILIES, VOCAB, make_model, reference_tokens
from tests.rounding import LOGITS
from tests.waiting import EVENT_S

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def make_runner(path: Path, *, dtype: str = "float32", num_blocks: int = 400) -> ModelRunner:
    runner = ModelRunner(
        ModelConfig(model=str(path), dtype=dtype, model_impl="signalbox"),
        CacheConfig(max_num_seqs=16),
        device_config=DeviceConfig(device="cpu", cpu_backend="torch"),
    )
    runner.init_cache_engine(num_gpu_blocks=num_blocks, num_cpu_blocks=0)
    return runner


def make_prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, VOCAB, length).tolist() for length in lengths]


@dataclass
class Probe:
    """Keeps the logits of every step."""

    runner: ModelRunner
    logits: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self.runner._loaded.model
        inner = model.logits

        def keep(hidden: Tensor) -> Tensor:
            self.logits.append(inner(hidden))
            return self.logits[-1]

        model.logits = keep  # type: ignore[method-assign]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(family: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family)
    prompts = make_prompts(1, 5, 16, 17, 33, 70)
    expected = [reference_tokens(reference, prompt, 24) for prompt in prompts]
    runner = make_runner(tmp_path)

    assert Driver(runner=runner).generate(prompts, num_tokens=24) == expected
    assert Driver(runner=runner, chunk=7).generate(prompts, num_tokens=24) == expected
    alone = [Driver(runner=runner, chunk=16).generate([p], num_tokens=24)[0] for p in prompts]
    assert alone == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_close_to_transformers(family: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, family)
    (prompt,) = make_prompts(45)
    runner = make_runner(tmp_path)
    probe = Probe(runner)
    sequence = make_sequence(prompt, [9, 3, 5])
    for chunk in (20, 1, 1, 23):
        runner.execute(make_batch([(sequence, chunk)], block_size=16))
        sequence.num_computed += chunk
    with torch.no_grad():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(probe.logits[-1][0], expected, rtol=0, atol=LOGITS)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close(dtype: str, tmp_path: Path) -> None:
    reference = make_model(tmp_path, "qwen3")
    prompts = make_prompts(30, 31)
    runner = make_runner(tmp_path, dtype=dtype)
    probe = Probe(runner)
    sequences = [make_sequence(prompts[0], [1, 2]), make_sequence(prompts[1], [3, 4])]
    for chunk in (29, 1):
        runner.execute(make_batch([(s, chunk) for s in sequences], block_size=16))
        for sequence in sequences:
            sequence.num_computed += chunk
    with torch.no_grad():
        expected = reference(torch.tensor([prompts[0]])).logits[0, -1]
    actual = probe.logits[-1][0].float()
    assert torch.nn.functional.cosine_similarity(actual, expected, dim=0) > 0.99


def test_contexts_of_very_different_lengths_decode_together(tmp_path: Path) -> None:
    reference = make_model(tmp_path, "llama2")
    prompts = make_prompts(*([3] * 12), 200, 201, 2, 90)
    runner = make_runner(tmp_path)
    expected = [reference_tokens(reference, prompt, 12) for prompt in prompts]
    assert Driver(runner=runner, chunk=64).generate(prompts, num_tokens=12) == expected


def test_branches_of_one_token_draw_from_its_logits(tmp_path: Path) -> None:
    make_model(tmp_path)
    runner = make_runner(tmp_path)
    (prompt,) = make_prompts(9)
    params = SamplingParams(temperature=1.0, seed=11)
    drawn = []
    for branch in range(3):
        sequence = make_sequence(prompt, [branch], params, branch=branch)
        drawn += runner.execute(make_batch([(sequence, 9)], block_size=16)).token_ids.tolist()
    batch = make_batch([(make_sequence(prompt, [5], params), 9)] * 3, block_size=16)
    batch.rows.branch[:] = range(3)
    one = make_batch([(make_sequence(prompt, [5], params), 9)], block_size=16)
    batch.rows.token_index[:] = 8
    one.rows = batch.rows
    assert runner.execute(one).token_ids.tolist() == drawn


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


def rank_logits(path: Path, group: ParallelGroup, prompt: list[int]) -> Tensor:
    source = open_model(ModelConfig(model=str(path)), lambda _: None)
    spec = model_spec(source.config)
    config = spec.read_config(source.config)
    placement = Placement(CPU, torch.float32)
    model = spec.build(config, 256, placement, group)
    with torch.inference_mode():
        load_weights(model, source, lambda _: None)
        attention = TorchAttention(rank_shape(config, group))
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


def rank_shape(config: ServedConfig, group: ParallelGroup) -> AttentionShape:
    return AttentionShape(
        num_layers=config.num_layers,
        num_heads=config.num_heads // group.size,
        num_kv_heads=kv_heads_per_rank(config.num_kv_heads, group),
        head_size=config.head_size,
        block_size=16,
        scale=config.scale,
        sliding_windows=config.sliding_windows or (None,) * config.num_layers,
        soft_cap=config.attention_soft_cap if isinstance(config, SoftCapped) else None,
        dtype=torch.float32,
        device=CPU,
    )


@pytest.mark.parametrize("size", [2, 4])  # 4 ranks share 2 K and V heads
@pytest.mark.parametrize(
    "family",
    [
        *("llama3", "llama-biased", "qwen3", "opt", "opt-350m", "gpt2", "gemma2", "gemma3"),
        *("mixtral", "qwen3-moe", "qwen3-moe-partly"),
    ],
)
def test_ranks_together_compute_what_one_does(family: str, size: int, tmp_path: Path) -> None:
    make_model(tmp_path, family, num_attention_heads=8, head_dim=6)
    (prompt,) = make_prompts(37)
    expected = rank_logits(tmp_path, ParallelGroup(), prompt)
    board, barrier = [torch.empty(0)] * size, threading.Barrier(size)
    results: list[Tensor] = [torch.empty(0)] * size

    def run(rank: int) -> None:
        results[rank] = rank_logits(tmp_path, ThreadGroup(rank, size, board, barrier), prompt)

    in_parallel(run, size)
    for result in results:
        torch.testing.assert_close(result, expected, rtol=0, atol=LOGITS)


def in_parallel(run: Callable[[int], None], size: int) -> None:
    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_heads_that_ranks_cannot_divide_are_refused() -> None:
    with pytest.raises(ModelError, match=r"num_attention_heads \(9\) cannot be divided"):
        ParallelGroup(0, 2).divide(9, "num_attention_heads")


def test_architecture_that_is_not_supported_is_named() -> None:
    with pytest.raises(
        ModelError, match="not supported: OursForCausalLM; supported are GPT2LMHeadModel, Gemma2"
    ):
        model_spec({"architectures": ["OursForCausalLM"]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope scaling 'dynamic' is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    ],
)
def test_variants_that_are_not_served_are_refused(change: dict[str, object], message: str) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 10,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8,
    }
    assert llama_config(config).num_kv_heads == 2
    with pytest.raises(ModelError, match=message):
        llama_config(config | change)


def test_incomplete_configuration_names_what_it_lacks() -> None:
    with pytest.raises(ModelError, match=r"config\.json has no 'hidden_size'"):
        llama_config({"architectures": ["LlamaForCausalLM"], "num_attention_heads": 2})
