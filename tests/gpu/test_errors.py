"""What CUDA really raises is what the worker takes it for."""

import subprocess
import sys

import pytest
import torch

from signalbox_worker.device.memory import is_out_of_memory

BREAK = """
import torch
from signalbox_worker.device.device_errors import is_device_lost
table = torch.zeros(4, device="cuda")
for _ in range(2):  # a sticky error comes again
    try:
        table[torch.tensor([1 << 20], device="cuda")].sum().item()
    except RuntimeError as error:
        print(is_device_lost(error), error)
"""


def test_a_failed_assertion_in_a_kernel_loses_the_device() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BREAK], capture_output=True, text=True, timeout=120, check=False
    )
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("True", "False"))]
    assert len(verdicts) == 2
    assert all(line.startswith("True") for line in verdicts)


def test_too_large_a_tensor_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert is_out_of_memory(caught.value)
