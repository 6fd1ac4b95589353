"""Tensor-parallel ranks times pipeline stages give the tokens of one process, in float32."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signalbox import LLM, RequestOutput, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.sampling_params import StructuredOutputsParams
from signalbox_scheduler.config import PreemptionMode, SchedulingSettings
from signalbox_worker.config import ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.ranks.service.rank_messages import Start
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import LATENTS, make_llama, make_model
from tests.native_kernels import skip_without_native_kernels
from tests.rounding import LOGITS
from tests.signalbox.llm.make import assert_at_rest

pytestmark = pytest.mark.slow

MAX_TOKENS = 26
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 3, "prompt_logprobs": 2},
    {"temperature": 0.9, "seed": 3, "n": 2, "presence_penalty": 0.8, "frequency_penalty": 0.4},
    {"temperature": 1, "seed": 5, "top_p": 0.8, "repetition_penalty": 1.4, "logprobs": 0},
    {"temperature": 0.7, "seed": 8, "top_k": 9, "min_p": 0.02},
]


def kv_bytes_of(path: Path, num_blocks: int) -> int:
    """Bytes of some blocks of all layers."""
    read = json.loads((path / "config.json").read_text())
    num_layers = read.get("num_hidden_layers") or read["n_layer"]
    if latents := read.get("kv_lora_rank"):
        return num_blocks * 16 * 4 * num_layers * (latents + read["qk_rope_head_dim"])
    num_heads = read.get("num_attention_heads") or read["n_head"]
    head_size = read.get("head_dim") or (read.get("hidden_size") or read["n_embd"]) // num_heads
    return (
        num_blocks
        * 16
        * 2
        * 4
        * num_layers
        * read.get("num_key_value_heads", num_heads)
        * head_size
    )


def generate(start: Start, mode: PreemptionMode) -> list[RequestOutput]:
    """More than there are blocks for, drawn in every way."""
    config = CoreConfig(scheduling=SchedulingSettings(preemption_mode=mode))
    prompts: Any = [{"prompt_token_ids": ids} for ids in make_prompts(*[31, 17, 9, 23] * 2)]
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, **SAMPLING[i % len(SAMPLING)])
        for i in range(len(prompts))
    ]
    with LLM._from_runner(partial(load_threads, start), config) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert llm.llm_engine._core.scheduler.preemption.num_preemptions > 0
        assert_at_rest(llm.llm_engine)
    return outputs


def tokens_of(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    assert not any(output.error for output in outputs)
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


MOE = {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 72}


def assert_like_one(start: Start, sizes: list[tuple[int, int]], mode: PreemptionMode) -> None:
    one = generate(start, mode)
    assert len(logprobs_of(one)) > 2 * 2 * MAX_TOKENS
    for tp, pp in sizes:
        found = generate(with_sizes(start, tp, pp), mode)
        assert tokens_of(found) == tokens_of(one), f"{tp} x {pp}"
        np.testing.assert_allclose(logprobs_of(found), logprobs_of(one), rtol=0, atol=LOGITS)


@pytest.mark.parametrize(
    ("family", "changes", "sizes", "mode"),
    [
        # grouped queries, tied embeddings
        ("llama3", {}, [(1, 2), (1, 3), (2, 1), (2, 2), (2, 3)], PreemptionMode.SWAP),
        ("llama3", {}, [(1, 2), (2, 3)], PreemptionMode.RECOMPUTE),
        # windows; one head of keys on both ranks of a stage
        ("mistral", {"num_key_value_heads": 1}, [(1, 3), (2, 2)], PreemptionMode.SWAP),
        ("qwen2", {}, [(2, 2)], PreemptionMode.RECOMPUTE),  # biases, a head of its own
        ("qwen3", {}, [(1, 2)], PreemptionMode.SWAP),
        ("mixtral", {}, [(1, 3), (2, 2)], PreemptionMode.RECOMPUTE),
        ("gemma2", {}, [(1, 3), (2, 2)], PreemptionMode.SWAP),
        ("gemma3", {}, [(1, 2)], PreemptionMode.SWAP),
        ("opt-350m", {}, [(1, 3)], PreemptionMode.SWAP),  # projections at both ends
        ("gpt2", {}, [(1, 2), (2, 3)], PreemptionMode.RECOMPUTE),
        ("granite", {}, [(1, 3)], PreemptionMode.SWAP),
        ("phi3", {}, [(1, 3)], PreemptionMode.RECOMPUTE),
    ],
)
def test_ranks_give_the_tokens_of_one_process(
    family: str,
    changes: dict[str, int],
    sizes: list[tuple[int, int]],
    mode: PreemptionMode,
    tmp_path: Path,
) -> None:
    make_model(tmp_path, family, **changes)
    start = make_start(
        tmp_path, ParallelConfig(), kv_bytes=kv_bytes_of(tmp_path, 16), cpu_backend="torch"
    )
    assert_like_one(start, sizes, mode)


@pytest.mark.parametrize(
    ("family", "changes", "sizes", "mode"),
    [
        ("llama3", {}, [(1, 2), (1, 3), (2, 1), (2, 2), (2, 3)], PreemptionMode.SWAP),
        ("llama3", {}, [(1, 3), (2, 1), (2, 2)], PreemptionMode.RECOMPUTE),
        # the last rank has fewer inner columns and tokens
        ("llama2", {"intermediate_size": 120}, [(3, 1), (3, 2)], PreemptionMode.SWAP),
        ("llama-biased", {}, [(2, 1)], PreemptionMode.RECOMPUTE),
        ("mistral", {"num_key_value_heads": 1}, [(2, 1), (2, 2)], PreemptionMode.SWAP),
        ("qwen2", {}, [(2, 2)], PreemptionMode.RECOMPUTE),
        ("qwen3", {}, [(2, 1)], PreemptionMode.SWAP),
        ("granite", {}, [(1, 3), (2, 2)], PreemptionMode.SWAP),
        ("phi3", {}, [(1, 3), (2, 2)], PreemptionMode.RECOMPUTE),
        ("glm4", {}, [(2, 2)], PreemptionMode.SWAP),
        # experts that all tokens have, without a gate
        ("glm4-moe", {"moe_intermediate_size": 72}, [(1, 3), (2, 1)], PreemptionMode.SWAP),
        ("smollm3", {}, [(1, 3)], PreemptionMode.RECOMPUTE),
        # the last rank has fewer inner columns of an expert
        ("mixtral", {"intermediate_size": 72}, [(2, 1)], PreemptionMode.SWAP),
        ("qwen2-moe", MOE, [(1, 3), (2, 1)], PreemptionMode.RECOMPUTE),
        ("gpt-oss", {"intermediate_size": 72}, [(1, 3), (2, 1)], PreemptionMode.SWAP),
        ("olmo3", {"hidden_size": 96}, [(1, 3)], PreemptionMode.SWAP),
        ("cohere2", {"hidden_size": 96}, [(1, 2), (2, 1)], PreemptionMode.RECOMPUTE),
        ("ministral3", {}, [(2, 1)], PreemptionMode.SWAP),
        ("deepseek-v2", LATENTS, [(1, 2), (1, 3)], PreemptionMode.SWAP),
        ("glm4-moe-lite", LATENTS, [(1, 3)], PreemptionMode.RECOMPUTE),
    ],
)
def test_native_ranks_give_the_tokens_of_one_program(
    family: str,
    changes: dict[str, int],
    sizes: list[tuple[int, int]],
    mode: PreemptionMode,
    tmp_path: Path,
) -> None:
    skip_without_native_kernels()
    make_model(tmp_path, family, **{"head_dim": 16} | changes)
    start = make_start(
        tmp_path, ParallelConfig(), kv_bytes=kv_bytes_of(tmp_path, 16), cpu_backend="native"
    )
    assert_like_one(start, sizes, mode)


@pytest.mark.parametrize(
    ("family", "sizes", "options", "reason"),
    [
        ("deepseek-v2", (2, 1), {}, "its heads share one latent"),
        ("olmo2", (1, 2), {"dtype": "float16"}, "not in float16"),
    ],
)
def test_ranks_without_a_program_are_refused_with_the_reason(
    family: str, sizes: tuple[int, int], options: dict[str, str], reason: str, tmp_path: Path
) -> None:
    make_model(tmp_path, family, **LATENTS if family == "deepseek-v2" else {"head_dim": 16})
    start = with_sizes(make_start(tmp_path, ParallelConfig(), **options), *sizes)
    with pytest.raises(ModelError, match=f"natively alone, but .*{reason}; use other sizes"):
        load_threads(start)


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
def test_native_stages_of_quantised_weights_give_the_tokens_of_one_program(
    mode: PreemptionMode, tmp_path: Path
) -> None:
    skip_without_native_kernels()
    make_llama(tmp_path)
    start = make_start(
        tmp_path,
        ParallelConfig(),
        kv_bytes=kv_bytes_of(tmp_path, 16),
        cpu_backend="native",
        quantization="int8",
    )
    assert_like_one(start, [(1, 2), (1, 3)], mode)


KV_BYTES = {"int8": (16 + 4) / 64, "fp8": 16 / 64}
"""Of a head's K or V of 16 values, for each byte of float32."""


