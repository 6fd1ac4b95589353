"""Models of the GPU benchmark: shapes of real ones with made-up weights, so nothing is fetched.

`tiny` keeps their structure and shrinks every size, so that all of it runs on a CPU in seconds.
"""

import json
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.gpu.bench import BLOCK_SIZE, Bench
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.service.runner_factory import make_runner as load_runner

C = TypeVar("C", ModelConfig, CacheConfig, DeviceConfig)

LLAMA_3_8B: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
QWEN3_0_6B: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
_TINY: dict[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config_of(bench: Bench, config: dict[str, object]) -> dict[str, object]:
    """Returns what a model's config.json says here."""
    return config | _TINY if bench.tiny else config


def write_model(bench: Bench, config: dict[str, object]) -> Path:
    """Writes the config.json of a model, whose weights and tokenizer a worker makes up."""
    folder = bench.folder / str(config["model_type"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(bench, config)), encoding="utf-8")
    return folder


def make_runner(
    bench: Bench, config: dict[str, object], *, num_seqs: int, num_tokens: int
) -> LocalRunner:
    """Loads a model for steps of so many sequences and tokens; it has no cache yet."""
    own: dict[str, Any] = {
        "model": str(write_model(bench, config)),
        "load_format": "dummy",
        "block_size": BLOCK_SIZE,
        "max_num_seqs": num_seqs,
        "max_num_batched_tokens": num_tokens,
        "device": bench.device.type,
        "cpu_backend": "torch",  # a rehearsal without a card runs what a card does
        **bench.settings,
    }
    kinds = (ModelConfig, CacheConfig, DeviceConfig)
    if unknown := own.keys() - {name for kind in kinds for name in kind.model_fields}:
        raise ValueError(f"no setting of a worker is called {', '.join(sorted(unknown))}")
    return load_runner(
        RunnerConfig(
            model=_filled(ModelConfig, own),
            cache=_filled(CacheConfig, own),
            device=_filled(DeviceConfig, own),
        )
    )


def _filled(kind: type[C], values: dict[str, Any]) -> C:
    return kind(**{name: value for name, value in values.items() if name in kind.model_fields})
