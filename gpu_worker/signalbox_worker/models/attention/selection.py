"""Which attention backend serves: the one that is named, or for `auto` the fastest that works here.

A candidate of `auto` is tried in another process (`signalbox_worker/device/trials`) before this one
loads it. On a CPU there is one candidate, PyTorch's, and nothing to try.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from statistics import fmean
from typing import Any

import torch

from signalbox_worker.device.trials.device_clock import clock_of
from signalbox_worker.device.trials.kept_verdicts import verdicts_of
from signalbox_worker.device.trials.trial import Trial, Verdict
from signalbox_worker.models.attention.backend import AttentionBackend, AttentionShape
from signalbox_worker.models.attention.backend_check import (
    fault_of_difference,
    one_layer_of_each_kind,
    wrong_results,
)
from signalbox_worker.models.attention.backend_times import load_for, try_under_load
from signalbox_worker.models.attention.flash_kernels import FLASH_KERNELS, FLASHINFER, generation_of
from signalbox_worker.models.attention.registry import (
    AUTO,
    FLASH,
    TRITON_PDL,
    TRITON_PLAIN,
    ChosenBackend,
    make_attention_backend,
    missing_backends,
)

logger = logging.getLogger(__name__)

_LAST_RESORT = "torch"
_MARGIN = 1.05


def candidates(device: torch.device) -> tuple[str, ...]:
    """Returns what "auto" tries, the preferred first among equally fast ones.

    flash-attn 4 does not share the keys of a decode among programs on Hopper. flash-attn 2 comes
    after Triton's, for blocks of 256 tokens: they waste half a block a sequence, and only whole
    blocks are found in the prefix cache.
    """
    if device.type != "cuda":
        return (_LAST_RESORT,)
    generation = generation_of(device) or 0
    newest = "flash_attn_3" if generation == 9 else "flash_attn_4"
    flashinfer = (FLASHINFER.name,) if generation in FLASHINFER.generations else ()
    early = (TRITON_PDL,) if generation >= 9 else ()
    return (newest, *flashinfer, "triton", *early, TRITON_PLAIN, "flash_attn_2", _LAST_RESORT)


def automatic_backend(device: torch.device) -> str:
    """Returns the first candidate that is installed; it may not support the model."""
    missing = missing_backends()
    return next(name for name in candidates(device) if name not in missing)


def attention_backend(name: str, shape: AttentionShape) -> AttentionBackend:
    """Makes the backend called `name` for the shape's size of blocks."""
    return choose_attention_backend(name, shape).backend


def choose_attention_backend(name: str, shape: AttentionShape) -> ChosenBackend:
    """Makes the backend called `name`; "auto" is the fastest that supports the shape, and works.

    Args:
        shape: a block_size of AUTO_BLOCK_SIZE leaves that to the backend.

    Raises ValueError with what is wrong and the remedy; also if "auto" would leave a GPU to "torch"
    because another backend, which supports the shape, does not work.
    """
    if name == AUTO:
        return _first(AUTO, candidates(shape.device), shape)
    if name == FLASH:
        return _first(FLASH, tuple(kernel.name for kernel in FLASH_KERNELS), shape)
    return make_attention_backend(name, shape)


def _first(wanted: str, names: tuple[str, ...], shape: AttentionShape) -> ChosenBackend:
    """Makes the fastest that supports the shape and agrees with PyTorch on this device."""
    verdicts = _verdicts(names, shape)
    refused = [verdict.refusal for verdict in verdicts.values() if verdict.refusal is not None]
    broken = [name for name, verdict in verdicts.items() if verdict.fault is not None]
    working = [name for name, verdict in verdicts.items() if verdict.is_good]
    if not working and (broken or _LAST_RESORT not in names):
        refused += [
            f"{name!r} does not work here, for the reason that was logged" for name in broken
        ]
        remedy = f"; {_LAST_RESORT!r} runs, several times slower" if _LAST_RESORT in names else ""
        if broken:
            remedy += "; a backend that is named is used without a trial"
        raise ValueError(
            f"no backend of attention_backend {wanted!r} can be used: {'; '.join(refused)}{remedy}"
        )
    seconds = {name: verdicts[name].seconds for name in working if name in verdicts}
    chosen = make_attention_backend(fastest(seconds) if seconds else _LAST_RESORT, shape)
    if chosen.name == _LAST_RESORT and shape.device.type == "cuda":
        chosen = replace(chosen, is_last_resort=True)
    logger.log(
        logging.WARNING if chosen.is_last_resort else logging.INFO,
        "attention_backend %s is %s, in blocks of %d tokens%s",
        wanted,
        chosen.name,
        chosen.block_size,
        "".join(f"; {each}" for each in (*_figures(seconds), *refused)),
    )
    return chosen


