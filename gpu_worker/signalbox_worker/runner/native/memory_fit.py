"""Refuses a model that the free memory cannot hold, before it is read.

A mixture may be larger: a step reads some of its experts, from the packed weights on the disk.
"""

import logging
from collections.abc import Iterator
from math import prod

from signalbox_kernels.floats import dtype_name
from signalbox_worker.config import CacheConfig
from signalbox_worker.device.ram import available_ram
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints.quantization import native_form
from signalbox_worker.files.checkpoints.weight_sizes import WeightSizes
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.runner.native.tensor_share import TensorShare
from signalbox_worker.runner.native.weight_shapes import weight_shapes
from signalbox_worker.runner.native.weights import WeightForm

logger = logging.getLogger(__name__)

_MADE_AT_LOAD = ("int8", "int4")
"""Forms that take less memory, the most exact first."""


def check_memory(
    sizes: WeightSizes,
    form: WeightForm,
    share: TensorShare,
    stage: StageLayers,
    cache: CacheConfig,
    *,
    keeps_packed: bool,
) -> int:
    """Returns the bytes of a rank's weights that have to stay on the disk; 0 if they fit.

    Raises MemoryError if the weights, or the KV cache that is asked for, neither fit nor may stay.

    Args:
        keeps_packed: the weights have a file on the disk.
    """
    name = native_form(sizes, dtype_name(form.dtype), form.quantization)
    part, free = _part(share, stage), available_ram()
    of_weights = int(part * sizes.bytes_in(name))
    of_cache = int(_cache_bytes(cache) * len(stage) / stage.total / share.size)
    if of_weights + of_cache <= free:
        return 0
    takes = f"{of_weights >> 20} MiB of weights in {name}"
    if of_cache:
        takes += f" and {of_cache >> 20} MiB of KV cache and swap space"
    if keeps_packed and of_cache < free and isinstance(share.whole, MoeConfig):
        logger.warning(
            "%s do not fit in %d MiB of free memory: steps read experts that are not in the page"
            " cache from the packed weights on the disk, and take longer",
            takes,
            free >> 20,
        )
        return of_weights
    left = free - of_cache
    smaller = [one for one in _MADE_AT_LOAD if part * sizes.bytes_in(one) <= left]
    form_that_fits = smaller[0] if smaller and name not in smaller else None
    remedies = ", or ".join(_remedies(form_that_fits, has_cache=bool(of_cache)))
    raise MemoryError(f"it takes {takes}, and {free >> 20} MiB of memory are free; {remedies}")


def _remedies(form_that_fits: str | None, *, has_cache: bool) -> Iterator[str]:
    if form_that_fits is not None:
        yield f"use --quantization {form_that_fits}"
    if has_cache:
        yield "lower --kv-cache-memory and --swap-space"
    yield "raise the limit of memory (of the container, or ulimit -v)"
    yield "divide the model among machines (--pipeline-parallel-size)"
    yield "use a smaller model, or a file of a stronger quantisation"


def _part(share: TensorShare, stage: StageLayers) -> float:
    """Returns the part of a model's values that a rank holds."""
    shapes = weight_shapes(share.whole)
    own = sum(
        sum(map(len, share.rows(name)))
        * (len(share.columns(name)) if len(shapes[name]) == 2 else 1)
        for name in share.names(stage)
    )
    return own / sum(map(prod, shapes.values()))


def _cache_bytes(cache: CacheConfig) -> int:
    """Returns the bytes that settings ask for; without them the cache takes what is left."""
    return (cache.kv_cache_bytes or 0) + (cache.swap_space_bytes or 0)