def make_start_of_8_bits(path: Path, kv_dtype: str) -> Start:
    skip_without_native_kernels()
    make_model(path, "llama3", head_dim=16)
    num_bytes = int(kv_bytes_of(path, 16) * KV_BYTES[kv_dtype])
    return make_start(
        path, ParallelConfig(), kv_bytes=num_bytes, kv_dtype=kv_dtype, cpu_backend="native"
    )


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
@pytest.mark.parametrize("kv_dtype", KV_BYTES)
def test_native_stages_with_k_and_v_in_8_bits_give_the_tokens_of_one_program(
    kv_dtype: str, mode: PreemptionMode, tmp_path: Path
) -> None:
    assert_like_one(make_start_of_8_bits(tmp_path, kv_dtype), [(1, 2)], mode)


@pytest.mark.parametrize("kv_dtype", KV_BYTES)
def test_native_ranks_with_k_and_v_in_8_bits_are_near_one_program(
    kv_dtype: str, tmp_path: Path
) -> None:
    """Ranks sum in another order, which may round a value between two codes to the other one."""
    start = make_start_of_8_bits(tmp_path, kv_dtype)
    one = generate(start, PreemptionMode.SWAP)
    for tp, pp in ((2, 1), (2, 2)):
        found = generate(with_sizes(start, tp, pp), PreemptionMode.SWAP)
        pairs = zip(tokens_of(found), tokens_of(one), strict=True)
        assert sum(ours == theirs for ours, theirs in pairs) > len(one) // 2, f"{tp} x {pp}"
        difference = np.abs(np.subtract(*map(prompt_logprobs_of, (found, one))))
        assert np.mean(difference < LOGITS) > 0.5
        assert difference.max() < 0.05


