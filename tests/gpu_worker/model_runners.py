"""Runners of models on a CPU, and what their tokens must equal.

PyTorch is imported where it is needed; not all tests need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from signalbox_worker.batch.sampling_rows import PromptRows
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig, SpeculationConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service import runner_factory as factory
from tests.gpu_worker.generation import Driver, groups_of, make_batch, make_sequence, num_row_blocks
from tests.gpu_worker.tiny_models import VOCAB, reference_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from signalbox_worker.runner.local_runner import LocalRunner

WHOLE = 1 << 30
"""A chunk that any prompt fits into."""
WEIGHTS = ("*.safetensors", "*.index.json")
"""Files of weights in a directory of Hugging Face's layout."""
LONG_PROMPT: list[int] = np.random.default_rng(5).integers(3, VOCAB, 100).tolist()
Config = TypeVar("Config", ModelConfig, CacheConfig, DeviceConfig)


def make_runner(path: Path, *, num_gpu_blocks: int = 200, **options: Any) -> Any:
    """Loads a model and gives it a cache.

    Args:
        options: fields of the model's, the cache's or the device's configuration, or
            `speculation`; any other goes to `runner_factory.make_runner`.
    """
    num_cpu_blocks = options.pop("num_cpu_blocks", 8)
    model_config = _make_config(ModelConfig, {"model": str(path), "dtype": "float32"}, options)
    cache_config = _make_config(CacheConfig, {"max_num_seqs": 16}, options)
    device_config = _make_config(DeviceConfig, {"device": "cpu"}, options)
    config = RunnerConfig(
        model=model_config,
        cache=cache_config,
        device=device_config,
        speculation=options.pop("speculation", SpeculationConfig()),
    )
    runner: Any = factory.make_runner(config, **options)
    num_blocks = num_gpu_blocks * num_row_blocks(groups_of(runner))
    runner.init_cache_engine(num_gpu_blocks=num_blocks, num_cpu_blocks=num_cpu_blocks)
    return runner


def _make_config(kind: type[Config], defaults: dict[str, Any], options: dict[str, Any]) -> Config:
    """Takes the fields of `kind` out of the options."""
    names = kind.model_fields.keys() & options.keys()
    return kind(**defaults | {name: options.pop(name) for name in names})


def make_prompts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, VOCAB, length).tolist() for length in lengths]


def assert_greedy(
    runner: "LocalRunner",
    reference: Any,
    prompts: Sequence[list[int]],
    num_tokens: int = 8,
    *,
    chunks: Sequence[int] = (WHOLE,),
    alone: bool = False,
) -> None:
    """Checks that the runner generates what transformers does, whatever the size of its chunks.

    Args:
        alone: generate from each prompt by itself too, in chunks of the last size.
    """
    expected = [reference_tokens(reference, prompt, num_tokens) for prompt in prompts]
    batches = [(list(prompts), expected, chunk) for chunk in chunks]
    if alone:
        pairs = zip(prompts, expected, strict=True)
        batches += [([prompt], [tokens], chunks[-1]) for prompt, tokens in pairs]
    for batch, tokens, chunk in batches:
        driver = Driver(runner=runner, chunk=chunk)
        assert driver.generate(batch, num_tokens=num_tokens) == tokens


@dataclass
class Probe:
    """Keeps the logits of every step."""

    runner: "LocalRunner"
    logits: list["Tensor"] = field(default_factory=list)

    def __post_init__(self) -> None:
        model = self.runner.executor.loaded.model
        inner = model.logits

        def keep(hidden: "Tensor") -> "Tensor":
            self.logits.append(inner(hidden))
            return self.logits[-1]

        model.logits = keep  # type: ignore[method-assign]


def last_logits(runner: "LocalRunner", *prompts: list[int], chunks: Sequence[int]) -> "Tensor":
    """Returns the logits after the first prompt, computed in chunks beside the others."""
    probe = Probe(runner)
    sequences = [make_sequence(prompt, range(3 * i, 3 * i + 3)) for i, prompt in enumerate(prompts)]
    for chunk in chunks:
        work = [(one, chunk) for one in sequences]
        runner.execute(make_batch(work, block_size=16, groups=groups_of(runner)))
        for sequence in sequences:
            sequence.num_computed += chunk
    return probe.logits[-1][0].float()


def log_probabilities(runner: Any, prompt: list[int] = LONG_PROMPT) -> "Tensor":
    """Returns those of each token of the prompt but the first."""
    import torch

    work = [(make_sequence(prompt, range(10)), len(prompt))]
    batch = make_batch(work, block_size=16, groups=groups_of(runner))
    batch.prompt_rows = PromptRows(
        seq_index=np.array([0]),
        first_position=np.array([1]),
        lengths=np.array([len(prompt) - 1]),
        token_index=np.arange(len(prompt) - 1),
        targets=np.array(prompt[1:], dtype=np.int32),
        num_logprobs=np.zeros(len(prompt) - 1, dtype=np.int64),
    )
    found = runner.execute(batch).prompt_logprobs
    return torch.tensor([one.logprob for one in sorted(found, key=lambda one: one.row)])


def remove_files(path: Path, *patterns: str) -> None:
    for pattern in patterns:
        for file in path.glob(pattern):
            file.unlink()
