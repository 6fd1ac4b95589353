"""Puts together what PyTorch runs: model and weights, attention backend, sampler."""

import contextlib
import logging
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from signalbox_contract.model import ModelInfo, Numerics
from signalbox_contract.startup import ReportProgress
from signalbox_kernels.torch import registry
from signalbox_kernels.triton.kernel_cache import use_kernel_cache
from signalbox_worker.config import INT16, DeviceConfig, ModelConfig, ModelError
from signalbox_worker.device.device_choice import choose_device, compute_capability, dtype_for_half
from signalbox_worker.device.inspection import BackendInUse
from signalbox_worker.device.keys import Keys
from signalbox_worker.device.memory import bytes_in_use, tensor_bytes
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.process_group import join
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints.quantization import (
    Quantization,
    choose_quantization,
    describe_form,
)
from signalbox_worker.models import Model
from signalbox_worker.models.attention import AttentionBackend, choose_attention_backend
from signalbox_worker.models.few_rows import choose_products
from signalbox_worker.models.layers import ParallelGroup, Placement
from signalbox_worker.runner.loading.adapter_loader import AdapterLoader
from signalbox_worker.runner.loading.attention_shape import attention_shape
from signalbox_worker.runner.loading.dummy_weights import dummy_placement
from signalbox_worker.runner.loading.model_source import ModelSource
from signalbox_worker.runner.loading.opened_model import OpenedModel, model_info
from signalbox_worker.runner.loading.pooling_model import not_pooled
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.loading.weight_loader import load_weights
from signalbox_worker.sampling.sampler import Sampler
from signalbox_worker.sampling.sampler_factory import describe_sampler, make_sampler

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to run, without a cache."""

    info: ModelInfo
    opened: OpenedModel
    placement: Placement
    model: Model
    adapters: AdapterLoader
    attention: AttentionBackend
    block_size: int
    """Tokens in a block; the attention backend chooses it unless it is configured."""
    sampler: Sampler[Tensor]
    backends: tuple[BackendInUse, ...]
    group: ParallelGroup
    weights_bytes: int
    others_bytes: int
    """Bytes of the device that were in use before this process."""

    @property
    def device(self) -> torch.device:
        return self.placement.device

    @property
    def dtype(self) -> torch.dtype:
        return self.placement.dtype

    @property
    def stage(self) -> StageLayers:
        return self.group.stage(self.opened.shape.num_layers)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states between stages; 0 for a model that has none."""
        return self.opened.shape.hidden_size


def load_model(
    opened: OpenedModel,
    config: RunnerConfig,
    *,
    keys: Keys | None,
    layers: StageLayers,
    progress: ReportProgress,
    native_unsupported_reason: str,
) -> LoadedModel:
    """Loads a model that is opened.

    Args:
        keys: where tensor-parallel ranks meet.
        layers: those of this rank's pipeline stage.
        native_unsupported_reason: what keeps the model from running natively.

    Raises ModelError, ValueError or MemoryError with what is wrong and the remedy.
    """
    model_config, device_config = config.model, config.device
    device = _device(device_config, config.parallel)
    others_bytes = bytes_in_use(device)
    group = replace(join(config.parallel, device, keys), layers=layers)
    refuse_int16(model_config, native_unsupported_reason)
    placement = Placement(device, dtype_of(model_config.dtype, opened.source, device))
    if model_config.load_format == "dummy":
        placement = dummy_placement(placement)
    return _Loading(
        opened=opened,
        config=config,
        info=model_info(model_config, opened, str(placement.dtype).removeprefix("torch.")),
        placement=placement,
        group=group,
        progress=progress,
        native_unsupported_reason=native_unsupported_reason,
    ).load(others_bytes)


