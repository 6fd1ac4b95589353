"""How a group of CUDA devices is joined, up to NCCL itself."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import distributed_c10d as c10d

from signalbox_worker.device import process_group
from signalbox_worker.device.parallel_config import ParallelConfig


class RecordedNCCL:
    """Takes what NCCL's group takes, and keeps the environment that it would read."""

    Options = SimpleNamespace

    def __init__(self, store: object, rank: int, size: int, options: Any) -> None:
        self.timeout = options._timeout
        self.environment = dict(os.environ)


def test_nccl_stays_on_this_machine_and_asks_no_store_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(c10d, "is_nccl_available", lambda: True)
    monkeypatch.setattr(c10d, "ProcessGroupNCCL", RecordedNCCL, raising=False)
    group = process_group._nccl("store", ParallelConfig(tensor_parallel_size=2))
    assert group.environment == {
        "NCCL_SOCKET_IFNAME": "=lo",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
    }
    assert group.timeout == process_group.TIMEOUT
