"""Adapters of models with recurrent layers give the tokens of PEFT, also of those layers."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox.lora.request import LoRARequest
from signalbox_worker.config import ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from tests.gpu_worker.files.adapters.peft_adapters import make_adapter, make_adapters, peft_tokens
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.models.multimodal_models import make_multimodal
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import make_model, reference_tokens
from tests.native_kernels import skip_without_native_kernels
from tests.signalbox.llm.make import assert_at_rest, tokens_of

skip_without_native_kernels()
pytestmark = pytest.mark.slow

NUM_TOKENS = 8
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
ALL: dict[str, Any] = {"r": 4, "target_modules": "all-linear", "use_rslora": True}
SEVEN: dict[str, Any] = ALL | {
    "target_modules": ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "in_proj")
}
"""All that PEFT changes of Nemotron-H."""
KINDS: dict[str, tuple[dict[str, Any], ...]] = {
    "lfm2": (ALL, {"r": 3, "target_modules": ("q_proj", "w1", "w2", "conv.out_proj")}),
    "granite-hybrid": (ALL, {"r": 3, "target_modules": ("v_proj", "input_linear", "in_proj")}),
    "nemotron-h": (SEVEN, {"r": 3, "target_modules": ("q_proj", "up_proj", "mixer.in_proj")}),
    "qwen3.5": (ALL, {"r": 3, "target_modules": ("q_proj", "down_proj", "in_proj_b")}),
}


@pytest.mark.parametrize("family", KINDS)
def test_tokens_are_those_of_peft_and_states_those_of_the_adapter(
    family: str, tmp_path: Path
) -> None:
    """Of one prompt, which the base model and the other adapter have computed before."""
    model = make_model(tmp_path, family, **HEADS)
    lora = make_adapters(model, tmp_path / "adapters", KINDS[family])
    requests = [
        LoRARequest(name, number, path)
        for number, (name, path) in enumerate((one.split("=") for one in lora), start=1)
    ]
    [prompt] = make_prompts(36)
    expected = [reference_tokens(model, prompt, NUM_TOKENS)]
    expected += [peft_tokens(model, Path(one.path), [prompt], NUM_TOKENS)[0] for one in requests]
    assert expected[0] != expected[1] != expected[2]
    start = make_start(tmp_path, ParallelConfig(), cpu_backend="native", lora=lora)
    for size in (1, 2):
        make = partial(load_threads, with_sizes(start, size, 1))
        with LLM._from_runner(make, CoreConfig(enable_lora=True)) as llm:
            for _ in range(2):  # then each finds its own prefix
                for request, tokens in zip([None, *requests], expected, strict=True):
                    [output] = llm.generate(
                        [{"prompt_token_ids": prompt}], PARAMS, use_tqdm=False, lora_request=request
                    )
                    assert tokens_of([output]) == [tokens], f"{size} ranks, {request}"
            assert llm.llm_engine._core.scheduler.planner.num_prefix_hits == 3 * 32
            assert_at_rest(llm.llm_engine)


@pytest.mark.parametrize(
    ("family", "kind", "module"),
    [  # PEFT wants r to be the number of channels
        ("granite-hybrid", {"r": 224, "target_modules": ("conv1d",)}, "mamba.conv1d"),
        ("qwen3-next", {"r": 2, "target_modules": ("in_proj_ba",)}, "linear_attn.in_proj_ba"),
    ],
)
def test_what_no_program_adapts_is_refused_by_name(
    family: str, kind: dict[str, Any], module: str, tmp_path: Path
) -> None:
    model = make_model(tmp_path, family)
    lora = make_adapters(model, tmp_path / "adapters", [kind])
    with pytest.raises(ModelError, match=rf"changes model\.layers\.0\.{module}, which"):
        make_runner(tmp_path, lora=lora)


def tokens_with_adapter(model: Path, adapter: Path, prompt: list[int]) -> list[list[int]]:
    with closing(LLM(str(model), dtype="float32", enable_lora=True)) as llm:
        request = LoRARequest("a", 1, str(adapter))
        given = [{"prompt_token_ids": prompt}]
        return tokens_of(llm.generate(given, PARAMS, use_tqdm=False, lora_request=request))


def test_an_adapter_of_a_model_that_also_sees_runs_with_its_text_part(tmp_path: Path) -> None:
    """PEFT names modules by their places in the whole model."""
    model, adapter = make_multimodal(tmp_path, "Qwen3_5", 0), tmp_path / "adapter"
    targets = r".*\.language_model\..*\.(q_proj|down_proj|in_proj_qkv)"
    make_adapter(model, adapter, r=4, target_modules=targets)
    [prompt] = make_prompts(36)
    expected = peft_tokens(model, adapter, [prompt], NUM_TOKENS)
    assert expected != [reference_tokens(model, prompt, NUM_TOKENS)]
    assert tokens_with_adapter(tmp_path, adapter, prompt) == expected


def test_an_adapter_has_the_names_of_nemotrons_own_code(tmp_path: Path) -> None:
    model, adapter = make_model(tmp_path, "nemotron-h"), tmp_path / "adapter"
    make_adapter(model, adapter, r=4, target_modules=("q_proj", "mixer.in_proj"))
    [prompt] = make_prompts(36)
    expected = peft_tokens(model, adapter, [prompt], NUM_TOKENS)
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file).items()
    save_file({key.replace(".model.model.", ".model.backbone."): one for key, one in tensors}, file)
    assert tokens_with_adapter(tmp_path, adapter, prompt) == expected
