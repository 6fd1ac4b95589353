"""Loads the MTP layer of a model, measures the memory that it needs, and owns its pool of KV."""

import logging
from weakref import WeakMethod

from signalbox_contract.model import WorkerCapacity
from signalbox_kernels.arena import Arena
from signalbox_kernels.program import Program
from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.batch.batch import Batch
from signalbox_worker.config import USUAL_BLOCK_SIZE, CacheConfig, ModelConfig, ModelError
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.drafts.proposer import Proposer
from signalbox_worker.files.adapters.adapter_opener import AdapterOpener
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.runner.draft_model.draft_model import DraftModel, measure_drafts
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.opened_model import OpenedModel
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.mtp.mtp_compiler import compile_mtp_layer
from signalbox_worker.runner.mtp.mtp_executor import MtpExecutor, MtpNorms
from signalbox_worker.runner.mtp.mtp_proposer import MtpProposer
from signalbox_worker.runner.mtp.mtp_tensors import has_mtp_layer, mtp_tensors, with_mtp_layer
from signalbox_worker.runner.native.decoder_compiler import KVForm
from signalbox_worker.runner.native.eligibility import native_unsupported_reason
from signalbox_worker.runner.native.executor import NativeExecutor
from signalbox_worker.runner.native.known_tensors import KnownTensors
from signalbox_worker.runner.native.native_adapters import NativeAdapters
from signalbox_worker.runner.native.native_model import (
    FinalNorm,
    NativeModel,
    Shard,
    row_factors,
    weight_form,
)
from signalbox_worker.runner.native.tensor_share import TensorShare
from signalbox_worker.runner.native.weight_shapes import MTP_NORM, NORM, layer_prefix
from signalbox_worker.runner.native.weights import Weights
from signalbox_worker.sampling.native_sampler import CpuSampler

logger = logging.getLogger(__name__)

_KEPT_STATES = 2
"""Hidden states that are kept for each token of a step, those that wait and those that are read."""


class MtpDrafts(DraftModel):
    """An MTP layer with its pool, and the model that it reads hidden states of."""

    executor: MtpExecutor

    def __init__(
        self, executor: MtpExecutor, capacity: WorkerCapacity, served: NativeExecutor
    ) -> None:
        super().__init__(executor, capacity)
        self._served = served

    @property
    def reserved_bytes(self) -> int:
        num_states = _KEPT_STATES * self.capacity.max_num_batched_tokens
        return super().reserved_bytes + 4 * num_states * self.executor.hidden_size

    def make_proposer(self) -> Proposer:
        """Returns the proposer of a new lease, which takes the place of those before. A lease that
        ends, or computes no more drafts, drops it, so that nothing takes hidden states."""
        proposer = MtpProposer(self.executor, self.capacity)
        method = WeakMethod(proposer.take)

        def take(batch: Batch, states: FloatArray) -> None:
            if (found := method()) is not None:
                found(batch, states)

        self._served.take_hidden = take
        return proposer


def check_mtp(config: RunnerConfig, opened: OpenedModel) -> None:
    """Refuses the method mtp where it cannot draft, before weights are read. Raises ModelError."""
    if config.speculation.mtp and (why_not := _why_no_mtp(config, opened)):
        raise ModelError(
            f"the method mtp of --speculative-config cannot draft: {why_not}; use another method,"
            " such as suffix"
        )


def _why_no_mtp(config: RunnerConfig, opened: OpenedModel) -> str | None:
    if config.parallel.num_ranks > 1:
        return "an MTP layer is computed on one rank alone"
    if opened.pooling is not None:
        return "the model pools"
    why_not = native_unsupported_reason(
        opened, config.model, config.cache, config.device, config.parallel
    )
    if why_not is not None:
        return f"an MTP layer is computed natively alone, but {why_not}"
    if isinstance(opened.source, DummySource) or not isinstance(opened.config, DecoderConfig):
        return f"{opened.shape.architecture} has no MTP layer"
    if not has_mtp_layer(opened.source, opened.config):
        return f"the files of {opened.source.name} have no MTP layer"
    return None


def load_mtp(config: RunnerConfig, opened: OpenedModel, served: Executor) -> MtpDrafts:
    """Loads the MTP layer of a model that is loaded and passed `check_mtp`.

    Raises ModelError, or MemoryError.
    """
    assert isinstance(served, NativeExecutor), "checked before"
    try:
        executor = _load_layer(config, opened, served)
        found = MtpDrafts(executor, measure_drafts(executor, config.cache), served)
    except MemoryError as error:
        raise MemoryError(f"the MTP layer: {error}") from None
    logger.info(
        "the MTP layer drafts: %d MiB of weights, and %d MiB of KV for %d tokens",
        executor.weights_bytes >> 20,
        found.kv_bytes >> 20,
        found.capacity.num_gpu_blocks * found.capacity.block_size,
    )
    return found


def _load_layer(config: RunnerConfig, opened: OpenedModel, served: NativeExecutor) -> MtpExecutor:
    model, whole = opened.config, with_mtp_layer(opened.config)
    stage = StageLayers(model.num_layers, whole.num_layers, whole.num_layers)
    info, share = served.model, TensorShare(whole=whole)
    form = weight_form(opened.source, config.model, info.dtype)
    shard = Shard(opened, config, info, share, stage, form)
    stored, kv = mtp_tensors(opened.source, model), _kv_form(config.cache, whole.num_layers)

    def compiled(arena: Arena, known: KnownTensors) -> tuple[Program, MtpNorms]:
        weights = Weights(stored, share, stage, form, known=known)
        program = compile_mtp_layer(
            weights,
            kv,
            served.tables,
            arena=arena,
            max_model_len=info.max_model_len,
            num_threads=shard.num_threads,
            factors=row_factors(config.model.dtype, form.quantization),
        )
        return program, _norms(weights, whole)

    packed, on_disk_bytes = shard.packed_weights()
    program, norms = packed.load(compiled, on_disk_bytes=on_disk_bytes)
    opener = AdapterOpener(ModelConfig(model=config.model.model), info.name, {})
    loaded = NativeModel(
        info=info,
        program=program,
        sampler=CpuSampler(program=program, num_threads=shard.num_threads),
        adapters=NativeAdapters(opener, program),
        pooling=None,
    )
    return MtpExecutor(loaded, stage, norms)


def _kv_form(cache: CacheConfig, num_layers: int) -> KVForm:
    return KVForm(
        block_size=cache.block_size or USUAL_BLOCK_SIZE,
        dtype=cache.kv_cache_dtype,
        scales=((1.0, 1.0),) * num_layers,
    )


def _norms(weights: Weights, config: DecoderConfig) -> MtpNorms:
    assert config.mtp_layer is not None
    names = NORM, f"{layer_prefix(config.mtp_layer)}{MTP_NORM}"
    of_model, of_layer = (
        FinalNorm(
            weights.norm(f"{name}.weight"),
            weights.vector_if_any(f"{name}.bias"),
            config.rms_norm_eps,
            config.norm_is_centred,
        )
        for name in names
    )
    return MtpNorms(of_model=of_model, of_layer=of_layer)
