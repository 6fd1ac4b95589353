"""Adapters of tiny models that PEFT makes, and the tokens that PEFT draws with them."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gpu_worker.tiny_models import reference_tokens

SEVEN = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
KINDS: tuple[dict[str, Any], ...] = (
    {"r": 8, "target_modules": SEVEN},
    {"r": 4, "target_modules": ("q_proj", "v_proj"), "lora_alpha": 32},
    {"r": 16, "target_modules": "all-linear", "use_rslora": True},
    {"r": 3, "target_modules": SEVEN, "rank_pattern": {"q_proj": 5, r"layers\.1\.mlp\.up_proj": 7}},
    {"r": 6, "target_modules": r".*\.mlp\..*_proj", "alpha_pattern": {"down_proj": 12}},
    {"r": 2, "target_modules": SEVEN, "layers_to_transform": [0, 2]},
    {"r": 8, "target_modules": SEVEN, "exclude_modules": ["k_proj", "model.layers.2.mlp.up_proj"]},
    {"r": 1, "target_modules": ("o_proj",), "layers_to_transform": 1, "layers_pattern": "layers"},
)
"""Eight adapters that differ in all that is served."""
FUSED_KINDS: tuple[dict[str, Any], ...] = (
    {"r": 8, "target_modules": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")},
    {"r": 4, "target_modules": "all-linear", "use_rslora": True},
    {"r": 3, "target_modules": ("qkv_proj", "down_proj"), "rank_pattern": {"qkv_proj": 5}},
)
"""Adapters of a model whose Q, K and V, and gate and up, are fused."""
GLM_KINDS: tuple[dict[str, Any], ...] = (
    {"r": 4, "target_modules": "all-linear", "use_rslora": True},
    {"r": 3, "target_modules": ("k_proj", "gate_up_proj"), "rank_pattern": {"k_proj": 5}},
    {"r": 8, "target_modules": ("q_proj", "o_proj"), "layers_to_transform": [0, 2]},
)
"""Adapters of a model whose gate and up alone are."""


def make_adapters(model: Any, path: Path, kinds: Sequence[dict[str, Any]] = KINDS) -> list[str]:
    """Saves an adapter of each kind; returns `lora` for a worker: names a0, a1, ... and folders."""
    given = []
    for number, kind in enumerate(kinds):
        make_adapter(model, path / f"a{number}", seed=number, **kind)
        given.append(f"a{number}={path / f'a{number}'}")
    return given


def make_adapter(model: Any, path: Path, *, seed: int = 0, **config: Any) -> None:
    """Saves an adapter with an effect, which a B of zeroes would not have."""
    import peft
    import torch

    options = {k: list(v) if isinstance(v, tuple) else v for k, v in config.items()}
    torch.manual_seed(seed)
    adapted = peft.get_peft_model(model, peft.LoraConfig(**options))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.3)
    adapted.save_pretrained(path)
    adapted.unload()


@contextmanager
def with_adapter(model: Any, path: Path) -> Iterator[Any]:
    """Gives PEFT's model with an adapter, which leaves `model` at the end."""
    import peft

    adapted = peft.PeftModel.from_pretrained(model, path).eval()
    yield adapted
    adapted.unload()


def peft_tokens(
    model: Any, path: Path, prompts: Sequence[list[int]], num_tokens: int
) -> list[list[int]]:
    """PEFT's greedy continuations with an adapter."""
    with with_adapter(model, path) as adapted:
        return [reference_tokens(adapted, prompt, num_tokens) for prompt in prompts]


def change_config(path: Path, **fields: object) -> None:
    file = path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def change_tensors(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    from safetensors.torch import load_file, save_file

    file = path / "adapter_model.safetensors"
    save_file(change(load_file(file)), file)