class _BuiltModel(NamedTuple):
    """A model with its weights."""

    model: Model
    adapters: AdapterLoader
    linear_backend: str
    factors: str
    """Type of the factors of its products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loading:
    """A model that is being loaded: its form, and where its weights lie."""

    opened: OpenedModel
    config: RunnerConfig
    info: ModelInfo
    placement: Placement
    group: ParallelGroup
    progress: ReportProgress
    native_unsupported_reason: str

    def load(self, others_bytes: int) -> LoadedModel:
        """Args: others_bytes: as the result has it."""
        opened, placement, info, group = self.opened, self.placement, self.info, self.group
        device_config, reason = self.config.device, self.native_unsupported_reason
        shape = attention_shape(opened, self.config.cache, placement, group, reason)
        attention = choose_attention_backend(device_config.attention_backend, shape)
        built = self._build()
        device, kv_dtype = placement.device, str(shape.kv_dtype).removeprefix("torch.")
        sampler = make_sampler(
            device_config, vocab_size=opened.shape.vocab_size, placement=placement, group=group
        )
        backends = (
            BackendInUse("attention", attention.name, attention.is_last_resort),
            describe_sampler(sampler, device_config, device),
            BackendInUse("linear", built.linear_backend),
        )
        logger.info(
            "%s is loaded on %s in %s, K and V in %s", info.name, device, info.dtype, kv_dtype
        )
        numerics, adapters = _numerics(built.factors, kv_dtype, device), built.adapters
        return LoadedModel(
            info=replace(info, numerics=numerics, adapters=adapters.slots.loaded),
            opened=opened,
            placement=placement,
            model=built.model,
            adapters=adapters,
            attention=attention.backend,
            block_size=attention.block_size,
            sampler=sampler,
            backends=backends,
            group=group,
            weights_bytes=tensor_bytes(built.model),
            others_bytes=others_bytes,
        )

    def _build(self) -> _BuiltModel:
        """Builds the model in the form that `--quantization` chooses, and loads its weights."""
        info, source, placement = self.info, self.opened.source, self.placement
        quantization, device = self._quantization(), placement.device
        with _out_of_memory_named(info, device), torch.inference_mode():
            model = self._make()
            rounds = self.config.model.quantization != "none" and not model.loads_itself
            activations = source.sizes.activations if source.sizes is not None and rounds else ""
            products = choose_products(
                self.config.device.linear_backend,
                model,
                placement,
                num_ranks=self.group.size,
                is_quantised=quantization is not None or bool(activations),
            )
            self._load_weights(model, quantization, rounds_activations=rounds)
            adapters = AdapterLoader(
                model, info.architecture, self.config.model, info.name, device, self._stage
            )
        is_fp8 = quantization is not None and quantization.name == "fp8"
        factors = activations or ("fp8_e4m3" if is_fp8 else info.dtype)
        return _BuiltModel(model, adapters, products, factors)

    def _quantization(self) -> Quantization | None:
        device = self.placement.device
        return choose_quantization(
            self.config.model,
            self.opened.source,
            self.native_unsupported_reason,
            compute_capability(device),
            has_kernels=device.type != "cuda" or registry.has_own("fp8_linear", device),
        )

    def _make(self) -> Model:
        """Makes the model without its weights."""
        opened, info = self.opened, self.info
        model = opened.spec.make(opened.config, info.max_model_len, self.placement, self.group)
        if opened.pooling is not None and not model.pools:
            raise not_pooled(info.architecture)
        return model

    def _load_weights(
        self, model: Model, quantization: Quantization | None, *, rounds_activations: bool
    ) -> None:
        """Loads the weights of this rank's stage."""
        opened, stage = self.opened, self._stage
        line = describe_form(
            opened.source.sizes,
            self.info.dtype,
            quantization,
            self.native_unsupported_reason,
            rounds_activations=rounds_activations,
        )
        logger.info("%s", line)
        load_weights(
            model,
            opened.source,
            self.progress,
            quantization,
            rounds_activations=rounds_activations,
            of_other_stages=set() if stage.is_whole else all_names(opened, self.placement),
            tied=opened.tied_tables,
        )

    @property
    def _stage(self) -> StageLayers:
        return self.group.stage(self.opened.shape.num_layers)


def all_names(opened: OpenedModel, placement: Placement) -> Set[str]:
    """Returns the names of the tensors of all stages."""
    nowhere = replace(placement, device=torch.device("meta"))
    return opened.spec.make(opened.config, 1, nowhere, ParallelGroup()).weight_targets().keys()


@contextlib.contextmanager
def _out_of_memory_named(info: ModelInfo, device: torch.device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise MemoryError(
            f"the weights of {info.name} do not fit on {device}; "
            "use a smaller model, a smaller dtype or a larger tensor_parallel_size"
        ) from None


def _device(config: DeviceConfig, parallel: ParallelConfig) -> torch.device:
    """Makes the device the process's current one, which NCCL and the name "cuda" refer to, and
    gives its compiler a folder."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = choose_device(config, parallel)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        use_kernel_cache(config.kernel_cache)
    return device


def refuse_int16(model_config: ModelConfig, native_unsupported_reason: str) -> None:
    """Raises ModelError for a type of activations that native programs have alone."""
    if model_config.dtype == INT16:
        raise ModelError(
            f"dtype is '{INT16}', which takes a native program, but {native_unsupported_reason};"
            " use 'auto'"
        )


def dtype_of(name: str, source: ModelSource, device: torch.device) -> torch.dtype:
    """`auto` is the model's own, with what the device has instead of its 16 bits."""
    if name != "auto":
        return _DTYPES[name]
    return dtype_for_half(device) if source.is_half else torch.float32


def _numerics(factors: str, kv_dtype: str, device: torch.device) -> Numerics:
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = f"sm_{major}{minor}"
    else:
        name = torch.backends.cpu.get_cpu_capability().lower()
    stored = {"float8_e4m3fn": "fp8_e4m3"}.get(kv_dtype, kv_dtype)
    return Numerics(factors=factors, kernels=f"torch {name}", kv_cache_dtype=stored)