def prompt_logprobs_of(outputs: list[RequestOutput]) -> list[float]:
    """Of each token of the prompts for which they were reported."""
    found: list[float] = []
    for output in outputs:
        ids, positions = output.prompt_token_ids, output.prompt_logprobs or []
        reported = zip(ids or [], positions, strict=False)
        found += [position[token].logprob for token, position in reported if position]
    return found


def test_structured_output_and_a_shared_prefix_pass_through_ranks(tmp_path: Path) -> None:
    make_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"vocab_size": 300}
    for file in tmp_path.iterdir():  # a model without a tokenizer speaks bytes
        file.unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    (prefix,) = make_prompts(40)
    prompts: Any = [{"prompt_token_ids": [*prefix, i]} for i in range(5, 9)]
    regex = StructuredOutputsParams(regex="(yes|no|maybe)+")
    params = SamplingParams(max_tokens=12, temperature=0, structured_outputs=regex)
    drawn = []
    for tp, pp in ((1, 1), (1, 3), (2, 1)):
        start = make_start(tmp_path, ParallelConfig(), load_format="dummy")
        start = with_sizes(start, tp, pp)
        with LLM._from_runner(partial(load_threads, start), CoreConfig()) as llm:
            outputs = llm.generate(prompts[:1], params, use_tqdm=False)
            outputs += llm.generate(prompts[1:], params, use_tqdm=False)
            assert llm.llm_engine._core.scheduler.planner.num_prefix_hits == 3 * 32
            drawn.append(tokens_of(outputs))
            assert_at_rest(llm.llm_engine)
    assert drawn[0] == drawn[1] == drawn[2]
    texts = {output.outputs[0].text for output in outputs}
    assert all(text.startswith(("yes", "no", "maybe")) for text in texts)
