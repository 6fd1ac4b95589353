"""Attention that plans from tensors alone, in plain PyTorch, so that a CPU can record its graphs.

Every step reads all of each table, and masks what is past a context.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from signalbox_worker.batch.input_transfer import StepInputs
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.models.attention import register_attention_backend, registry
from signalbox_worker.models.attention.backend import AttentionShape
from signalbox_worker.models.attention.torch_backend import TorchAttention
from signalbox_worker.runner.executors import executor_factory
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.service.runner_factory import make_runner
from tests.gpu_worker.device.recorded_graphs import GraphsOnCpu


def make_shape(*, device: str = "cpu", **changes: Any) -> AttentionShape:
    shape = AttentionShape(
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_size=64,
        block_size=16,
        scale=0.5,
        sliding_windows=(None,),
        dtype=torch.float32,
        device=torch.device(device),
    )
    return replace(shape, **changes)


class DeviceAttention(TorchAttention):
    """Satisfies `DevicePlanning` besides."""

    def plan_on_device(self, inputs: StepInputs) -> "_Plan":
        caches = [layer.kv.transpose(2, 3) for layer in self._caches]
        return _Plan(self._shape, caches, inputs)


@dataclass(frozen=True, slots=True)
class _Plan:
    shape: AttentionShape
    caches: list[Tensor]
    inputs: StepInputs

    def __call__(self, query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
        self._store(key_value, self.caches[layer])
        token = torch.arange(len(query))
        owner = (token[:, None] >= self.inputs.query_start[1:]).sum(dim=1)
        owner = owner.clamp(max=len(self.inputs.context_lens) - 1)  # padding has none
        blocks = self.caches[layer][self.inputs.block_tables[owner].long()]
        keys, values = blocks.transpose(1, 2).flatten(2, 3).unbind(1)  # [tokens, slots, heads, *]
        group = query.shape[1] // keys.shape[2]
        visible = torch.arange(keys.shape[1]) <= self.inputs.positions[:, None]  # others may be NaN
        keys = keys.repeat_interleave(group, dim=2).masked_fill(~visible[:, :, None, None], 0.0)
        values = values.repeat_interleave(group, dim=2).masked_fill(~visible[:, :, None, None], 0.0)
        scores = torch.einsum("thd,tkhd->thk", query, keys) * self.shape.scale
        weights = scores.masked_fill(~visible[:, None], float("-inf")).softmax(dim=-1)
        return torch.einsum("thk,tkhd->thd", weights, values).flatten(1)

    def _store(self, key_value: Tensor, cache: Tensor) -> None:
        """Padding, which is never the first token, stores what that one does."""
        slots = self.inputs.slot_mapping
        is_real = slots >= 0
        slots = torch.where(is_real, slots, slots[0])
        new = torch.where(is_real[:, None, None, None], key_value, key_value[0])
        keep = slots[0] >= 0  # else all is padding
        slots = slots.clamp(min=0)
        blocks, offsets = slots // self.shape.block_size, slots % self.shape.block_size
        cache[blocks, :, offsets] = torch.where(keep, new, cache[blocks, :, offsets])


def make_device_runner(
    path: Path,
    recorder: GraphsOnCpu | None,
    *,
    backend: str = "device",
    enforce_eager: bool = False,
    sampling: str = "torch",
    num_gpu_blocks: int = 40,
    max_num_seqs: int = 8,
    max_graph_tokens: int = 0,
) -> LocalRunner:
    """Without a recorder and with another backend it is the plain `TorchExecutor`."""
    register_attention_backend("device", DeviceAttention)
    try:
        with patch.object(executor_factory, "recorder_for", lambda _: recorder):
            runner = make_runner(
                RunnerConfig(
                    model=ModelConfig(model=str(path), dtype="float32", max_model_len=128),
                    cache=CacheConfig(max_num_seqs=max_num_seqs, swap_space=0),
                    device=DeviceConfig(
                        device="cpu",
                        attention_backend=backend,
                        cpu_backend="torch",
                        sampling_backend=sampling,
                        enforce_eager=enforce_eager,
                        max_cudagraph_capture_size=max_graph_tokens,
                    ),
                )
            )
    finally:
        registry._backends.pop("device")
    assert isinstance(runner, LocalRunner)
    runner.init_cache_engine(num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=0)
    return runner