def fastest(seconds: Mapping[str, Mapping[str, float]]) -> str:
    """Returns the first candidate whose times are at most 5 % above those of the fastest.

    Compared is the mean of a candidate's ratios to the best time of each kind of work. Without
    times of all it is the first: the order has reasons beside time, and a measurement has noise.

    Args:
        seconds: of each kind of work, by candidate, in the order of preference.
    """
    kinds = set[str]().union(*seconds.values())
    if not kinds or any(times.keys() != kinds for times in seconds.values()):
        return next(iter(seconds))
    best = {kind: min(times[kind] for times in seconds.values()) for kind in kinds}
    ratios = {
        name: fmean(times[kind] / best[kind] for kind in kinds) for name, times in seconds.items()
    }
    limit = _MARGIN * min(ratios.values())
    return next(name for name, ratio in ratios.items() if ratio <= limit)


def _figures(seconds: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    for name, times in seconds.items():
        if times:
            listed = ", ".join(f"{kind} {time * 1e6:.1f} us" for kind, time in times.items())
            yield f"{name}: {listed}"


def _verdicts(names: tuple[str, ...], shape: AttentionShape) -> dict[str, Verdict]:
    """Returns those of all names but the last resort, which needs none."""
    missing = missing_backends()
    present = [name for name in names if name not in missing and name != _LAST_RESORT]
    found = {name: _refusal_of_missing(name, shape) for name in names if name in missing}
    trials = [
        Trial(
            name=f"attention_backend {name!r}",
            function=f"{__name__}:{try_backend.__name__}",
            arguments={"name": name, "shape": _encode(one_layer_of_each_kind(shape))},
        )
        for name in present
    ]
    found |= zip(present, verdicts_of(trials, shape.device), strict=True)
    return {name: found[name] for name in names if name in found}


def _refusal_of_missing(name: str, shape: AttentionShape) -> Verdict:
    try:
        make_attention_backend(name, shape)
    except ValueError as error:
        return Verdict(refusal=str(error))
    raise AssertionError(f"{name!r} is missing and can be made")


def try_backend(device: torch.device, *, name: str, shape: dict[str, Any]) -> Verdict:
    """Tries a backend here; called in the process of trials."""
    decoded = _decode(shape, device)
    try:
        chosen = make_attention_backend(name, decoded)
    except ValueError as error:
        return Verdict(refusal=str(error))
    sized = replace(decoded, block_size=chosen.block_size)

    def make(trial_shape: AttentionShape) -> AttentionBackend:
        return make_attention_backend(name, trial_shape).backend

    clock = clock_of(device)
    fault = wrong_results(make, sized)
    if fault is not None or clock is None:
        return Verdict(fault=fault)
    try:
        worst, seconds = try_under_load(make(sized), sized, load_for(sized), clock)
    except torch.OutOfMemoryError:  # of a card that others use: right, but not timed
        return Verdict(is_lasting=False)
    return Verdict(fault=fault_of_difference(worst), seconds=seconds)


def _encode(shape: AttentionShape) -> dict[str, Any]:
    """Returns the fields but the device, as JSON has them."""
    values = {field.name: getattr(shape, field.name) for field in fields(shape)}
    del values["device"]
    return {
        name: str(value) if isinstance(value, torch.dtype) else value
        for name, value in values.items()
    }


def _decode(encoded: dict[str, Any], device: torch.device) -> AttentionShape:
    return AttentionShape(device=device, **{name: _value(each) for name, each in encoded.items()})


def _value(encoded: Any) -> Any:
    if isinstance(encoded, str):
        return getattr(torch, encoded.removeprefix("torch."))
    return tuple(map(_value, encoded)) if isinstance(encoded, list) else encoded
