"""The forms in which checkpoints hold quantised matrices, by `quantization_config`.

A form knows the tensors that stand for a matrix, by the ends of their names, and what they mean:
`read` gives the matrix in float32, which is how a device without kernels for the form runs it, and
the reference for those that have some. Matrices that a checkpoint leaves as they are have no such
tensors, so that its list of exceptions need not be read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpu_worker.checkpoints import fp8, int4_packings
from gpu_worker.checkpoints.int4_packings import NUMPY, ArrayLibrary, Int4Codes
from gpu_worker.checkpoints.stored_tensor import StoredTensor
from gpu_worker.config import ModelError
from signalbox_kernels.floats import AnyArray

_WEIGHT = "weight"

Tensors = Mapping[str, AnyArray]
"""Arrays of one matrix by the ends of their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedForm:
    """One way to hold a matrix in few bits."""

    name: str
    """Value of `--quantization` that keeps it."""
    marker: str
    """End of the name of a tensor that each quantised matrix has, and no other."""
    ends: frozenset[str]
    """Ends of the names of all tensors that it may have."""
    shape: Callable[[Mapping[str, tuple[int, ...]]], tuple[int, ...]]
    """Returns the rows and columns of the matrix that tensors of such shapes stand for."""
    decode: Callable[[Tensors], AnyArray]
    """Returns the matrix in float32, [out_features, in_features]."""
    group_size: int | None = None
    """Columns that share a scale; None if at least a row does."""
    unpack: Callable[[Mapping[str, Any], ArrayLibrary], Int4Codes] | None = None
    """Returns the codes of a form of 4 bits."""


FP8 = QuantisedForm(
    name="fp8",
    marker="weight_scale",
    ends=frozenset({"weight", "weight_scale", "input_scale"}),
    shape=fp8.shape,
    decode=fp8.decode,
)
"""E4M3 with a scale for a matrix or for each row."""
FP8_BLOCKS = QuantisedForm(
    name="fp8",
    marker="weight_scale_inv",
    ends=frozenset({"weight", "weight_scale_inv", "input_scale"}),
    shape=fp8.shape_of_blocks,
    decode=fp8.decode_blocks,
    group_size=fp8.BLOCK,
)
"""E4M3 with a scale for each block of 128 x 128."""


def with_matrices(
    stored: Mapping[str, StoredTensor], form: QuantisedForm | None
) -> dict[str, StoredTensor]:
    """Puts one tensor under `X.weight` where the files have several of a quantised matrix X.

    Its `parts` are those of the files; reading it decodes them.
    """
    if form is None:
        return dict(stored)
    found = dict[str, StoredTensor]()
    for name, tensor in stored.items():
        base, _, end = name.rpartition(".")
        if end not in form.ends or f"{base}.{form.marker}" not in stored:
            found[name] = tensor
        elif end == form.marker:
            parts = {e: stored[f"{base}.{e}"] for e in form.ends if f"{base}.{e}" in stored}
            found[f"{base}.{_WEIGHT}"] = _joined(base, parts, form)
    return found


def _joined(name: str, parts: Mapping[str, StoredTensor], form: QuantisedForm) -> StoredTensor:
    try:
        shape = form.shape({end: part.shape for end, part in parts.items()})
    except (KeyError, ValueError, IndexError):
        shapes = ", ".join(f"{end} {part.shape}" for end, part in sorted(parts.items()))
        raise ModelError(f"{name} has {shapes}, which is no matrix in {form.name}") from None
    return StoredTensor(shape, partial(_read, parts, form), parts=parts)


def _read(parts: Mapping[str, StoredTensor], form: QuantisedForm) -> AnyArray:
    return form.decode({end: part.read() for end, part in parts.items()})


def quantised_form(config: Mapping[str, Any]) -> QuantisedForm | None:
    """Returns the form that a config.json names; None if its weights are floats.

    Raises ModelError for a form that is not known.
    """
    described = config.get("quantization_config")
    if described is None:
        return None
    method = described.get("quant_method") if isinstance(described, Mapping) else described
    reader = _READERS.get(str(method))
    if reader is None:
        raise ModelError(
            f"the checkpoint is quantised by {str(method)[:40]!r}, which is not supported; use a "
            f"model without quantization, or of {', '.join(sorted(_READERS))}"
        )
    return reader(described)


def _fp8(described: Mapping[str, Any]) -> QuantisedForm:
    """Scales of a whole matrix, of its rows, or of blocks."""
    block = described.get("weight_block_size")
    if block not in (None, [fp8.BLOCK, fp8.BLOCK]):
        raise ModelError(
            f"the checkpoint is in FP8 by blocks of {str(block)[:40]}; use one by blocks of "
            f"{fp8.BLOCK} x {fp8.BLOCK}, or with scales of rows or matrices"
        )
    return FP8 if block is None else FP8_BLOCKS


