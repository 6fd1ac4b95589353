"""Tries a device's mixture of experts beside plain PyTorch, before a model is built on it.

A mixture of the model's own sizes computes few tokens, some and many, which take different kernels,
with even and with skewed routing. What it compiles lies in Triton's cache after that.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor

from signalbox_kernels.torch import registry
from signalbox_kernels.torch.experts import ExpertWeights
from signalbox_kernels.torch.experts import mix_experts as reference
from signalbox_kernels.torch.fp8 import FP8_GROUP
from signalbox_worker.device.trials.kept_verdicts import verdicts_of
from signalbox_worker.device.trials.trial import Trial, Verdict

logger = logging.getLogger(__name__)

Size = tuple[int, int, int]

_OP = "mix_experts"
_MANY_ROWS = 17
"""Mean rows of an expert for which the larger tiles are taken."""
_MANY_TOKENS = 520
"""So many that programs sort larger chunks."""
_LARGEST = 64
"""A code that most values are below."""
_NUM_ROUNDINGS = 8
"""Units in the last place of the largest result by which two orders of sums may differ."""


def keep_if_right(
    device: torch.device,
    *,
    dtype: torch.dtype,
    num_experts: int,
    experts_per_token: int,
    hidden_size: int,
    expert_size: int,
) -> None:
    """Leaves the op to its reference where the device's own does not compute what that does.

    Args:
        expert_size: that of this shard.
    """
    if not registry.has_own(_OP, device):
        return
    trial = Trial(
        name="Triton's mixture of experts",
        function=f"{__name__}:{try_mixture.__name__}",
        arguments={
            "dtype": str(dtype).removeprefix("torch."),
            "num_experts": num_experts,
            "experts_per_token": experts_per_token,
            "hidden_size": hidden_size,
            "expert_size": expert_size,
        },
    )
    (verdict,) = verdicts_of([trial], device)
    if verdict.fault is not None:
        registry.unregister(_OP, device.type)
        logger.warning(
            "Triton's mixture of experts does not work on this %s: %s; PyTorch computes it, "
            "several times slower and without graphs",
            device,
            verdict.fault,
        )


def try_mixture(
    device: torch.device,
    *,
    dtype: str,
    num_experts: int,
    experts_per_token: int,
    hidden_size: int,
    expert_size: int,
) -> Verdict:
    """Compares with the reference on a device; called in the process of trials."""
    from signalbox_kernels.triton.experts.mixture import mix_experts

    kind: torch.dtype = getattr(torch, dtype)
    generator = torch.Generator(device).manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=kind)

    sizes = ((num_experts, 2 * expert_size, hidden_size), (num_experts, hidden_size, expert_size))
    forms = _forms(sizes, random, device)
    # No two scores of a token are equal, since of equal ones either may be chosen.
    scores = torch.linspace(-4, 4, num_experts, device=device, dtype=kind)
    for num_tokens in (1, 64, max(_MANY_TOKENS, _MANY_ROWS * num_experts // experts_per_token)):
        even = scores[random(num_tokens, num_experts).argsort(dim=1)]
        for logits, (gate_up, down) in product((even, scores.repeat(num_tokens, 1)), forms):
            x = random(num_tokens, hidden_size)
            actual, expected = (
                mix(
                    x,
                    logits,
                    gate_up,
                    down,
                    experts_per_token=experts_per_token,
                    renormalise=True,
                ).float()
                for mix in (mix_experts, reference)
            )
            worst = float((actual - expected).abs().max())
            if not worst <= _NUM_ROUNDINGS * torch.finfo(kind).eps * float(expected.abs().max()):
                return Verdict(fault=f"the results of {num_tokens} tokens are off by {worst:.2g}")
    return Verdict()


def _forms(
    sizes: Sequence[Size], random: Callable[..., Tensor], device: torch.device
) -> list[tuple[ExpertWeights, ...]]:
    """Returns matrices of some sizes in each form that the device multiplies."""
    forms = [tuple(ExpertWeights(random(*size).div_(size[2] ** 0.5)) for size in sizes)]
    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9):
        forms += [
            tuple(_in_e4m3(random(*size), rows_per_scale=rows) for size in sizes)
            for rows in (1, FP8_GROUP)
        ]
    return forms


def _in_e4m3(weight: Tensor, *, rows_per_scale: int) -> ExpertWeights:
    """Takes values around 1; a scale is for one row, or for a block."""
    num_experts, out_features, in_features = weight.shape
    num_groups = 1 if rows_per_scale == 1 else -(-in_features // FP8_GROUP)
    num_scales = -(-num_experts * out_features // rows_per_scale)
    scales = torch.rand(num_scales, num_groups, device=weight.device).add_(0.5)
    scales /= _LARGEST * in_features**0.5
    return ExpertWeights((weight * _LARGEST).to(torch.float8_e4m3fn), scales, rows_per_scale)
