"""Device, models and timers of the GPU benchmark.

The models are real ones' shapes with made-up weights, so that nothing is downloaded; `tiny` keeps
their structure and shrinks every size, so that all of it runs on a CPU in seconds.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig
from gpu_worker.runner.model_runner import ModelRunner

BLOCK_SIZE = 16

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Context of every part of the benchmark."""

    device: torch.device
    tiny: bool
    folder: Path
    """Folder for files that a part needs while it runs."""

    def pick(self, full: int, tiny: int) -> int:
        """Returns a size that suits."""
        return tiny if self.tiny else full

    def config(self, config: dict[str, object]) -> dict[str, object]:
        """Returns what a model's config.json says here."""
        return config | _TINY if self.tiny else config

    def model(self, config: dict[str, object]) -> Path:
        """Writes the config.json of a model; its weights are made up when it is loaded."""
        folder = self.folder / str(config["model_type"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(config)))
        return folder

    def runner(self, config: dict[str, object], *, num_seqs: int, num_tokens: int) -> ModelRunner:
        """Loads a model for steps of so many sequences and tokens; it has no cache yet."""
        return ModelRunner(
            ModelConfig(model=str(self.model(config)), load_format="dummy"),
            CacheConfig(
                block_size=BLOCK_SIZE, max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens
            ),
            device_config=DeviceConfig(device=self.device.type),
        )

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], object], *, rounds: int = 20, warm_up: int = 3) -> float:
        """Returns the median time of a call, the device's work included."""
        rounds, warm_up = self.pick(rounds, 2), self.pick(warm_up, 1)
        times = []
        for _ in range(warm_up + rounds):
            self.synchronize()
            start = time.perf_counter()
            work()
            self.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times[warm_up:])

    def kernel_seconds(self, work: Callable[[], object], *, calls: int = 50) -> float:
        """Returns the mean time of a call among many without a wait between them."""
        calls = self.pick(calls, 2)

        def many() -> None:
            for _ in range(calls):
                work()

        return self.seconds(many, rounds=3, warm_up=1) / calls
