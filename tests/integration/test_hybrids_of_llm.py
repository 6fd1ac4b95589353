"""Models with recurrent layers through `LLM`: prefixes that are found, and a pool that is too small
for all sequences, give the tokens of transformers."""

import itertools
from pathlib import Path

import pytest

from signalbox import LLM, CompletionOutput, SamplingParams
from signalbox.llm.metrics import Counter
from signalbox_worker.batch.batch import Batch, BatchOutput
from tests.gpu_worker.foresight import Foresight
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.tiny_models import make_model, reference_tokens
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


NGRAM = {"method": "ngram", "num_speculative_tokens": 5}


def ask(llm: LLM, prompts: list[list[int]], **fields: int) -> list[CompletionOutput]:
    params = SamplingParams(temperature=0, ignore_eos=True, **fields)
    outputs = llm.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)
    return [one.outputs[0] for one in outputs]


def tokens_of(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    return [list(one.token_ids) for one in ask(llm, prompts, max_tokens=24)]


def count_drafts(llm: LLM) -> tuple[float, float]:
    """Returns how many drafts were accepted, and how many computed."""
    counts = {one.name: one.value for one in llm.get_metrics() if isinstance(one, Counter)}
    accepted, computed = (
        counts.get(f"vllm:spec_decode_num_{name}_tokens", 0.0) for name in ("accepted", "draft")
    )
    return accepted, computed


@pytest.mark.parametrize(
    "family", ["lfm2", "lfm2-moe", "granite-hybrid", "qwen3-next", "qwen3.5", "nemotron-h-moe"]
)
@pytest.mark.parametrize(("kib", "drafts"), [(120, False), (4096, True), (120, True)])
def test_tokens_are_those_of_transformers(
    family: str, kib: int, drafts: bool, tmp_path: Path, foresight: Foresight
) -> None:
    reference = make_model(tmp_path, family)
    prompts = make_prompts(5, 40, 70, 70)
    prompts[3][:50] = prompts[2][:50]
    expected = [reference_tokens(reference, prompt, 24) for prompt in prompts]
    foresight.texts += [a + b for a, b in zip(prompts, expected, strict=True)]
    llm = LLM(
        str(tmp_path),
        dtype="float32",
        kv_cache_memory=kib / (1 << 20),
        max_model_len=128,
        max_num_batched_tokens=64,
        max_num_seqs=4,
        speculation=None if drafts else False,
        speculative_config=NGRAM if drafts else None,
    )
    try:
        for _ in range(2):  # then prefixes are found
            assert tokens_of(llm, prompts) == expected
        accepted, computed = count_drafts(llm)
        assert (0 < accepted < computed) is drafts
    finally:
        llm.close()


@pytest.mark.parametrize("num_before", [3, 9])
def test_a_step_that_raises_half_way_changes_no_token(
    num_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make_model(tmp_path, "lfm2")
    prompts = make_prompts(5, 40, 70)
    expected = [reference_tokens(reference, prompt, 24) for prompt in prompts]
    llm = LLM(
        str(tmp_path),
        dtype="float32",
        kv_cache_memory=4 / 1024,
        max_model_len=128,
        speculation=False,  # so that each step has all requests
    )
    core = llm.llm_engine._core
    executor, num_batches = core._worker._runner.executor, itertools.count()
    execute = executor.execute

    def fail_once(batch: Batch) -> BatchOutput:
        output = execute(batch)
        if next(num_batches) == num_before:
            raise RuntimeError("illegal instruction")
        return output

    monkeypatch.setattr(executor, "execute", fail_once)
    try:
        assert tokens_of(llm, prompts) == expected
        planner = core.scheduler.planner
        assert planner.num_prefix_hits >= 4 + 32 + 64 - 4  # up to the last snapshots
    finally:
        llm.close()


@pytest.mark.parametrize(("family", "kib"), [("lfm2", 60), ("qwen3.5", 120)])
def test_states_of_requests_that_yield_are_swapped(
    family: str, kib: int, tmp_path: Path, foresight: Foresight
) -> None:
    reference = make_model(tmp_path, family)
    prompts = make_prompts(20, 33, 40)
    expected = [reference_tokens(reference, prompt, 130) for prompt in prompts]
    llm = LLM(
        str(tmp_path),
        dtype="float32",
        kv_cache_memory=kib / (1 << 20),
        swap_space=1 / 1024,
        preemption_mode="swap",
        max_model_len=192,
        max_num_seqs=4,
        speculative_config=NGRAM,
    )
    try:
        first = ask(llm, prompts, max_tokens=130, logprobs=2)
        assert [list(one.token_ids) for one in first] == expected
        assert not any(count_drafts(llm))
        foresight.texts += [a + b for a, b in zip(prompts, expected, strict=True)]
        again = ask(llm, prompts, max_tokens=130, logprobs=2)  # prefixes are in both pools
        assert [one.token_ids for one in again] == [one.token_ids for one in first]
        assert [one.logprobs for one in again] == [one.logprobs for one in first]
        accepted, computed = count_drafts(llm)
        assert 0 < accepted < computed
        scheduler = llm.llm_engine._core.scheduler
        assert scheduler.preemption.num_preemptions > scheduler.preemption.num_recomputes
        assert scheduler.planner.num_cpu_prefix_hits > 0
    finally:
        llm.close()
