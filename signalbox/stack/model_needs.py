"""Describes a model before it is loaded: what it takes in memory, and how it would run here.

It reads configurations and heads of files, of a model on the hub by ranges. PyTorch is imported for
a model that runs through it.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from signalbox_contract.cache_groups import (
    FULL_GROUP,
    CacheGroup,
    num_token_groups,
    state_group,
)
from signalbox_contract.startup import ignore_progress
from signalbox_kernels.floats import DTYPES
from signalbox_kernels.native import best_isa
from signalbox_kernels.program import ProgramShape
from signalbox_worker.config import USUAL_BLOCK_SIZE
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints.kv_scales import check_kv_scheme
from signalbox_worker.files.checkpoints.quantization import Quantization, choose_quantization
from signalbox_worker.files.checkpoints.text_part import MULTIMODAL
from signalbox_worker.files.checkpoints.weight_sizes import OWN_TYPES, WeightSizes
from signalbox_worker.files.hub.download import find_on_hub
from signalbox_worker.files.hub.file_transfer import check_disk
from signalbox_worker.files.hub.hub_model import HubModel
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.encoder_config import EncoderConfig
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.layer_partition import stage_layers, stages_of
from signalbox_worker.runner.loading.model_source import find_model, source_at
from signalbox_worker.runner.loading.opened_model import (
    BuiltModel,
    OpenedModel,
    for_pytorch,
    open_with_config,
    window,
)
from signalbox_worker.runner.loading.unfetched_model import with_holes
from signalbox_worker.runner.native.eligibility import native_unsupported_reason
from signalbox_worker.runner.native.encoder_weights import EncoderWeights
from signalbox_worker.runner.native.kv_places import kv_places
from signalbox_worker.runner.native.layer_groups import groups_of, with_states
from signalbox_worker.runner.native.native_model import dtype_name, stored_tensors
from signalbox_worker.runner.native.program_parts import program_shape
from signalbox_worker.runner.native.tensor_share import TensorShare
from signalbox_worker.runner.native.weights import WeightForm, Weights
from signalbox_worker.runner.ranks.rank_shard import check_pooling
from signalbox_worker.runner.ranks.startup_checks import check_pytorch
from signalbox_worker.service.worker_settings import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNeeds:
    """Sizes are in bytes, windows in tokens."""

    architecture: str
    multimodal_architecture: str | None
    """Architecture of config.json if the text part of the model is served."""
    task: str
    """"generate", or what a model that pools makes: "embed", "token_embed" or "classify"."""
    num_parameters: int | None
    """None of a model whose weights are made up."""
    num_layers: int
    num_recurrent_layers: int
    longest_window: int
    max_model_len: int
    has_chat_template: bool
    is_native: bool
    why_not_native: str | None
    """Reason why PyTorch computes it; None of a model that runs natively."""
    device: str
    device_bytes: int | None
    """Free bytes of a CUDA device that a worker may use; None stands for RAM."""
    dtype: str
    form: str
    """Form of the weights in memory, as `WeightSizes.bytes_in` takes it."""
    stored_form: str
    """Form of the weights in the files."""
    weights_bytes: int | None
    num_ranks: int
    rank_weights_bytes: int | None
    """About what each rank holds."""
    kv_block_bytes: int
    """Bytes of a block of each group of layers on rank 0; 0 of a model that keeps no K and V."""
    kv_block_size: int
    kv_window_bytes: int
    """K and V of one sequence of `max_model_len` tokens, on all ranks, and its states."""
    states_bytes: int
    """The two states of recurrent layers that a sequence keeps; 0 of a model without."""
    to_fetch: dict[str, int]
    """Files that are not here yet."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A model whose weights may not be here."""

    needs: ModelNeeds
    sizes: WeightSizes | None


