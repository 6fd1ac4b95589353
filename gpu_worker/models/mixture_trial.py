"""Tries a device's mixture of experts beside plain PyTorch, before a model is built on it.

A mixture of the model's own sizes computes few tokens, some and many, which take different kernels,
with even and with skewed routing. What it compiles lies in Triton's cache after that.
"""

import logging

import torch
from torch import Tensor

from gpu_worker.trials.kept_verdicts import verdicts_of
from gpu_worker.trials.trial import Trial, Verdict
from signalbox_kernels.torch import reference, registry

logger = logging.getLogger(__name__)

_OP = "mix_experts"
_MANY_ROWS = 17
"""Mean rows of an expert for which the larger tiles are taken."""
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
        expert_size: this rank's share.
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

    gate_up = random(num_experts, 2 * expert_size, hidden_size).div_(hidden_size**0.5)
    down = random(num_experts, hidden_size, expert_size).div_(expert_size**0.5)
    # No two scores of a token are equal, since of equal ones either may be chosen.
    scores = torch.linspace(-4, 4, num_experts, device=device, dtype=kind)
    for num_tokens in (1, 64, max(1024, _MANY_ROWS * num_experts // experts_per_token)):
        even = scores[random(num_tokens, num_experts).argsort(dim=1)]
        for logits in (even, scores.repeat(num_tokens, 1)):
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
                for mix in (mix_experts, reference.mix_experts)
            )
            worst = float((actual - expected).abs().max())
            if not worst <= _NUM_ROUNDINGS * torch.finfo(kind).eps * float(expected.abs().max()):
                return Verdict(fault=f"the results of {num_tokens} tokens are off by {worst:.2g}")
    return Verdict()
