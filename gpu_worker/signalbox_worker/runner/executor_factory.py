"""Chooses and makes the executor of a loaded model's steps."""

import torch
from torch import Tensor

from signalbox_kernels import triton
from signalbox_worker.config import CacheConfig
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.device.graphs import GraphRecorder
from signalbox_worker.device.input_transfer import InputPacker, PinnedBuffers
from signalbox_worker.executors.async_executor import AsyncExecutor
from signalbox_worker.executors.graph_inputs import GraphBuffers
from signalbox_worker.executors.pooling_executor import PoolingExecutor
from signalbox_worker.executors.stage_executor import HiddenShape, StageExecutor
from signalbox_worker.executors.step_graphs import DevicePlanning, StepGraphs, graph_sizes
from signalbox_worker.executors.torch_executor import TorchExecutor
from signalbox_worker.loading.loaded_model import LoadedModel
from signalbox_worker.sampling.async_sampling import DeviceDrawing, PlainDraws
from signalbox_worker.sampling.sampler import Sampler
from signalbox_worker.sampling.torch_sampler import TorchSampler

_DRAWS_A_SEQUENCE = 4  # that are kept for the next step, on average; prompts draw for n at once


def make_executor(
    loaded: LoadedModel,
    cache_config: CacheConfig,
    recorder: GraphRecorder | None,
    *,
    max_graph_tokens: int,
) -> TorchExecutor:
    """Makes the executor; without a recorder of graphs, kernels are launched one by one.

    Args:
        max_graph_tokens: tokens of the largest mixed step that is a graph.
    """
    if loaded.pooler is not None:
        return PoolingExecutor(
            loaded.model, loaded.attention, loaded.sampler, loaded.device, loaded.pooler
        )
    if not loaded.stage.is_whole:
        return StageExecutor(
            loaded.model,
            loaded.attention,
            loaded.sampler,
            loaded.device,
            stage=loaded.stage,
            shape=HiddenShape(loaded.hidden_size, loaded.dtype),
        )
    on_device = loaded.device.type != "cpu" or recorder is not None
    if on_device and isinstance(loaded.attention, DevicePlanning):
        return _async_executor(
            loaded, loaded.attention, cache_config, recorder, max_graph_tokens=max_graph_tokens
        )
    return TorchExecutor(loaded.model, loaded.attention, loaded.sampler, loaded.device)


def _async_executor(
    loaded: LoadedModel,
    planning: DevicePlanning,
    cache_config: CacheConfig,
    recorder: GraphRecorder | None,
    *,
    max_graph_tokens: int,
) -> AsyncExecutor:
    device, compute = loaded.device, streams_of(loaded.device).compute
    pinned = PinnedBuffers(device, compute)
    packer = InputPacker(device, pinned)
    num_draws = _DRAWS_A_SEQUENCE * cache_config.max_num_seqs
    drawn = torch.zeros(num_draws, dtype=torch.int64, device=device)
    graphs = None
    if recorder is not None:
        sizes = graph_sizes(
            max_num_seqs=cache_config.max_num_seqs,
            max_tokens=min(max_graph_tokens, cache_config.num_batched_tokens(device.type)),
        )
        graphs = StepGraphs(
            model=loaded.model,
            attention=planning,
            recorder=recorder,
            buffers=GraphBuffers(
                sizes=sizes,
                max_blocks=-(-loaded.info.max_model_len // loaded.block_size),
                device=device,
                pinned=pinned,
            ),
            drawn=drawn,
            vocab_size=loaded.info.vocab_size,
            sizes=sizes,
            num_ranks=loaded.group.size,
        )
    return AsyncExecutor(
        loaded.model,
        loaded.attention,
        loaded.sampler,
        device,
        compute=compute,
        packer=packer,
        drawn=drawn,
        drawing=_drawing(loaded.sampler, packer),
        graphs=graphs,
        vocab_size=loaded.info.vocab_size,
    )


def _drawing(sampler: Sampler[Tensor], packer: InputPacker) -> DeviceDrawing | None:
    if isinstance(sampler, TorchSampler):
        return PlainDraws(packer)
    if not triton.is_installed():
        return None
    from signalbox_worker.sampling.triton_sampler import TritonSampler

    if not isinstance(sampler, TritonSampler):
        return None
    sampler.packer = packer
    return sampler
