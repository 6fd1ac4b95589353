"""Loads an encoder into a native program: `load_natively` for models whose tokens see both ways."""

import logging
from dataclasses import replace
from functools import partial

from signalbox_contract.startup import ReportProgress, StartupPhase, StartupProgress
from signalbox_kernels.floats import DTYPES
from signalbox_worker.config import USUAL_BLOCK_SIZE, ModelConfig
from signalbox_worker.files.adapters.adapter_opener import AdapterOpener
from signalbox_worker.files.checkpoints.quantization import describe_form
from signalbox_worker.files.quantised.configuration import quantised_checkpoint
from signalbox_worker.models.encoder_config import EncoderConfig
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.opened_model import OpenedModel, model_info
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.native.encoder_compiler import compile_encoder
from signalbox_worker.runner.native.encoder_weights import EncoderWeights, encoder_shapes
from signalbox_worker.runner.native.native_adapters import NativeAdapters
from signalbox_worker.runner.native.native_model import (
    NativeModel,
    NativePooling,
    describe_steps,
    dtype_name,
    numerics_of,
    report_taken,
)
from signalbox_worker.runner.native.program_parts import ACTIVATIONS
from signalbox_worker.runner.native.random_weights import random_tensors
from signalbox_worker.runner.native.threads import default_num_threads
from signalbox_worker.sampling.native_sampler import CpuSampler

logger = logging.getLogger(__name__)


def why_no_encoder(opened: OpenedModel, model_config: ModelConfig) -> str | None:
    """Says what native programs of encoders lack for a model; None if they lack nothing."""
    config, source = opened.config, opened.source
    assert isinstance(config, EncoderConfig)
    if config.activation not in ACTIVATIONS:
        return f"it has no activation {config.activation!r}"
    is_quantised = quantised_checkpoint(source.config) is not None
    if is_quantised or model_config.quantization not in ("auto", "none"):
        return "native encoders have no quantised weights"
    if model_config.adapters or model_config.adapter_dir:
        return "native encoders take no adapters"
    return None


def load_encoder_natively(
    opened: OpenedModel, settings: RunnerConfig, *, progress: ReportProgress
) -> NativeModel:
    """Loads an encoder of which `native_unsupported_reason` is None. Raises ModelError."""
    source, config, model_config = opened.source, opened.config, settings.model
    assert isinstance(config, EncoderConfig), "other models are decoders"
    assert opened.pooling is not None, "an encoder without pooling is refused when it is opened"
    dtype = dtype_name(model_config.dtype, is_half=source.is_half)
    info = model_info(model_config, opened, dtype)
    num_threads = settings.device.num_threads or default_num_threads()
    logger.info("%s", describe_form(source.sizes, dtype, None, None, has_forms=False))
    progress(StartupProgress(StartupPhase.LOAD))
    is_dummy = isinstance(source, DummySource)
    weights = EncoderWeights(
        config,
        random_tensors(encoder_shapes(config)) if is_dummy else source.stored(),
        dtype=DTYPES[dtype],
        on_taken=partial(report_taken, progress),
    )
    program = compile_encoder(
        config,
        weights,
        block_size=settings.cache.block_size or USUAL_BLOCK_SIZE,
        max_model_len=info.max_model_len,
        num_threads=num_threads,
    )
    describe_steps(program)
    logger.info("%s is loaded on cpu in %s", info.name, info.dtype)
    opener = AdapterOpener(model_config, info.name, {})
    return NativeModel(
        info=replace(info, numerics=numerics_of(program)),
        program=program,
        sampler=CpuSampler(program=program, num_threads=num_threads),
        adapters=NativeAdapters(opener, program),
        pooling=NativePooling(
            norm=None,
            pooler=opened.pooling.outputs.make_pooler(source),
            num_token_types=config.num_token_types,
        ),
    )
