"""Models of transformers that round the inputs of their products, and what a runner of the same
checkpoint must equal.

A value that lies between two codes, to float rounding, may become either of them, which moves
logits by far more than float rounding does. A prompt of three tokens has few values, so many of
such prompts have none there, and their logits are those of the reference to float rounding; a
matrix whose inputs are not rounded, or are rounded otherwise, moves the logits of all.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from signalbox_kernels.rounding import Rounding
from signalbox_kernels.torch.rounding import rounded
from signalbox_worker.config import ModelError
from signalbox_worker.files.quantised.configuration import quantised_checkpoint
from tests.gpu_worker.model_runners import log_probabilities
from tests.rounding import LOGITS

_PLACES = torch.arange(64 * 3).reshape(64, 3)
PROMPTS: list[list[int]] = (3 + (_PLACES * 2654435761 >> 16) % 45).tolist()
"""Of tokens that all tiny models have, in no order."""
ONE_CODE = 0.2
"""How far a log probability may be off where a value became the code beside its own, which differs
by an eighth of the value at most, and is one of 48 values or more of a product."""
SHARE = 0.2
"""Least share of prompts without such a value: there were 0.4 to 1, by checkpoint and processor."""
_SUMMED = ("o_proj", "down_proj")
"""Ends of the names of matrices whose products tensor-parallel ranks sum."""


@dataclass
class _RoundsInputs:
    """A hook of a linear layer."""

    how: Rounding
    num_ranks: int = 1

    def __call__(self, module: torch.nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        parts = inputs[0].chunk(self.num_ranks, dim=-1)
        return (torch.cat([rounded(part, self.how) for part in parts], dim=-1), *inputs[1:])


def round_inputs(model: torch.nn.Module, config: dict[str, Any], stays: str = "") -> None:
    """Makes the layers of a decoded model round their inputs as its checkpoint prescribes.

    Args:
        config: the checkpoint's quantization_config; without static scales.
        stays: a part of the names of layers that are not quantised.
    """
    try:
        checkpoint = quantised_checkpoint({"quantization_config": config})
    except ModelError:  # of a test that expects it
        return
    assert checkpoint is not None
    for name, module in model.named_modules():
        is_encoded = name.endswith("_proj") and not (stays and stays in name)
        scheme = checkpoint.activations_of(name) if is_encoded else None
        if isinstance(module, torch.nn.Linear) and scheme is not None:
            assert not scheme.is_static
            module.register_forward_pre_hook(_RoundsInputs(scheme.rounding(lambda end: None)))


def divide_rounding(model: torch.nn.Module, num_ranks: int) -> None:
    """Makes products that tensor-parallel ranks sum round the columns of each by themselves."""
    for name, module in model.named_modules():
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, _RoundsInputs) and name.endswith(_SUMMED):
                hook.num_ranks = num_ranks


def reference_log_probabilities(model: Any) -> Tensor:
    """Returns those of each token of PROMPTS but the first, [num_prompts, 2]."""
    tokens = torch.tensor(PROMPTS)
    with torch.no_grad():
        of_all = model(tokens).logits.float().log_softmax(dim=-1)[:, :-1]
    found: Tensor = of_all.gather(2, tokens[:, 1:, None])[..., 0]
    return found


def runner_log_probabilities(runner: Any) -> Tensor:
    return torch.stack([log_probabilities(runner, prompt) for prompt in PROMPTS])


def share_of_equal(found: Tensor, expected: Tensor) -> float:
    """Returns the share of prompts that are equal to float rounding: none where inputs are rounded
    otherwise, and `SHARE` at least where they are not."""
    return float(((found - expected).abs() < LOGITS).all(dim=1).float().mean())


def assert_rounds_as(runner: Any, expected: Tensor) -> None:
    """Args: expected: of `reference_log_probabilities`."""
    found = runner_log_probabilities(runner)
    assert share_of_equal(found, expected) > SHARE
    torch.testing.assert_close(found, expected, rtol=0, atol=ONE_CODE)