def examine_model(settings: EngineSettings) -> Examined:
    """Reads what there is of a model.

    Raises ModelError, ValueError or OSError, in one line, for one that is not served here.
    """
    with _placed(settings) as (here, to_fetch):
        opened = open_with_config(here, ignore_progress)
        sizes = opened.source.sizes
        if sizes is None and settings.load_format != "dummy":
            sizes = source_at(Path(here.model), name=opened.source.name, is_dummy=False).sizes
        return Examined(_needs(here, opened, sizes, to_fetch), sizes)


@contextmanager
def _placed(settings: EngineSettings) -> Iterator[tuple[EngineSettings, dict[str, int]]]:
    """Yields settings whose model is a path, and the bytes of the files that are not here."""
    with ExitStack() as stack:
        path = find_model(settings)
        if path is not None:
            yield settings, {}
            return
        found = find_on_hub(settings.model, settings.revision)
        to_fetch, changes = dict[str, int](), {}
        if isinstance(found, HubModel):
            to_fetch = found.missing()
            check_disk(found.repository, sum(to_fetch.values()))
            if not all(file.endswith((".safetensors", ".gguf")) for file in found.weight_files()):
                changes = {"load_format": "dummy"}  # PyTorch's own files have no heads
            found = stack.enter_context(with_holes(found))
        yield settings.model_copy(update={"model": str(found), **changes}), to_fetch


