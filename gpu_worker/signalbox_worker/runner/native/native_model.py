"""Loads an opened model into a native program, with the sampler that shares its threads."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.model import ModelInfo, Numerics
from signalbox_contract.startup import ReportProgress, StartupPhase, StartupProgress
from signalbox_kernels.arena import Arena
from signalbox_kernels.floats import DTYPES, AnyArray
from signalbox_kernels.group import Group
from signalbox_kernels.native import best_isa, multiplies_bfloat16
from signalbox_kernels.program import Program
from signalbox_kernels.structs import Row
from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.config import INT16, USUAL_BLOCK_SIZE, ModelConfig, ModelError
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.adapters.adapter_opener import AdapterOpener
from signalbox_worker.files.checkpoints.kv_scales import KVScales, check_kv_scheme, read_kv_scales
from signalbox_worker.files.checkpoints.quantization import (
    Quantization,
    choose_quantization,
    describe_form,
)
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.checkpoints.weight_names import check_shape
from signalbox_worker.models.decoder_config import FUSED_PROJECTIONS, DecoderConfig
from signalbox_worker.models.gemma4_config import MIXTURE, Gemma4Config
from signalbox_worker.models.mixture_config import STACKED_ROUTER, MoeConfig
from signalbox_worker.models.pooling.pooler import Pooler
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.layer_partition import stages_of
from signalbox_worker.runner.loading.model_source import ModelSource
from signalbox_worker.runner.loading.opened_model import OpenedModel, model_info
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.native.adapter_modules import module_rows, module_shapes
from signalbox_worker.runner.native.decoder_compiler import (
    NO_TABLES,
    KVForm,
    Tables,
    compile_decoder,
)
from signalbox_worker.runner.native.hybrid_tensors import with_native_names
from signalbox_worker.runner.native.known_tensors import KnownTensors
from signalbox_worker.runner.native.layer_groups import groups_of, with_states
from signalbox_worker.runner.native.memory_fit import check_memory
from signalbox_worker.runner.native.native_adapters import NativeAdapters
from signalbox_worker.runner.native.packed_weights import PackedWeights, packed_weights
from signalbox_worker.runner.native.random_weights import random_tensors
from signalbox_worker.runner.native.tensor_share import TensorShare, tensor_share
from signalbox_worker.runner.native.threads import default_num_threads
from signalbox_worker.runner.native.transposed_stacks import without_transposed_stacks
from signalbox_worker.runner.native.weight_shapes import (
    EXPERTS,
    NORM,
    ROUTER,
    is_behind,
    layer_prefix,
    weight_shapes,
)
from signalbox_worker.runner.native.weights import WeightForm, Weights
from signalbox_worker.sampling.native_sampler import CpuSampler

logger = logging.getLogger(__name__)

_CODES = {"8 bits": "int8", "16 bits": "int16"}
"""Types of factors by the arithmetic of programs."""


@dataclass(frozen=True, slots=True)
class FinalNorm:
    """The norm behind the last layer, for [num_rows, hidden_size]."""

    weight: FloatArray
    bias: FloatArray | None
    eps: float
    is_centred: bool

    def __call__(self, x: FloatArray) -> FloatArray:
        if self.is_centred:
            x = x - x.mean(axis=-1, keepdims=True)
        squares = np.square(x, dtype=np.float32).mean(axis=-1, keepdims=True)
        normed: FloatArray = x / np.sqrt(squares + np.float32(self.eps)) * self.weight
        return normed if self.bias is None else normed + self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class NativePooling:
    """Maker of vectors from a program's hidden states."""

    norm: FinalNorm | None
    """None if the program ends with it."""
    pooler: Pooler
    num_token_types: int = 0
    """Types that the model has embeddings of; tokens of later types have the last one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeModel:
    """A program with its weights, without a cache."""

    info: ModelInfo
    program: Program
    sampler: CpuSampler
    adapters: NativeAdapters
    pooling: NativePooling | None
    """None of a model that generates."""
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,)
    tables: Tables = NO_TABLES
    """Tables that a further program may read, too."""


def load_natively(
    opened: OpenedModel,
    settings: RunnerConfig,
    *,
    layers: StageLayers,
    group: Group | None,
    progress: ReportProgress,
) -> NativeModel:
    """Loads a shard of a model of which `native_unsupported_reason` is None. Raises ModelError.

    Args:
        layers: those of the shard's stage.
        group: what shards of the stage sum in; None if there is one.
    """
    config, model_config = opened.config, settings.model
    assert isinstance(config, DecoderConfig), "of a family that is Llama's"
    dtype = dtype_name(model_config.dtype, is_half=opened.source.is_half)
    info = model_info(model_config, opened, dtype)
    form = weight_form(opened.source, model_config, dtype)
    _log_form(opened.source, form, dtype)
    stored = stored_tensors(opened.source, config, progress)
    kv = _kv_form(opened, settings, stored, max_model_len=info.max_model_len)
    share = tensor_share(config, settings.parallel, stored)
    opener = AdapterOpener(model_config, info.name, module_shapes(config))
    given = opener.open_given()
    shard = Shard(opened, settings, info, share, layers, form)
    compiled = partial(
        shard.compile, stored, kv, progress, max_lora_rank=opener.max_rank(given), group=group
    )
    packed, on_disk_bytes = shard.packed_weights()
    program, tables, pooling = packed.load(compiled, on_disk_bytes=on_disk_bytes)
    sampler = CpuSampler(program=program, num_threads=shard.num_threads)
    describe_steps(program)
    logger.info("%s is loaded on cpu in %s", info.name, info.dtype)
    adapters = NativeAdapters(opener, program, given, module_rows(config), share.pair)
    numerics = numerics_of(program, _activations(opened.source, form))
    info = replace(info, numerics=numerics, adapters=adapters.slots.loaded)
    return NativeModel(
        info=info,
        program=program,
        sampler=sampler,
        adapters=adapters,
        pooling=pooling,
        groups=with_states(kv.groups, share, stages_of(opened, settings.parallel), program.shape),
        tables=tables,
    )


class Shard(NamedTuple):
    """The part of a model that a process computes, and the form of its weights."""

    opened: OpenedModel
    settings: RunnerConfig
    info: ModelInfo
    share: TensorShare
    layers: StageLayers
    form: WeightForm

    @property
    def num_threads(self) -> int:
        return self.settings.device.num_threads or default_num_threads()

    def compile(
        self,
        stored: Mapping[str, StoredTensor],
        kv: KVForm,
        progress: ReportProgress,
        arena: Arena,
        known: KnownTensors,
        *,
        max_lora_rank: int,
        group: Group | None,
    ) -> tuple[Program, Tables, NativePooling | None]:
        taken, form = partial(report_taken, progress), self.form
        weights = Weights(stored, self.share, self.layers, form, known=known, on_taken=taken)
        program, tables = compile_decoder(
            weights,
            kv,
            arena=arena,
            max_model_len=self.info.max_model_len,
            num_threads=self.num_threads,
            factors=row_factors(self.settings.model.dtype, form.quantization),
            max_lora_rank=max_lora_rank,
            group=group,
        )
        return program, tables, _pooling(self.opened, weights)

    def packed_weights(self) -> tuple[PackedWeights, int]:
        """Returns where the packed weights are kept, and the bytes of weights that memory cannot
        hold; 0 if it can. Raises MemoryError."""
        source, share, form, layers = self.opened.source, self.share, self.form, self.layers
        packed = packed_weights(
            self.settings.model.packed_weights,
            self.info.name,
            (self.info.fingerprint, share, form, layers),
            [] if isinstance(source, DummySource) else source.files(),
            num_threads=self.num_threads,
        )
        if source.sizes is None:
            return packed, 0
        keeps, cache = packed.path is not None, self.settings.cache
        return packed, check_memory(source.sizes, form, share, layers, cache, keeps_packed=keeps)


def weight_form(source: ModelSource, model_config: ModelConfig, dtype: str) -> WeightForm:
    """Chooses the form of the weights."""
    quantization = choose_quantization(model_config, source, None)
    return WeightForm(DTYPES[dtype], quantization, model_config.quantization != "none")


def _log_form(source: ModelSource, form: WeightForm, dtype: str) -> None:
    rounds = form.rounds_activations
    text = describe_form(source.sizes, dtype, form.quantization, None, rounds_activations=rounds)
    logger.info("%s", text)


def _activations(source: ModelSource, form: WeightForm) -> str:
    """Returns the type of codes that the checkpoint rounds activations to, or nothing."""
    sizes = source.sizes
    return "" if sizes is None or not form.rounds_activations else sizes.activations


def _kv_form(
    opened: OpenedModel,
    settings: RunnerConfig,
    stored: Mapping[str, StoredTensor],
    *,
    max_model_len: int,
) -> KVForm:
    cache, num_layers = settings.cache, opened.config.num_layers
    check_kv_scheme(opened.source.config, cache.kv_cache_dtype)
    scales: KVScales = ((1.0, 1.0),) * num_layers
    if cache.kv_cache_dtype == "fp8":
        scales = read_kv_scales(stored, num_layers)
    block_size = cache.block_size or USUAL_BLOCK_SIZE
    return KVForm(
        block_size=block_size,
        dtype=cache.kv_cache_dtype,
        scales=scales,
        groups=groups_of(opened, settings, max_model_len=max_model_len),
    )


def _pooling(opened: OpenedModel, weights: Weights) -> NativePooling | None:
    if opened.pooling is None:
        return None
    config = weights.share.whole
    norm = FinalNorm(
        weights.norm(f"{NORM}.weight"),
        weights.vector_if_any(f"{NORM}.bias"),
        config.rms_norm_eps,
        config.norm_is_centred,
    )
    return NativePooling(norm=norm, pooler=opened.pooling.outputs.make_pooler(opened.source))


def describe_steps(program: Program) -> None:
    """Logs how a program computes."""
    kv_dtype = numerics_of(program).kv_cache_dtype
    logger.debug(
        "steps run natively on %s, products in %s, K and V in %s; %s",
        program.isa.name,
        program.arithmetic,
        kv_dtype if kv_dtype == "float32" else f"{kv_dtype}, which rounds them",
        program.weights,
    )


def numerics_of(program: Program, activations: str = "") -> Numerics:
    """Args: activations: type of codes that the checkpoint rounds them to, or empty."""
    return Numerics(
        factors=activations or _CODES.get(program.arithmetic, program.arithmetic),
        kernels=f"native {program.isa.name.lower()}",
        kv_cache_dtype=program.shape.kv_element.name.lower(),
    )


def stored_tensors(
    source: ModelSource, config: DecoderConfig, progress: ReportProgress
) -> Mapping[str, StoredTensor]:
    """Returns the tensors of a model by the names that programs have for them; reads none."""
    progress(StartupProgress(StartupPhase.LOAD))
    if isinstance(source, DummySource):
        return random_tensors(weight_shapes(config))
    stored = source.stored()
    if left_out := sum(is_behind(name, config) for name in stored):
        logger.info("%d tensors of layers that predict further tokens are left out", left_out)
    return separated(stored, config)


def separated(
    stored: Mapping[str, StoredTensor], config: DecoderConfig
) -> Mapping[str, StoredTensor]:
    """Returns the tensors of a checkpoint by the names that programs have for them, each matrix by
    itself."""
    if config.recurrence is not None:
        stored = with_native_names(stored, config)
    separate = without_fused(without_transposed_stacks(stored, config), config)
    if isinstance(config, Gemma4Config) and config.experts is not None:
        return without_stacks(with_block(separate, config.num_layers), config.experts)
    return without_stacks(separate, config)


def with_block(stored: Mapping[str, StoredTensor], num_layers: int) -> dict[str, StoredTensor]:
    """Returns the tensors with the parts of Gemma 4's mixture, which lie in the layer itself, under
    its name."""
    parts = {"router.proj.weight": ROUTER, "router.": "", "experts.": f"{EXPERTS}."}
    names = {
        f"{layer_prefix(index)}{theirs}": f"{layer_prefix(index)}{MIXTURE}.{ours}"
        for index in range(num_layers)
        for theirs, ours in parts.items()
    }
    found = {}
    for name, tensor in stored.items():
        start = next((one for one in names if name.startswith(one)), "")
        found[names.get(start, "") + name.removeprefix(start)] = tensor
    return found


def report_taken(progress: ReportProgress, num_taken: int, num_total: int) -> None:
    """Reports how many tensors are loaded."""
    progress(StartupProgress(StartupPhase.LOAD, num_taken, num_total))


def row_factors(dtype: str, quantization: Quantization | None) -> Row:
    """Returns the rows that blocks and whole numbers are multiplied with."""
    if dtype == "float32" or quantization is None:
        return Row.ELEMENTS
    return Row.WIDE_CODES if dtype == INT16 else Row.CODES


def dtype_name(name: str, *, is_half: bool) -> str:
    """Returns the type of activations and of weights in floats."""
    if name == INT16:
        return "float32"
    if name != "auto":
        return name
    return dtype_for_half() if is_half else "float32"


def dtype_for_half() -> str:
    """Returns the dtype of activations of 16-bit models: bfloat16 where its products are fast."""
    return "bfloat16" if multiplies_bfloat16(best_isa()) else "float32"


def without_fused(
    stored: Mapping[str, StoredTensor], config: DecoderConfig
) -> dict[str, StoredTensor]:
    """Returns the tensors with each of `fused_projections` replaced by its parts, which are not
    read yet. Raises ModelError for one that has other rows."""
    found, shapes = dict(stored), weight_shapes(config)
    for index in range(config.num_layers):
        for fused in config.fused_projections:
            name = f"{layer_prefix(index)}{fused}.weight"
            tensor = found.pop(name, None)
            if tensor is None:  # made-up weights have the parts
                continue
            parts = FUSED_PROJECTIONS[fused]
            names = [f"{layer_prefix(index)}{part}.weight" for part in parts]
            if double := sorted(found.keys() & {*names}):
                raise ModelError(f"{name} stands beside {double[0]}; remove what is not meant")
            found |= zip(names, _parts(name, tensor, [shapes[one] for one in names]), strict=True)
    return found


def without_stacks(
    stored: dict[str, StoredTensor], config: DecoderConfig
) -> dict[str, StoredTensor]:
    """Returns the tensors with those of all experts of a layer replaced by each one's; one that is
    read whole is in memory alone. Raises ModelError for one of another shape."""
    if not isinstance(config, MoeConfig):
        return stored
    found, shapes = dict(stored), weight_shapes(config)
    read = lru_cache(maxsize=1)(lambda name: stored[name].read())
    for index in range(config.num_layers):
        block = f"{layer_prefix(index)}{config.block}."
        if (router := found.pop(f"{block}{STACKED_ROUTER}", None)) is not None:
            found[f"{block}{ROUTER}"] = router
        for stack, parts in config.stacks.items():
            tensor, places = found.pop(f"{block}{stack}", None), dict[str, tuple[int, slice]]()
            if tensor is None:  # a tensor for each expert
                continue
            if tensor.read_rows is None:
                tensor = replace(tensor, read=partial(read, f"{block}{stack}"))
            start = 0
            for part in parts:
                rows = shapes[f"{block}{EXPERTS}.0.{part}.weight"][0]
                for expert in range(config.num_experts):
                    name = f"{block}{EXPERTS}.{expert}.{part}.weight"
                    places[name] = expert, slice(start, start + rows)
                start += rows
            check_shape(
                f"{block}{stack}",
                tensor.shape,
                (config.num_experts, start, shapes[next(iter(places))][1]),
            )
            for name, (expert, rows_of) in places.items():
                found[name] = _rows(tensor, expert * start + rows_of.start, shapes[name])
    return found


def _parts(name: str, tensor: StoredTensor, shapes: list[tuple[int, ...]]) -> list[StoredTensor]:
    ends = list(accumulate(shape[0] for shape in shapes))
    check_shape(name, tensor.shape, (ends[-1], *shapes[0][1:]))
    return [_rows(tensor, end - shape[0], shape) for end, shape in zip(ends, shapes, strict=True)]


def _rows(tensor: StoredTensor, start: int, shape: tuple[int, ...]) -> StoredTensor:
    """Returns some rows, counted over all dimensions but the last."""
    read_rows, end = tensor.read_rows, start + shape[0]

    def read() -> AnyArray:
        if read_rows is not None:
            return read_rows(start, end)
        return tensor.read().reshape(-1, shape[-1])[start:end]

    def of_rows(first: int, behind: int) -> AnyArray:
        assert read_rows is not None
        return read_rows(start + first, start + behind)

    return StoredTensor(
        shape,
        read,
        blocks=None if tensor.blocks is None else tensor.blocks.rows(start, shape[0]),
        dtype=tensor.dtype,
        read_rows=None if read_rows is None else of_rows,
    )