def _compressed_tensors(described: Mapping[str, Any]) -> QuantisedForm:
    """8 bits of floats with scales of matrices or of rows, and activations in 8 bits too."""
    groups = described.get("config_groups")
    groups = [*groups.values()] if isinstance(groups, Mapping) else []
    weights = [_strategy(group, "weights") for group in groups]
    activations = [_strategy(group, "input_activations") for group in groups]
    if not weights or not {*weights} <= {"tensor", "channel"} or None in activations:
        raise ModelError(
            f"the checkpoint is in compressed-tensors {str(described.get('format'))[:40]!r}; use "
            "one whose weights and activations are floats of 8 bits, with a scale for a tensor or "
            "a channel"
        )
    return FP8


def _strategy(group: Any, side: str) -> str | None:
    """Returns what has a scale of its own; None for anything but floats of 8 bits."""
    described = group.get(side) if isinstance(group, Mapping) else None
    if not isinstance(described, Mapping):
        return None
    is_fp8 = described.get("type") == "float" and described.get("num_bits") == 8
    return str(described.get("strategy")) if is_fp8 else None


def _awq(described: Mapping[str, Any]) -> QuantisedForm:
    """AutoAWQ's GEMM packing."""
    _expect(described, "awq", 4, "bits", "w_bit")
    _expect(described, "awq", "gemm", "version", "format")
    _expect(described, "awq", True, "zero_point")
    group_size = _group_size(described, "group_size", "q_group_size")
    return QuantisedForm(
        name="awq",
        marker=int4_packings.QWEIGHT,
        ends=int4_packings.AWQ_ENDS,
        shape=partial(int4_packings.awq_shape, group_size=group_size),
        decode=partial(_decode_int4, int4_packings.unpack_awq, group_size),
        group_size=group_size,
        unpack=int4_packings.unpack_awq,
    )


def _gptq(described: Mapping[str, Any]) -> QuantisedForm:
    """Both formats of GPTQ, in any order of columns."""
    _expect(described, "gptq", 4, "bits")
    _expect(described, "gptq", False, "is_marlin_format")
    _expect(described, "gptq", "int32", "pack_dtype")
    version = str(_first(described, "gptq", "checkpoint_format", "format")).lower()
    if version not in ("gptq", "gptq_v2"):
        raise _not_served("gptq", f"checkpoint_format {version[:40]!r}", "'gptq' or 'gptq_v2'")
    group_size = _group_size(described, "group_size")
    for rule in _dynamic_rules(described):
        _expect(rule, "gptq", 4, "bits")
        _expect(rule, "gptq", group_size or -1, "group_size")
    unpack = partial(int4_packings.unpack_gptq, stores_zeros_less_one=version == "gptq")
    return QuantisedForm(
        name="gptq",
        marker=int4_packings.QWEIGHT,
        ends=int4_packings.GPTQ_ENDS,
        shape=partial(int4_packings.gptq_shape, group_size=group_size),
        decode=partial(_decode_int4, unpack, group_size),
        group_size=group_size,
        unpack=unpack,
    )


def _dynamic_rules(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns what GPTQModel says of single matrices, but those that it leaves as they are."""
    rules = described.get("dynamic") or {}
    found = [*rules.items()] if isinstance(rules, Mapping) else [("", rules)]
    kept = [rule for pattern, rule in found if not pattern.startswith("-:")]
    if not all(isinstance(rule, Mapping) for rule in kept):
        raise _not_served("gptq", f"dynamic {str(rules)[:40]!r}", "rules by pattern")
    return kept


def _decode_int4(
    unpack: Callable[[Mapping[str, Any], ArrayLibrary], Int4Codes],
    group_size: int | None,
    tensors: Tensors,
) -> AnyArray:
    return int4_packings.decode(unpack(tensors, NUMPY), group_size=group_size)


def _first(described: Mapping[str, Any], default: Any, *names: str) -> Any:
    """Returns the first of several fields that is there."""
    return next((described[name] for name in names if described.get(name) is not None), default)


def _expect(described: Mapping[str, Any], method: str, value: Any, *names: str) -> None:
    """Raises ModelError if a field has another value than the one that is served."""
    found = _first(described, value, *names)
    if (found.lower() if isinstance(found, str) else found) != value:
        raise _not_served(method, f"{names[0]} {str(found)[:40]!r}", repr(value))


def _group_size(described: Mapping[str, Any], *names: str) -> int | None:
    """None stands for a scale for each row."""
    size = _first(described, 128, *names)
    if size == -1:
        return None
    if not isinstance(size, int) or size < 16 or size % 16:
        raise ModelError(
            f"the checkpoint is quantised in groups of {str(size)[:40]}; use one with groups of a "
            "multiple of 16, such as 128, or of whole rows (-1)"
        )
    return size


def _not_served(method: str, found: str, served: str) -> ModelError:
    return ModelError(
        f"the checkpoint is quantised by {method} with {found}, which is not supported; use one "
        f"with {served}"
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], QuantisedForm]] = {
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "gptq": _gptq,
}