def _needs(
    settings: EngineSettings,
    opened: OpenedModel,
    sizes: WeightSizes | None,
    to_fetch: dict[str, int],
) -> ModelNeeds:
    parallel, source = settings.parallel, opened.source
    if opened.pooling is not None:
        check_pooling(settings.runner_config)
    why_not = native_unsupported_reason(opened, settings, settings, settings, parallel)
    groups: Sequence[CacheGroup] = (FULL_GROUP,)
    if why_not is None:
        groups = groups_of(opened, settings.runner_config, max_model_len=window(settings, opened))
        built = _built_natively(settings, opened, groups)
        if opened.shape.has_states:
            of_program = _native_shape(settings, opened, built.dtype, groups)
            share = TensorShare(whole=opened.config, size=parallel.tensor_parallel_size)
            groups = with_states(groups, share, stages_of(opened, parallel), of_program)
    else:
        check_pytorch(settings, settings, opened, why_not)
        opened = for_pytorch(opened, settings, parallel, why_not)
        from signalbox_worker.runner.loading.dry_run import built_in_pytorch

        built = built_in_pytorch(opened, settings.runner_config, why_not)
    form = _form(opened, built, sizes, natively=why_not is None)
    weights = None if sizes is None else sizes.bytes_in(form)
    length, shape, states = window(settings, opened), opened.shape, state_group(groups)
    block_size = settings.block_size or USUAL_BLOCK_SIZE
    return ModelNeeds(
        architecture=shape.architecture,
        multimodal_architecture=source.config.get(MULTIMODAL),
        task="generate" if opened.pooling is None else opened.pooling.model.task,
        num_parameters=None if sizes is None else sizes.num_values,
        num_layers=shape.num_layers,
        num_recurrent_layers=sum(map(bool, shape.state_bytes)),
        longest_window=shape.max_position,
        max_model_len=length,
        has_chat_template=_has_chat_template(opened),
        is_native=why_not is None,
        why_not_native=why_not,
        device=built.device,
        device_bytes=built.device_bytes,
        dtype=built.dtype,
        form=form,
        stored_form=_stored_form(sizes, source.is_half),
        weights_bytes=weights,
        num_ranks=parallel.num_ranks,
        rank_weights_bytes=None if weights is None else -(-weights // parallel.num_ranks),
        kv_block_bytes=built.block_bytes * num_token_groups(groups),
        kv_block_size=block_size,
        kv_window_bytes=_window_bytes(settings, opened, built.block_bytes, groups),
        states_bytes=2 * states.state_blocks * built.block_bytes if states else 0,
        to_fetch=to_fetch,
    )


def _window_bytes(
    settings: EngineSettings, opened: OpenedModel, block_bytes: int, groups: Sequence[CacheGroup]
) -> int:
    """Returns the bytes of K and V of the longest sequence, on all ranks, and of its states.

    Args:
        block_bytes: of a block of the layers of rank 0.
    """
    size, parallel = settings.block_size or USUAL_BLOCK_SIZE, settings.parallel
    num_rows = -(-window(settings, opened) // size)
    most_blocks = sum(group.most_blocks(num_rows, block_size=size) for group in groups)
    num_layers = len(stage_layers(opened, parallel))
    layers_bytes = block_bytes * opened.shape.num_layers // num_layers
    return most_blocks * layers_bytes * parallel.tensor_parallel_size


def _built_natively(
    settings: EngineSettings, opened: OpenedModel, groups: Sequence[CacheGroup]
) -> BuiltModel:
    """Returns what `built_in_pytorch` does, of a model that runs natively."""
    dtype = dtype_name(settings.dtype, is_half=opened.source.is_half)
    quantization = check_native(settings, opened)
    return BuiltModel(
        device="cpu",
        device_bytes=None,
        dtype=dtype,
        block_bytes=0
        if opened.shape.is_bidirectional
        else _native_shape(settings, opened, dtype, groups).block_bytes,
        quantization=quantization,
    )


def check_native(settings: EngineSettings, opened: OpenedModel) -> Quantization | None:
    """Returns the form in which a native program holds the weights. Raises ModelError for settings
    and files that it does not take."""
    is_encoder = isinstance(opened.config, EncoderConfig)  # which expands blocks to floats
    quantization = None if is_encoder else choose_quantization(settings, opened.source, None)
    _check_tensors(opened)
    check_kv_scheme(opened.source.config, settings.kv_cache_dtype)
    return quantization


def _check_tensors(opened: OpenedModel) -> None:
    """Raises ModelError if the files lack tensors of a native program, have others, or have them in
    other shapes."""
    source, config = opened.source, opened.config
    heads = (".safetensors", ".gguf")  # PyTorch's own files have none
    if isinstance(source, DummySource) or not any(one.suffix in heads for one in source.files()):
        return
    float32 = DTYPES["float32"]  # any would do: nothing is read
    if isinstance(config, EncoderConfig):
        EncoderWeights(config, source.stored(), dtype=float32)
        return
    assert isinstance(config, DecoderConfig)
    layers = StageLayers(0, config.num_layers, config.num_layers)
    stored = stored_tensors(source, config, ignore_progress)
    Weights(stored, TensorShare(whole=config, size=1), layers, WeightForm(float32))


def _native_shape(
    settings: EngineSettings, opened: OpenedModel, dtype: str, groups: Sequence[CacheGroup]
) -> ProgramShape:
    """Returns the shape of a native program."""
    config, parallel = opened.config, settings.parallel
    assert isinstance(config, DecoderConfig), "encoders keep no K and V"
    share = TensorShare(whole=config, size=parallel.tensor_parallel_size).config
    return program_shape(
        share,
        DTYPES[dtype],
        isa=best_isa(),
        block_size=settings.block_size or USUAL_BLOCK_SIZE,
        places=kv_places(share, stage_layers(opened, parallel), groups),
        kv_dtype=settings.kv_cache_dtype,
    )


def _form(
    opened: OpenedModel, built: BuiltModel, sizes: WeightSizes | None, *, natively: bool
) -> str:
    """Returns the form of the weights in memory."""
    if built.quantization is not None:
        return built.quantization.name
    if not natively or built.dtype != "float32" or sizes is None:
        return built.dtype
    expands_blocks = isinstance(opened.config, EncoderConfig) and sizes.has_blocks
    return built.dtype if expands_blocks else OWN_TYPES


def _stored_form(sizes: WeightSizes | None, is_half: bool) -> str:
    if sizes is None:
        return "made up"
    return sizes.quantised_form or sizes.block_type or ("16 bits" if is_half else "32 bits")


def _has_chat_template(opened: OpenedModel) -> bool:
    """Reads the tokenizer. Raises ModelError if there is none."""
    config = json.loads(opened.tokenizer_files()["tokenizer_config.json"])
    return bool(config.get("chat_template"))
