"""Draft models: what they change (no token), what they take, and which are refused."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.config import ModelError, SpeculationConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.drafts.chain import ProposerChain
from signalbox_worker.runner.draft_model.draft_model import CACHE_SHARE
from tests.gpu_worker.draft_loops import MOST, Loop, Wanted
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start
from tests.gpu_worker.tiny_models import LATENTS, make_llama, make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

TINY_KV = 4 / 1024
"""GiB of KV of the served models."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the tokenizer of others, whose tokens are not theirs."""
    path = tmp_path_factory.mktemp("small")
    make_llama(path, num_hidden_layers=1)
    return path


def drafted_by(path: Path, num_tokens: int = MOST) -> SpeculationConfig:
    return SpeculationConfig(num_tokens=num_tokens, min_match=8, model=str(path))


def load(path: Path, **options: Any) -> Any:
    return make_runner(path, **{"kv_cache_memory": TINY_KV, "num_threads": 1, **options})


def make_wanted(*, temperature: float) -> list[Wanted]:
    return [
        Wanted(
            prompt=prompt,
            params=SamplingParams(temperature=temperature * (i % 2), seed=i),
            num_samples=1 + i,
        )
        for i, prompt in enumerate(make_prompts(1, 17, 40))
    ]


def assert_equal_answers(runner: Any, *, is_good: bool) -> None:
    """Checks answers, of which a good draft model expects the greedy ones, and that each row is
    free at the end."""
    proposer = runner.make_proposer()
    without, found = Loop(runner), Loop(runner, proposer=proposer)
    wanted = make_wanted(temperature=0.0 if is_good else 1.0)
    expected = without.generate(wanted, num_tokens=24)
    assert found.generate(wanted, num_tokens=24, limit=lambda: MOST) == expected
    assert found.num_drafts > 24
    assert not is_good or found.num_steps < without.num_steps
    for seq_id in found.answers:
        proposer.forget(seq_id)
    cache = proposer._model.cache
    cache.check()
    assert cache.num_free_rows == cache._num_rows


@pytest.mark.parametrize("is_good", [True, False])
@pytest.mark.parametrize(
    "form",
    [{"dtype": "float32"}, {"dtype": "bfloat16", "kv_cache_dtype": "int8"}],
    ids=lambda form: form["dtype"],
)
def test_good_and_bad_drafts_change_no_token(
    form: dict[str, str], native_tiny: Path, small: Path, *, is_good: bool
) -> None:
    speculation = drafted_by(native_tiny if is_good else small)
    runner = load(native_tiny, cpu_backend="native", speculation=speculation, **form)
    assert_equal_answers(runner, is_good=is_good)


@pytest.mark.parametrize("family", ["gemma3", "deepseek-v2"])
def test_families_draft(family: str, tmp_path: Path) -> None:
    fields = LATENTS if family == "deepseek-v2" else {}
    make_model(tmp_path, family, **fields)
    runner = load(tmp_path, cpu_backend="native", speculation=drafted_by(tmp_path))
    assert_equal_answers(runner, is_good=True)


def test_a_model_of_pytorch_drafts_and_is_drafted_for(tiny: Path, native_tiny: Path) -> None:
    for draft in (tiny, native_tiny):
        runner = load(tiny, cpu_backend="auto", speculation=drafted_by(draft))
        assert_equal_answers(runner, is_good=draft is tiny)


def test_rank_0_drafts(native_tiny: Path) -> None:
    start = make_start(native_tiny, ParallelConfig(tensor_parallel_size=2), kv_bytes=1 << 22)
    runner = load_threads(replace(start, speculation=drafted_by(native_tiny)))
    assert runner.profile().max_draft_tokens == MOST
    runner.init_cache_engine(num_gpu_blocks=100, num_cpu_blocks=0)
    assert_equal_answers(runner, is_good=True)
    runner.close()


def test_its_memory_is_bounded_reserved_and_reported(
    native_tiny: Path, small: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = load(native_tiny)
    with caplog.at_level(logging.INFO):
        runner = load(native_tiny, speculation=drafted_by(small))
    draft = runner._draft_model
    assert 0 < draft.kv_bytes <= TINY_KV * (1 << 30) / CACHE_SHARE
    assert draft.reserved_bytes >= draft.kv_bytes
    assert f"{small} drafts: 0 MiB of weights, and " in caplog.text
    ours, theirs = runner.memory(), alone.memory()
    assert ours.kv - theirs.kv == draft.kv_bytes
    assert ours.weights - theirs.weights == draft.executor.weights_bytes > 0


def test_recent_outputs_are_measured_too(native_tiny: Path) -> None:
    most = SpeculationConfig(num_tokens=MOST, recent_bytes=1 << 50)
    with pytest.raises(MemoryError, match="for drafts"):
        load(native_tiny, speculation=most).profile()
    load(native_tiny, speculation=replace(most, num_tokens=0)).profile()  # which keeps none


def test_the_pool_is_no_larger_than_all_sequences_need(native_tiny: Path) -> None:
    runner = load(
        native_tiny, kv_cache_memory=1.0, max_num_seqs=2, speculation=drafted_by(native_tiny)
    )
    assert runner._draft_model.capacity.num_gpu_blocks == 2 * 256 / 16


def change_tokenizer(path: Path) -> None:
    file = path / "tokenizer.json"
    text = file.read_text()
    assert '"w5"' in text
    file.write_text(text.replace('"w5"', '"changed"', 1))


def make_hybrid(path: Path) -> None:
    make_model(path, "lfm2", num_attention_heads=4, num_key_value_heads=4, head_dim=16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: (make_llama(path), change_tokenizer(path)), "needs the tokenizer of the"),
        (make_hybrid, "has recurrent layers"),
    ],
    ids=["tokenizer", "recurrent"],
)
def test_models_that_cannot_draft_are_refused(
    make: Callable[[Path], object], message: str, native_tiny: Path, tmp_path: Path
) -> None:
    make(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        load(native_tiny, speculation=drafted_by(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_no_draft_model_is_loaded_where_no_drafts_are_computed(native_tiny: Path) -> None:
    missing = drafted_by(native_tiny / "missing", num_tokens=0)
    assert not isinstance(load(native_tiny, speculation=missing).make_proposer(), ProposerChain)
    with pytest.raises(FileNotFoundError, match="missing"):
        load(native_tiny, speculation=replace(missing, num_tokens=1))
