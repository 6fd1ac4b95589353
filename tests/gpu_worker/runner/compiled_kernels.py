"""Prints what Triton compiles during a start and afterwards, on no device; a program of its own.

    python -m tests.gpu_worker.runner.compiled_kernels dense|mixture|fp8|gptq|gemma

A line of JSON: the names of the kernels that the start compiled, and of those that steps of many
kinds compiled then. A process of its own, because Triton decides when it is imported whether it
interprets.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.models import LLAMA_3_8B
from benchmarks.host_time.no_device import EmptyGraphs, driver_library, without_copies_back
from benchmarks.host_time.steps import CASES, Case, make_runner, steps_of

_LLAMA: dict[str, object] = {**LLAMA_3_8B, "num_hidden_layers": 2}
"""No kernel depends on the number of layers, which the time of the test grows by."""
_MIXTURE: dict[str, object] = {
    **_LLAMA,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 64,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 768,
}
_GEMMA: dict[str, object] = {
    **LLAMA_3_8B,
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "sliding_window": 1024,
    "query_pre_attn_scalar": 128,
    "hidden_activation": "gelu_pytorch_tanh",
}
"""Layers with windows and without; heads of Q and K are normed."""
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"config": _LLAMA, "linear_backend": "triton"},
    "mixture": {"config": _MIXTURE},
    "fp8": {"config": _LLAMA, "quantization": "fp8", "kv_cache_dtype": "fp8"},
    "gptq": {"config": _LLAMA, "quantization": "gptq"},
    "gemma": {"config": _GEMMA, "attention_backend": "triton_pdl"},
}

PROMPTS = [Case(prompt_tokens=number) for number in (2, 3, 40, 100, 300, 900, 2000)]

found: list[str] = []


def _note(*, fn: Any, **_: Any) -> None:
    found.append(fn.name.rpartition(".")[2])


def _taken() -> Iterator[str]:
    yield from sorted(found)
    found.clear()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        driver_library(Path(folder))
        import triton

        runner = make_runner(Path(folder), EmptyGraphs(), **MODELS[sys.argv[1]])
        without_copies_back(runner)
        tensors: Any = torch.Tensor
        tensors.cpu = lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype)
        as_list = tensors.tolist
        tensors.tolist = lambda tensor: as_list(torch.zeros(tensor.shape, dtype=tensor.dtype))
        triton.knobs.runtime.jit_post_compile_hook = _note
        runner.init_cache_engine(num_gpu_blocks=16, num_cpu_blocks=0)
        runner.executor.warm_up()
        triton.knobs.runtime.jit_post_compile_hook = _note
        at_start = list(_taken())
        for case in (*CASES.values(), *PROMPTS):
            for _ in islice(steps_of(runner, case), 3):
                pass
        print(json.dumps({"start": at_start, "later": list(_taken())}))


if __name__ == "__main__":
    main()
